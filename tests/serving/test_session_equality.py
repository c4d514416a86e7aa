"""A session equals its whole history, worked out anew in float64 from what an export holds, at step 1 to 100,000."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, one_hot, softplus

from benchmarks import references
from recbole_lisa.layers.item_store import DenseItems
from recbole_lisa.saved import bundle_of
from recbole_lisa.serving import Bundle, Recommender, Session
from recbole_lisa.serving.bundle import ITEM_CODEWORDS
from tests.model.build import build_model
from tests.serving.build import IDS, N_ITEMS

CHECKPOINTS = (1, 10, 1_000, 100_000)
SINGLE_STEPS = 8
"""Before a checkpoint items come one by one; those before them come with the start of a session."""
EQUAL = {"rtol": 0.0, "atol": 1e-5}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "LISABase": ("LISABase", {"histogram_decay": 0}),
    "LISABase, decay": ("LISABase", {}),
    "LISABase, slow decay": ("LISABase", {"histogram_decay": 1e-4}),
    "LISABase, decay in time": ("LISABase", {"histogram_decay": "time"}),
    "LISASoft": ("LISASoft", {"histogram_decay": 0}),
    "LISASoft, embeddings": ("LISASoft", {"item_input": "embeddings"}),
    "LISASoft, cosine": ("LISASoft", {"score": "cosine"}),
    "LISASoft, small items": ("LISASoft", {"item_init_std": 0.02, "scale_embedding": False}),
    "LISASoft, learnable decay": ("LISASoft", {"histogram_decay": "learnable"}),
}


class Slow(NamedTuple):
    """Histograms (B, W) and hidden states (D,) after each checkpoint, in float64."""

    histograms: list[Tensor]
    hidden: list[Tensor]


@pytest.mark.parametrize("form", FORMS)
def test_a_session_equals_its_whole_history_at_any_step(form: str) -> None:
    name, settings = FORMS[form]
    bundle = bundle_of(build_model(name, n_items=N_ITEMS, **settings).eval(), IDS[1:], "small")
    recommender, draw = Recommender(bundle), np.random.default_rng(5)
    items = draw.integers(0, N_ITEMS - 1, max(CHECKPOINTS))
    times = draw.exponential(bundle.time_unit, len(items)).cumsum()
    expected = recomputed(bundle, items, times)
    for n, length in enumerate(CHECKPOINTS):
        session = session_of(recommender, items[:length], times[:length])
        assert len(session) == length
        # A histogram without decay counts to the length: its shares are what attention reads.
        found, whole = session.batch.histograms[0][0], expected.histograms[n]
        torch.testing.assert_close(found / whole.sum(), whole / whole.sum(), **EQUAL)
        torch.testing.assert_close(session.batch.hidden[0].double(), expected.hidden[n], **EQUAL)


def session_of(recommender: Recommender, items: np.ndarray, times: np.ndarray) -> Session:
    """A session after all items, the newest one by one; halfway through these it is saved and loaded, to the bit."""
    start = max(len(items) - SINGLE_STEPS, 0)
    raw, saved_at = [IDS[1 + n] for n in items], (start + len(items)) // 2
    session = recommender.start(raw[:start], times[:start].tolist())
    loaded = session
    for n in range(start, len(items)):
        if n == saved_at:
            loaded = recommender.from_bytes(session.to_bytes())
        session.update(raw[n], times[n])
        if loaded is not session:
            loaded.update(raw[n], times[n])
    assert loaded is not session
    assert loaded.to_bytes() == session.to_bytes()
    return loaded


def recomputed(bundle: Bundle, items: np.ndarray, times: np.ndarray) -> Slow:
    """The paper's formulas, the histogram as its definition has it: each item's key, faded by the steps since."""
    weights = {key: value.double() for key, value in bundle.weights.items()}
    codewords, codes, keys, stream = quantized(bundle, weights)
    gaps = torch.from_numpy(np.diff(times, prepend=times[:1])) / bundle.time_unit
    elapsed = decay_of(bundle, weights, gaps).cumsum(0)
    positions = weights["position_embedding.weight"]
    found = Slow([], [])
    for length in CHECKPOINTS:
        item, faded = items[length - 1], (elapsed[:length] - elapsed[length - 1]).exp()
        histogram = torch.einsum("l,lbw->bw", faded, keys[items[:length]])
        attended = read(histogram, codes[item], codewords, weights)
        h = stream[item] + positions[min(length, len(positions)) - 1]
        found.histograms.append(histogram)
        found.hidden.append(after_block(h, attended, weights, bundle.encoder["layer_norm_eps"]))
    return found


def quantized(bundle: Bundle, weights: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codewords (B, W, D), and of each item its codes (B,), its keys (B, W) and what enters of it (D,)."""
    if not isinstance(bundle.items, DenseItems):
        codewords, codes = bundle.items.history.codewords.double(), bundle.items.history.codes.long()
        keys = one_hot(codes, codewords.shape[1]).double()
        return codewords, codes, keys, torch.einsum("vbw,bwd->vd", keys, codewords)
    codewords, settings = weights[ITEM_CODEWORDS], bundle.encoder["layers"][0][1]
    vectors = bundle.items.targets.vectors.double()
    codes, keys, stream = references.quantize(
        vectors,
        codewords,
        bilinear=weights["attentions.0.codebook.bilinear"],
        similarity=settings["similarity"],
        temperature=settings["temperature"],
        residual=settings["encoding"] == "residual",
    )
    return codewords, codes, keys, vectors if bundle.items.item_input == "embeddings" else stream


def decay_of(bundle: Bundle, weights: dict[str, Tensor], gaps: Tensor) -> Tensor:
    """Decay of each step (L,)."""
    decay = bundle.encoder["layers"][0][1]["decay"]
    if not isinstance(decay, str):
        return torch.full_like(gaps, decay)
    rate = softplus(weights["attentions.0.raw_decay"])
    return rate * gaps if decay == "time" else rate.expand_as(gaps)


def read(histogram: Tensor, codes: Tensor, codewords: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """What one query attends to in a histogram (B, W): (D,)."""
    total = torch.zeros(codewords.shape[2], dtype=torch.float64)
    for b, words in enumerate(codewords):
        query, key, value = (weights[f"attentions.0.{name}"][b] for name in ("query", "key", "value"))
        scores = (words @ key) @ (words[codes[b]] @ query) / math.sqrt(codewords.shape[2])
        share = histogram[b] * scores.exp()
        total += (share / share.sum()) @ (words @ value)
    return total


def after_block(h: Tensor, attended: Tensor, weights: dict[str, Tensor], eps: float) -> Tensor:
    """The rest of the layer: (D,)."""
    block = {name.removeprefix("blocks.0."): weight for name, weight in weights.items() if name.startswith("blocks.")}

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape, block[f"{name}.weight"], block[f"{name}.bias"], eps)

    h = norm("attention_norm", h + attended)
    inner = (block["feed_forward.0.weight"] @ h + block["feed_forward.0.bias"]).relu()
    return norm("feed_forward_norm", h + block["feed_forward.3.weight"] @ inner + block["feed_forward.3.bias"])
