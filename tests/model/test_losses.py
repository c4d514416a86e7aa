import math
from typing import Any

import pytest
import torch
from pytest import MonkeyPatch

from recbole_lisa.model import losses
from recbole_lisa.ops import cross_entropy
from tests.helpers import assert_close, assert_close_with_gradients, run_python
from tests.model.build import build_model, last_position_batch, loss_value, random_batch

POSITIVE, NEGATIVE = torch.tensor([1.0, -0.5]), torch.tensor([[0.0, 2.0], [1.0, -1.0]])
POSITIVES, NEGATIVES = POSITIVE.tolist(), NEGATIVE.flatten().tolist()


def log_sigmoid(x: float) -> float:
    return -math.log(1 + math.exp(-x))


def test_losses_of_sigmoids_by_hand() -> None:
    positives, negatives = sum(map(log_sigmoid, POSITIVES)), sum(log_sigmoid(-x) for x in NEGATIVES)
    bce = losses.binary_cross_entropy(POSITIVE, NEGATIVE).item()
    assert bce == pytest.approx(-(positives + negatives) / 2, rel=1e-6)
    pairs = sum(map(log_sigmoid, (1.0 - 0.0, 1.0 - 2.0, -0.5 - 1.0, -0.5 + 1.0)))
    assert losses.bpr(POSITIVE, NEGATIVE).item() == pytest.approx(-pairs / 4, rel=1e-6)
    rate = 2 / 20
    beta = rate * (0.5 * (1 - 1 / rate) + 1 / rate)
    gbce = losses.generalised_bce(POSITIVE, NEGATIVE, n_items=21, t=0.5).item()
    assert gbce == pytest.approx(-(beta * positives + negatives) / 2 / 3, rel=1e-6)
    plain = losses.generalised_bce(POSITIVE, NEGATIVE, n_items=21, t=0.0).item()
    assert plain == pytest.approx(bce / 3, rel=1e-6)


def test_sampled_softmax_by_hand_with_and_without_correction() -> None:
    def expected(p: list[float], n: list[list[float]]) -> float:
        rows = [-math.log(math.exp(s) / (math.exp(s) + sum(map(math.exp, ns)))) for s, ns in zip(p, n, strict=True)]
        return sum(rows) / 2

    scores = torch.cat([POSITIVE.unsqueeze(1), NEGATIVE], dim=1)
    plain = losses.sampled_softmax(scores, None)
    assert plain.item() == pytest.approx(expected(POSITIVE.tolist(), NEGATIVE.tolist()), rel=1e-6)
    q_p, q_n = torch.tensor([0.5, 0.1]), torch.tensor([[0.25, 0.5], [0.1, 0.3]])
    corrected = losses.sampled_softmax(scores, torch.cat([q_p.unsqueeze(1), q_n], dim=1).log())
    by_hand = expected((POSITIVE - q_p.log()).tolist(), (NEGATIVE - q_n.log()).tolist())
    assert corrected.item() == pytest.approx(by_hand, rel=1e-6)


def test_sampling_probability_is_the_powered_share() -> None:
    log_q = losses.log_sampling_probability(torch.tensor([0, 1, 4, 9]), alpha=0.5)
    assert_close(log_q[1:].exp(), torch.tensor([1.0, 2.0, 3.0]) / 6)


@pytest.mark.parametrize("n_shared", [0, 2])
def test_popularity_sampling_changes_ssm_only(n_shared: int) -> None:
    popular = {"distribution": "popularity", "sample_num": 2, "alpha": 1.0}
    batch = random_batch(4, 9, 30, n_negatives=2)
    for loss_type, differs in (("SSM", True), ("BCE", False)):
        values = []
        for sampling in (popular, popular | {"distribution": "uniform"}):
            torch.manual_seed(1)
            settings = {"train_neg_sample_args": sampling, "shared_negatives": n_shared}
            model = build_model("Transformer", loss_type=loss_type, **settings)
            values.append(loss_value(model.calculate_loss(batch)).item())
        assert (values[0] != values[1]) is differs


