"""What the rivals' models add to their attention: losses, warnings, state; and RecBole's own rivals in our ranking."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from recbole.model.sequential_recommender import GRU4Rec, SASRec

from recbole_lisa.attention.clustered import NO_STRICT_FORM
from recbole_lisa.training.evaluation import evaluate
from tests.model.build import build_model, last_position_batch, loss_value, random_batch
from tests.tiny import tiny_config, tiny_trainer

CHOSEN = "causality 'strict' chooses from the past only"


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
    ("name", "safe", "published", "message"),
    [
        ("Reformer", {"causality": "strict"}, {"causality": "published"}, f"sees the future; {CHOSEN}"),
        ("RoutingTransformer", {"causality": "strict"}, {"causality": "published"}, f"sees the future; {CHOSEN}"),
        ("ClusteredTransformer", {"bidirectional": True}, {}, f"sees the future; {NO_STRICT_FORM}"),
        ("Linformer", {"supervision": "last_position"}, {}, "Linformer is bidirectional: where every position is"),
        ("Transformer", {}, {"bidirectional": True}, "Transformer is bidirectional: where every position is trained"),
    ],
)
def test_a_form_that_sees_the_future_warns_where_every_position_is_trained(
    name: str, safe: dict[str, Any], published: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        build_model(name, **{"supervision": "all_positions"} | safe)
        build_model(name, **published, supervision="last_position")
        build_model(name, **published)  # RecBole's own rows
        assert message not in caplog.text
        build_model(name, **published, supervision="all_positions")
    assert caplog.text.count(message) == 1


@pytest.mark.parametrize(
    ("model", "settings"),
    [(SASRec, {"hidden_size": 8, "inner_size": 8, "n_heads": 1}), (GRU4Rec, {"hidden_size": 8, "embedding_size": 8})],
)
def test_recboles_models_are_ranked_by_their_own_scores(tmp_path: Path, model: Any, settings: dict[str, Any]) -> None:
    """With the items that a user has had, and without them, against ranks counted one user at a time."""
    settings |= {"loss_type": "CE", "supervision": "last_position", "MAX_ITEM_LIST_LENGTH": 12}
    config = tiny_config(tmp_path, model=model, eval_seen="both", epochs=2, topk=[3], **settings)
    trainer, (train, valid, test) = tiny_trainer(config)
    trainer.fit(train, valid, saved=False, show_progress=False)
    metrics = evaluate(trainer.model.eval(), test, config)
    hits: dict[str, list[bool]] = {"hit@3": [], "hit@3_masked": []}
    for number in range(len(test)):
        (batch,) = test.batches([number])
        with torch.no_grad():
            scores = trainer.model.full_sort_predict(batch.interaction)
        inputs = batch.interaction
        for row, target, seen in zip(scores, inputs["item_id"], inputs["item_id_list"], strict=True):
            row[0] = -torch.inf
            hits["hit@3"].append(bool((row > row[target]).sum() < 3))
            others = torch.tensor([i for i in range(len(row)) if i not in seen.tolist() or i == target])
            hits["hit@3_masked"].append(bool((row[others] > row[target]).sum() < 3))
    assert len(hits["hit@3"]) == 24
    for name, values in hits.items():
        assert metrics[name] == pytest.approx(sum(values) / len(values), abs=1e-4)
