"""The ratios of the paper's table of settings, from files of the paper's sizes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.item_store import CodedItems, CodedTargets
from recbole_lisa.ops.packing import code_dtype
from recbole_lisa.serving.export import ITEMS, read_export, write_export
from recbole_lisa.serving.ids import IdMap
from tests.serving.build import small_bundle

D, B, MINI_W = 128, 8, 32
# Items and codewords of LISA-Base, and the ratios of LISA-Base and LISA-Mini that the paper prints.
PAPER = {
    "Alibaba": (80_000, 256, 24.26, 18.45),
    "ML-1M": (3_416, 128, 3.19, 2.51),
    "Video Games": (33_487, 256, 13.02, 10.62),
    "ML-25M": (32_720, 256, 12.78, 10.44),
}


@pytest.mark.parametrize("dataset", PAPER)
@pytest.mark.parametrize("model", ["LISABase", "LISAMini"])
def test_files_of_the_paper_s_sizes_have_its_ratios(dataset: str, model: str, tmp_path: Path) -> None:
    n_items, w, base, mini = PAPER[dataset]

    def coded(n_codewords: int) -> CodedTargets:
        codes = torch.randint(n_codewords, (n_items, B)).to(code_dtype(n_codewords))
        return CodedTargets(codes, Codebook(hidden_size=D, n_codebooks=B, n_codewords=n_codewords).codewords.detach())

    items = CodedItems(coded(w)) if model == "LISABase" else CodedItems(coded(MINI_W), coded(w))
    sizes = {"hidden_size": D, "n_codebooks": B, "n_codewords": items.history.codewords.shape[1]}
    encoder = small_bundle(model, **sizes)[1]
    encoder = replace(encoder, weights={name: weight.float() for name, weight in encoder.weights.items()})
    bundle = replace(encoder, dataset=dataset, items=items, ids=IdMap.from_ids(map(str, range(n_items))))
    table = write_export(bundle, tmp_path)["item_table"]
    assert round(table["compression_ratio"], 2) == (base if model == "LISABase" else mini)
    on_disk = (tmp_path / ITEMS).stat().st_size
    assert table["bytes_on_disk"] == on_disk
    assert table["formula_bytes"] <= on_disk <= 1.02 * table["formula_bytes"] + 2**16
    again, _ = read_export(tmp_path)
    for part, same in zip(items.sets(), again.items.sets(), strict=True):
        assert torch.equal(part.codes, same.codes)
        assert np.array_equal(part.codewords, same.codewords)
