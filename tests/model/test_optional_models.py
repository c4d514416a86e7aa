"""A model that needs an extra is known everywhere; where it cannot run it says so before data is read."""

import pytest
import torch
from pytest import CaptureFixture, MonkeyPatch

from benchmarks.references import gated_recurrence
from recbole_lisa.attention import gla
from recbole_lisa.cli.main import main
from recbole_lisa.config.registry import OPTIONAL_MODELS, model_class
from recbole_lisa.errors import UsageError
from tests.model.build import build_model, last_position_batch, loss_value, random_batch

RUN = ["--model=GLATransformer", "--dataset=no-such-data"]


@pytest.mark.parametrize("name", OPTIONAL_MODELS)
def test_an_optional_model_is_known(name: str) -> None:
    assert model_class(name).__name__ == name
    with pytest.raises(UsageError, match=f"unknown model 'GLATransformers': .*Did you mean '{name}'"):
        model_class("GLATransformers")


def test_gla_stops_in_one_line_where_a_part_is_missing(capsys: CaptureFixture[str], monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(gla, "find_spec", lambda name: None)
    assert main(RUN) == 2
    assert main([*RUN, "--use_gpu=False"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert errors[0].startswith("error: GLATransformer cannot run: flash-linear-attention is not installed")
    assert errors[1].startswith("error: GLATransformer cannot run: use_gpu is False; LinearTransformer runs everywhere")


def test_gla_trains_and_scores_with_a_plain_loop_as_its_kernel(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(gla, "load_recurrence", lambda: gated_recurrence)
    model = build_model("GLATransformer", n_heads=2)
    batch = random_batch(4, 9, 30)
    for kind in (batch, last_position_batch(batch)):
        model.zero_grad()
        loss_value(model.calculate_loss(kind)).backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert model.eval().full_sort_predict(batch).shape == (4, 30)
