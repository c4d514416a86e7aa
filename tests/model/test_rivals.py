"""What the rivals' models add to their attention: losses, warnings, state."""

import logging

import pytest
import torch

from recbole_lisa.attention.clustered import NO_STRICT_FORM
from tests.model.build import build_model, last_position_batch, loss_value, random_batch


def test_the_commitment_of_routing_reaches_the_loss_in_both_supervisions() -> None:
    torch.manual_seed(3)
    model = build_model("RoutingTransformer", window_size=4, n_layers=2, hidden_dropout_prob=0.0, commitment_weight=0.5)
    batch = random_batch(6, 9, 30)
    loss_value(model.calculate_loss(last_position_batch(batch))).backward()
    assert model.encoder.attentions[0].centroids_are_set
    for kind in (batch, last_position_batch(batch)):
        model.eval().commitment_weight = 0.5
        main, extra = model.calculate_loss(kind)
        history = model.history(kind)
        inputs = model.encoder.layer_inputs(history, model.item_view())
        layers = zip(model.encoder.attentions, inputs, strict=True)
        expected = sum(layer.commitment(h, history.valid) for layer, h in layers)
        torch.testing.assert_close(extra, 0.5 * expected)
        model.commitment_weight = 0.0
        assert torch.equal(model.calculate_loss(kind), main)


@pytest.mark.parametrize(
    ("name", "safe", "remedy"),
    [
        ("Reformer", {"causality": "strict"}, "causality 'strict' chooses from the past only"),
        ("RoutingTransformer", {"causality": "strict"}, "causality 'strict' chooses from the past only"),
        ("ClusteredTransformer", {"bidirectional": True}, NO_STRICT_FORM),
    ],
)
def test_a_published_form_warns_that_it_sees_the_future(
    name: str, safe: dict[str, object], remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        build_model(name, **safe)
        assert "sees the future" not in caplog.text
        build_model(name, causality="published")
    assert caplog.text.count(f"sees the future; {remedy}") == 1
