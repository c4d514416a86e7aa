from pathlib import Path
from typing import Any

import pytest
import torch

from recbole_lisa.cli.main import main
from recbole_lisa.errors import UsageError
from recbole_lisa.files import locked, new_folder
from recbole_lisa.layers.sequence_encoder import Sequences
from recbole_lisa.migration import migrate, take_over
from recbole_lisa.saved import bundle_of_checkpoint, load_data_and_model
from recbole_lisa.serving import Recommender
from tests.helpers import assert_close
from tests.model.build import build_model
from tests.tiny import train_tiny


def train(folder: Path, model: str = "Transformer", **settings: Any) -> Path:
    return Path(train_tiny(folder, model, epochs=2, learning_rate=0.01, **settings)["checkpoint"])


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("run"), quantize_items=True)


def pair(n_codebooks: int = 2, **settings: Any) -> tuple[Any, Any]:
    """A Transformer with biases, and a LISABase that took over its parameters, both in float64."""
    sizes = {"n_codebooks": n_codebooks, "n_codewords": 5}
    transformer = build_model("Transformer", quantize_items=True, **sizes).double().eval()
    for name, parameter in transformer.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    lisa = build_model("LISABase", freeze_codebooks=True, **sizes, **settings).double().eval()
    take_over(lisa, transformer.state_dict())
    return transformer, lisa


@pytest.mark.parametrize("projection", ["per_codebook", "shared"])
def test_items_are_the_transformer_s(projection: str) -> None:
    transformer, lisa = pair(codebook_projection=projection)
    theirs, ours = transformer.item_view(), lisa.item_view()
    assert torch.equal(theirs.stream, ours.stream)
    assert torch.equal(theirs.target, ours.target)
    assert torch.equal(theirs.quantized.codes, ours.quantized.codes)
    frozen = ["item_embedding.weight", *(f"encoder.attentions.0.codebook.{name}" for name in ("codewords", "bilinear"))]
    assert [name for name, p in lisa.named_parameters() if not p.requires_grad] == frozen
    with pytest.raises(UsageError, match="the Transformer does not fit this LISABase: hidden_size, .* must be equal"):
        take_over(build_model("LISABase", n_codewords=9), transformer.state_dict())


@pytest.mark.parametrize("decay", [0, 0.3])
def test_where_every_codebook_attends_alike_nothing_changes(decay: float) -> None:
    """One item repeated, no positions: all attention lies on it, whatever the scores."""
    transformer, lisa = pair(histogram_decay=decay)
    with torch.no_grad():
        constant = transformer.encoder.attentions[0].output(transformer.encoder.attentions[0].value.bias)
        transformer.encoder.position_embedding.weight.zero_()
        lisa.encoder.position_embedding.weight.copy_(constant.expand_as(lisa.encoder.position_embedding.weight))
    items, valid = torch.full((1, 7), 3), torch.ones(1, 7, dtype=torch.bool)
    theirs = transformer.encoder.encode_non_padding(Sequences(items, valid), transformer.item_view()).hidden
    assert_close(lisa.encoder.encode_non_padding(Sequences(items, valid), lisa.item_view()).hidden, theirs)