TARGET = torch.tensor([4, 4, 9, 7, 5, 11, 3])
WINDOW = {"seen": torch.tensor([[3, 4, 4, 9], [5, 0, 0, 0]]), "group": torch.tensor([0, 0, 0, 0, 1, 1, 1])}


@pytest.mark.oracle
@pytest.mark.parametrize("left_out", [{}, WINDOW], ids=["nothing", "window"])
@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_blockwise_cross_entropy_equals_the_plain_one(rows: int, left_out: Any, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "BLOCK_ELEMENTS", rows * 11)
    hidden, table = torch.randn(7, 5, requires_grad=True), torch.randn(12, 5, requires_grad=True)
    fast = losses.full_cross_entropy(hidden, table, TARGET, **left_out)
    logits = hidden @ table.t()
    for row, group in enumerate(WINDOW["group"]):
        out = {0, *(WINDOW["seen"][group].tolist() if left_out else ())} - {int(TARGET[row])}
        logits[row, sorted(out)] = -torch.inf
    assert_close_with_gradients(fast, torch.nn.functional.cross_entropy(logits, TARGET), [hidden, table])


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("blocks", [(1, 1), (3, 5), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_cross_entropy_from_codes(dtype: torch.dtype, blocks: Any, scale: float, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(cross_entropy.BLOCK, "cpu", blocks)
    hidden = (scale * torch.randn(7, 5, dtype=torch.float64)).requires_grad_()
    codewords = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    codes = torch.randint(4, (12, 3)).to(dtype)
    rows, slots = torch.randn(1, 5, 5, dtype=torch.float64, requires_grad=True), torch.randint(5, (12, 1))
    table = sum(codewords[b, codes[:, b].long()] for b in range(3)) + rows[0, slots[:, 0]]
    for left_out in ({}, WINDOW):
        ours = losses.full_cross_entropy(hidden, [(codes, codewords), (slots, rows)], TARGET, **left_out)
        expected = losses.full_cross_entropy(hidden, table, TARGET, **left_out)
        assert_close_with_gradients(ours, expected, [hidden, codewords, rows])


@pytest.mark.parametrize("everywhere", [True, False])
def test_seen_items_are_no_negatives_of_their_window(everywhere: bool) -> None:
    batch = random_batch(5, 7, 20)
    batch = batch if everywhere else last_position_batch(batch)
    model = build_model("Transformer", loss_type="CE", seen_negatives=False, hidden_dropout_prob=0.0)
    model.load_state_dict({name: x * 3 for name, x in model.state_dict().items()})
    history = model.history(batch)
    encode = model.encoder.encode_non_padding if everywhere else model.encoder.encode_last
    hidden = encode(history, model.item_view()).hidden  # (M, D)
    window, _ = history.valid.nonzero().t() if everywhere else (torch.arange(5), None)
    target = batch["target_id_list"][history.valid] if everywhere else batch["item_id"]
    logits = hidden @ model.item_view().target.t()  # (M, V)
    own = logits.gather(1, target.unsqueeze(1))
    logits = logits.scatter(1, batch["item_id_list"][window], -torch.inf).scatter(1, target.unsqueeze(1), own)
    logits[:, 0] = -torch.inf
    expected = torch.nn.functional.cross_entropy(logits, target)
    torch.testing.assert_close(loss_value(model.calculate_loss(batch)), expected)


@pytest.mark.oracle
@pytest.mark.parametrize("block", [1, 40, 2**18])
@pytest.mark.parametrize("name", ["SSM", "SSM with log q", "BCE", "gBCE"])
def test_shared_negatives_equal_equal_ones_at_every_position(name: str, block: int, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "SHARED_SCORES", block)
    hidden = torch.randn(13, 5, dtype=torch.float64, requires_grad=True)
    table = torch.randn(12, 5, dtype=torch.float64, requires_grad=True)
    target = torch.arange(13) % 12
    negative = torch.tensor([3, 7, 7, 2, 11, 3, 3, 5])
    log_q = torch.rand(12, dtype=torch.float64).log() if name == "SSM with log q" else None
    pairs = torch.cat([target.unsqueeze(1), negative.expand(13, -1)], dim=1)
    scores = (hidden.unsqueeze(1) * table[pairs]).sum(-1)
    own = pairs[:, 1:] == target.unsqueeze(1)
    assert own.sum(dim=1).unique().tolist() == [0, 1, 2, 3]
    scores = torch.cat([scores[:, :1], scores[:, 1:].masked_fill(own, -torch.inf)], dim=1)
    settings = {"n_items": 11, "gbce_t": 0.5}
    loss = name.split()[0]
    plain = losses.sampled_loss(loss, scores, log_q=None if log_q is None else log_q[pairs], **settings)
    fast = losses.shared_negatives_loss(loss, hidden, table, target, negative, log_q=log_q, **settings)
    assert_close_with_gradients(fast, plain, [hidden, table])


@pytest.mark.parametrize("name", ["SSM", "BCE"])
def test_a_position_whose_only_negative_is_its_target_has_none(name: str) -> None:
    hidden, table = torch.randn(2, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    target = torch.tensor([1, 1])
    loss = losses.shared_negatives_loss(name, hidden, table, target, target, n_items=2, gbce_t=0.5, log_q=None)
    positive = (hidden * table[target]).sum(-1)
    expected = {"SSM": 0 * positive.sum(), "BCE": torch.nn.functional.softplus(-positive).mean()}[name]
    assert_close_with_gradients(loss, expected, [hidden, table])


@pytest.mark.parametrize("name", ["Transformer", "LISABase", "LISASoft", "LISAMini"])
@pytest.mark.parametrize("loss_type", ["SSM", "gBCE", "BCE"])
def test_a_model_with_shared_negatives_equals_the_same_negatives_at_every_position(name: str, loss_type: str) -> None:
    batch = random_batch(6, 9, 30, n_negatives=4)
    batch["target_id_list"] = batch["target_id_list"].clamp_max(20)
    shared = torch.tensor([22, 25, 28, 22])  # none is a target
    batch["neg_target_id_list"] = shared.expand(6, 9, -1) * (batch["target_id_list"] > 0).unsqueeze(-1)
    batch["neg_item_id"] = shared.expand(6, -1)
    values = []
    for n_shared in (0, 4):
        torch.manual_seed(3)
        model = build_model(name, loss_type=loss_type, shared_negatives=n_shared, hidden_dropout_prob=0.0)
        loss = loss_value(model.calculate_loss(batch))
        loss.backward()
        values.append([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*values, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("loss_type", ["SSM", "gBCE"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shared_negatives_under_autocast_are_close(loss_type: str, dtype: torch.dtype) -> None:
    batch, values = random_batch(6, 9, 30, n_negatives=4), []
    model = build_model("Transformer", loss_type=loss_type, shared_negatives=4, hidden_dropout_prob=0.0)
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            loss = loss_value(model.calculate_loss(batch))
        loss.backward()
        assert loss.dtype == torch.float32
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        values.append(loss.item())
    assert values[1] == pytest.approx(values[0], rel=2e-2)


def test_shared_negatives_of_recboles_own_loaders_are_refused() -> None:
    batch = random_batch(6, 9, 30) | {"neg_item_id": torch.ones(6, dtype=torch.int64)}
    with pytest.raises(ValueError, match="shared_negatives needs the loaders of this package"):
        build_model("Transformer", shared_negatives=4).calculate_loss(batch)


MEMORY_SCRIPT = """
import psutil, torch
from recbole_lisa.environment import peak_memory_mb
from recbole_lisa.model.losses import full_cross_entropy
torch.set_num_threads(1)
hidden = torch.randn(2_048, 16, requires_grad=True)
table = torch.randn(100_000, 16, requires_grad=True)
target = torch.randint(1, 100_000, (2_048,))
before = psutil.Process().memory_info().rss / 2**20
full_cross_entropy(hidden, table, target).backward()
print(peak_memory_mb() - before)
"""


def test_cross_entropy_over_100000_items_stays_in_bounded_memory() -> None:
    # The (2048, 100000) logits alone would take 820 MB.
    assert float(run_python(MEMORY_SCRIPT)[0]) < 120
