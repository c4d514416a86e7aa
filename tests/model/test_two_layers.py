"""LISA with several layers: each quantises its own input with its own codebooks, in every mode."""

from typing import Any

import pytest
import torch
from recbole.data.interaction import Interaction

from recbole_lisa.layers.sequence_encoder import Sequences
from tests.helpers import assert_close
from tests.model.build import build_model, last_position_batch, loss_value, random_batch

LISA_MODELS = ("LISABase", "LISASoft", "LISAMini")
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "no decay": {"histogram_decay": 0},
    "learnable": {"histogram_decay": "learnable"},
    "time": {"histogram_decay": "time"},
    "bidirectional": {"histogram_decay": 0, "bidirectional": True},
    "paper": {
        "codebook_projection": "shared",
        "codebook_encoding": "parallel",
        "codebook_similarity": "dot",
        "histogram_decay": 0,
    },
    "euclidean": {"codebook_similarity": "euclidean"},
    "three layers": {"n_layers": 3},
}
every_model = pytest.mark.parametrize("name", LISA_MODELS)
every_mode = pytest.mark.parametrize("mode", MODES)


def build(name: str, mode: str, **settings: Any) -> Any:
    return build_model(name, **{"n_layers": 2} | MODES[mode] | settings)


@every_model
def test_every_layer_has_codebooks_of_its_own(name: str) -> None:
    model = build(name, "three layers")
    books = [attention.codebook.codewords for attention in model.encoder.attentions]
    assert len({id(book) for book in books}) == 3
    assert model.codebook is model.encoder.attentions[0].codebook


@every_model
@every_mode
def test_every_layer_learns_in_both_supervisions(name: str, mode: str) -> None:
    model, batch = build(name, mode), random_batch(6, 9, 30)
    kinds = [last_position_batch(batch)] if mode == "bidirectional" else [batch, last_position_batch(batch)]
    for kind in kinds:
        model.zero_grad()
        loss_value(model.calculate_loss(kind)).backward()
        for parameter_name, parameter in model.named_parameters():
            assert parameter.grad is not None, f"{parameter_name} has no gradient"
            assert torch.isfinite(parameter.grad).all()
        for layer in range(len(model.encoder.attentions)):
            for part in ("query", "value", "codebook.codewords"):
                gradient = dict(model.named_parameters())[f"encoder.attentions.{layer}.{part}"].grad
                assert gradient.abs().sum() > 0, f"{part} of layer {layer} learns nothing"


@every_model
@every_mode
@torch.no_grad()
def test_the_last_position_is_that_of_the_whole_sequence(name: str, mode: str) -> None:
    model, batch = build(name, mode).double().eval(), random_batch(6, 13, 30)
    items, lengths, gaps = batch["item_id_list"], batch["item_length"], batch["time_gap_list"].double()
    history = Sequences(items, torch.arange(13) < lengths.unsqueeze(1), gaps)
    whole = model.encoder.encode(history, model.item_view()).hidden
    assert_close(model.encoder.encode_last(history, model.item_view()).hidden, whole[torch.arange(6), lengths - 1])


@every_model
@every_mode
@torch.no_grad()
def test_scores_do_not_depend_on_padding_or_neighbours(name: str, mode: str) -> None:
    model, batch = build(name, mode).double().eval(), random_batch(4, 11, 30)
    batch["time_gap_list"] = batch["time_gap_list"].double()
    scores = model.full_sort_predict(Interaction(batch))
    for i in range(4):
        length = int(batch["item_length"][i])
        alone = {name: batch[name][i : i + 1, :length] for name in ("item_id_list", "time_gap_list")}
        assert_close(model.full_sort_predict(alone | {"item_length": torch.tensor([length])})[0], scores[i])


@every_model
def test_the_second_layer_reads_what_the_first_wrote(name: str) -> None:
    model, batch = build(name, "default").eval(), Interaction(random_batch(4, 11, 30))
    with torch.no_grad():
        before = model.full_sort_predict(batch)
        model.encoder.attentions[1].codebook.codewords.neg_()
        assert not torch.allclose(model.full_sort_predict(batch), before)