def test_of_two_that_write_one_file_the_second_is_refused(
    transformer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["migrate", f"--checkpoint={transformer}", f"--output={tmp_path / 'new' / 'm.pth'}"]
    with new_folder(tmp_path / "new"), locked(tmp_path / "new" / "m.lock"):
        assert main(arguments) == 2
    assert "m.pth': wait for its end, or name another file" in capsys.readouterr().err
    assert main(arguments) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["m.pth"]


@pytest.mark.usefixtures("isolated_run_dir")
def test_from_python_nothing_is_replaced_unless_it_may_be(transformer: Path) -> None:
    Path("kept.pth").write_text("precious")
    Path("r.json").write_text("precious")
    wrong: list[tuple[Any, Any, Any, str]] = [
        (transformer, "kept.pth", {}, "'kept.pth' exists: "),
        (transformer, "kept.pth", {"overwrite": False}, "'kept.pth' exists: "),
        (transformer, "m.pth", {"epochs": 1, "result_file": "r.json"}, "'r.json' exists: "),
        (transformer, transformer, {"overwrite": True}, "is the input, too"),
        (transformer, "m.pth", [1], r"settings is \[1\], it must hold settings by key"),
        (transformer, 3, {}, "output must be a path, got 3"),
        (None, "m.pth", {}, "the checkpoint must be a path, got None"),
    ]
    for path, output, settings, message in wrong:
        with pytest.raises(UsageError, match=message):
            migrate(path, output, settings)
    assert Path("kept.pth").read_text() == Path("r.json").read_text() == "precious" and not Path("m.pth").exists()
    migrate(transformer, "kept.pth", {"overwrite": True})
    assert load_data_and_model("kept.pth")[0]["model"] == "LISABase"
    migrate(transformer, "m.pth", {})
    assert Path("m.pth").is_file()


@pytest.mark.usefixtures("isolated_run_dir")
def test_frozen_items_stay_and_the_rest_learns(transformer: Path) -> None:
    arguments = [f"--checkpoint={transformer}", "--output=m.pth", "--epochs=2", "--checkpoint_dir=saved"]
    assert main(["migrate", *arguments]) == 0
    (trained,) = (file for file in Path("saved").glob("LISABase-*.pth") if "last" not in file.name)
    before, start, end = (load_data_and_model(path)[1] for path in (transformer, "m.pth", trained))
    for model in (start, end):
        assert torch.equal(model.item_embedding.weight, before.item_embedding.weight)
        assert torch.equal(model.codebook.codewords, before.codebook.codewords)
        assert torch.equal(model.codebook.bilinear, before.codebook.bilinear)
    assert not torch.equal(start.encoder.attentions[0].query, end.encoder.attentions[0].query)
    assert not torch.equal(start.encoder.position_embedding.weight, end.encoder.position_embedding.weight)


def test_without_epochs_metrics_are_all(transformer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "migrated.pth"
    arguments = ["migrate", f"--checkpoint={transformer}", f"--output={out}", f"--checkpoint_dir={tmp_path}"]
    assert main([*arguments, "--histogram_decay=0"]) == 0
    assert "LISABase without further training: hit@5 0." in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out]
    assert main([*arguments, "--histogram_decay=0", "--overwrite"]) == 0
    config, model, *_ = load_data_and_model(out)
    assert (config["model"], config["histogram_decay"], config["n_codewords"]) == ("LISABase", 0, 8)
    assert model.encoder.attentions[0].decay == 0


def test_what_cannot_migrate_is_named(transformer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_layers = {"quantize_items": True, "n_layers": 2}
    for checkpoint, arguments, message in (
        (train(tmp_path), [], "is a Transformer trained without --quantize_items=True: give a checkpoint of a run"),
        (train(tmp_path, "LISABase"), [], "is a LISABase: give a checkpoint of a run"),
        (train(tmp_path, **two_layers), [], "has n_layers 2"),
        (transformer, ["--output=x.zip"], "output is 'x.zip', it must end in .pth"),
        (transformer, ["--n_codewords=9"], "n_codewords is 9, it must be that of the checkpoint, 8: leave it out"),
        (transformer, ["--block=gated"], "block is gated: only the codebooks of a model with block post_norm migrate"),
        *(
            (
                transformer,
                [f"--{key}=x"],
                f"{key} is of the training after the migration: give epochs, too, or leave it",
            )
            for key in ("result_file", "per_user_file", "resume")
        ),
        (transformer, ["--epoch=3"], "unknown key 'epoch' (command line). Did you mean 'epochs'?"),
    ):
        output = [] if any("--output" in argument for argument in arguments) else [f"--output={tmp_path / 'x.pth'}"]
        assert main(["migrate", f"--checkpoint={checkpoint}", *output, *arguments]) == 2
        assert message in capsys.readouterr().err
    assert load_data_and_model(transformer)[0]["model"] == "Transformer"


def test_a_quantised_transformer_is_exported_as_codes(transformer: Path) -> None:
    bundle, _ = bundle_of_checkpoint(transformer)
    assert bundle.code_tables() == [(2, 8)]
    assert len(Recommender(bundle).recommend([["i1", "i2"]], 3)[0].items) == 3
