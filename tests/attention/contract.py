"""What every attention mechanism must do: subclass AttentionContract, name the mechanism, inherit every check."""

import copy
import json
import math
import re
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from recbole_lisa.attention import (
    Attention,
    ReformerAttention,
    RoutingAttention,
    build_attention,
    describe_attention,
)
from tests.helpers import assert_close

D = 16
LENGTHS = [1, 2, 7, 33, 63]


class AttentionContract:
    """All mechanisms are built in eval mode with dropout 0; `mechanism` and `settings` go to build_attention."""

    mechanism: ClassVar[str]
    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def attention(self) -> Attention:
        return build_attention(self.mechanism, hidden_size=D, max_length=128, **self.settings).eval()

    def call(self, attention: Attention, x: Tensor, valid: Tensor) -> Tensor:
        return attention(x, valid)

    @pytest.mark.parametrize("length", LENGTHS)
    def test_shape_dtype_and_finite_gradients(self, attention: Attention, length: int) -> None:
        x, valid = torch.randn(3, length, D, requires_grad=True), ragged(3, length)
        out = self.call(attention.train(), x, valid)
        assert out.shape == x.shape
        assert out.dtype == x.dtype
        out.square().sum().backward()
        grads = {"x": x.grad} | {name: p.grad for name, p in attention.named_parameters()}
        for name, grad in grads.items():
            assert grad is not None, f"{name} has no gradient"
            assert torch.isfinite(grad).all(), f"gradient of {name} is not finite"

    @pytest.mark.parametrize("length", [7, 33, 127])
    def test_causality_by_perturbation(self, attention: Attention, length: int, request: pytest.FixtureRequest) -> None:
        only_causal(attention, request)
        x, valid = torch.randn(2, length, D), torch.ones(2, length, dtype=torch.bool)
        before = self.call(attention, x, valid)
        for t in range(length - 1):
            only_next, all_later = x.clone(), x.clone()
            only_next[:, t + 1] = torch.randn(2, D) * 3
            all_later[:, t + 1 :] = torch.randn(2, length - t - 1, D) * 3
            for changed in (only_next, all_later):
                assert_close(self.call(attention, changed, valid)[:, : t + 1], before[:, : t + 1])

    def test_bidirectional_attention_sees_the_future(self, attention: Attention) -> None:
        if attention.is_causal:
            pytest.skip("causal by declaration")
        x, valid = torch.randn(1, 9, D), torch.ones(1, 9, dtype=torch.bool)
        changed = x.clone()
        changed[:, -1] = torch.randn(D) * 3
        assert not torch.allclose(self.call(attention, changed, valid)[:, 0], self.call(attention, x, valid)[:, 0])

    @pytest.mark.parametrize("length", [1, 7, 33])
    def test_content_of_padding_changes_nothing(self, attention: Attention, length: int) -> None:
        x, valid = torch.randn(4, length, D), ragged(4, length)
        padded = torch.cat([x, torch.randn(4, 15, D) * 5], dim=1)
        padded = torch.where(pad(valid, (0, 15)).unsqueeze(-1), padded, torch.randn_like(padded) * 5)
        out = self.call(attention, padded, pad(valid, (0, 15)))
        assert_close(out[:, :length], self.call(attention, x, valid))
        assert (out[:, length:] == 0).all()

    @pytest.mark.parametrize("content", [1e6, 1e30, float("inf"), float("nan")])
    def test_padding_may_hold_anything(self, attention: Attention, content: float) -> None:
        valid, weight = ragged(4, 33), torch.randn(4, 33, D)
        kept = valid.unsqueeze(-1)
        clean = torch.where(kept, torch.randn(4, 33, D), 0.0)
        results = []
        for x in (clean, torch.where(kept, clean, content * torch.ones(D).cumsum(0))):
            module, x = copy.deepcopy(attention).train(), x.requires_grad_()
            out, last = self.call(module, x, valid), module.last(x, valid)
            ((out * weight).sum() + last.square().sum()).backward()
            assert (out[~valid] == 0).all()
            state = [buffer.double() for buffer in module.buffers()]
            results.append([out, last, x.grad, *(p.grad for p in module.parameters()), *state])
        for dirty, expected in zip(*results[::-1], strict=True):
            assert_close(dirty, expected)

    @pytest.mark.parametrize("scale", [1e4, 1e8])
    def test_large_later_items_leave_no_rounding(
        self, attention: Attention, scale: float, request: pytest.FixtureRequest
    ) -> None:
        only_causal(attention, request)
        x, valid = torch.randn(2, 100, D), torch.ones(2, 100, dtype=torch.bool)
        before = self.call(attention, x, valid)
        for t in (0, 1, 30, 63, 64, 98):
            changed = x.clone()
            changed[:, t + 1 :] = torch.randn(2, 99 - t, D) * scale
            assert_close(self.call(attention, changed, valid)[:, : t + 1], before[:, : t + 1])

    @pytest.mark.parametrize("shape", [(3, 0), (0, 7), (0, 0)], ids=["L0", "N0", "N0-L0"])
    def test_no_items_or_no_rows_give_no_outputs(self, attention: Attention, shape: tuple[int, int]) -> None:
        x, valid = torch.randn(*shape, D, requires_grad=True), torch.ones(*shape, dtype=torch.bool)
        for module in (attention.eval(), attention.train()):
            assert self.call(module, x, valid).shape == (*shape, D)
            assert torch.equal(module.last(x, valid), torch.zeros(shape[0], D))
            assert module.non_padding(x, valid).shape == (0, D)

    def test_inputs_of_another_shape_or_type_are_named(self, attention: Attention) -> None:
        x, valid = torch.randn(2, 5, D), torch.ones(2, 5, dtype=torch.bool)
        for call in (attention.forward, attention.last, attention.non_padding):
            for wrong_x, wrong_valid, message in (
                (x[0], valid[0], "x must be (N, L, 16), got (5, 16)"),
                (x[..., 1:], valid, "x must be (N, L, 16), got (2, 5, 15)"),
                (x, valid.long(), "valid must be bool (2, 5), got torch.int64 (2, 5)"),
                (x, valid[:, 1:], "valid must be bool (2, 5), got torch.bool (2, 4)"),
                (x, valid[0], "valid must be bool (2, 5), got torch.bool (5,)"),
                (x.double(), valid, "x is torch.float64, but the parameters are torch.float32"),
            ):
                with pytest.raises(ValueError, match=re.escape(message)):
                    call(wrong_x, wrong_valid)

    def test_non_padding_are_those_positions_of_forward(self, attention: Attention) -> None:
        x, valid = torch.randn(4, 33, D), ragged(4, 33)
        assert_close(attention.non_padding(x, valid), self.call(attention, x, valid)[valid])

    @pytest.mark.parametrize("length", [7, 33])
    def test_prefixes_are_consistent(self, attention: Attention, length: int, request: pytest.FixtureRequest) -> None:
        only_causal(attention, request)
        x, valid = torch.randn(2, length, D), torch.ones(2, length, dtype=torch.bool)
        whole = self.call(attention, x, valid)
        for t in range(1, length):
            assert_close(self.call(attention, x[:, :t], valid[:, :t]), whole[:, :t])

    def test_rows_of_a_batch_do_not_meet(self, attention: Attention) -> None:
        x, valid = torch.randn(5, 33, D), ragged(5, 33)
        together = self.call(attention, x, valid)
        for i in range(5):
            length = max(int(valid[i].sum()), 1)
            alone = self.call(attention, x[i : i + 1, :length], valid[i : i + 1, :length])
            assert_close(together[i : i + 1, :length], alone)

    def test_a_row_of_padding_is_zero_and_has_finite_gradients(self, attention: Attention) -> None:
        x, valid = torch.randn(2, 6, D, requires_grad=True), torch.zeros(2, 6, dtype=torch.bool)
        valid[0, :3] = True
        out = self.call(attention, x, valid)
        assert (out[1] == 0).all()
        assert (attention.last(x, valid)[1] == 0).all()
        out.sum().backward()
        assert torch.isfinite(x.grad).all()

    def test_last_equals_forward_at_the_final_item(self, attention: Attention) -> None:
        x, valid = torch.randn(6, 33, D), ragged(6, 33)
        final = (valid.sum(1) - 1).clamp_min(0)
        assert_close(attention.last(x, valid), self.call(attention, x, valid)[torch.arange(6), final])

    def test_eval_is_deterministic_and_survives_save_and_load(self, attention: Attention) -> None:
        x, valid = torch.randn(2, 33, D), ragged(2, 33)
        out = self.call(attention, x, valid)
        assert torch.equal(out, self.call(attention, x, valid))
        other = build_attention(self.mechanism, hidden_size=D, max_length=128, **self.settings).eval()
        other.load_state_dict(attention.state_dict())
        assert torch.equal(out, self.call(other, x, valid))
        assert torch.equal(out, self.call(copy.deepcopy(attention), x, valid))

    def test_its_description_builds_it_again(self, attention: Attention) -> None:
        name, settings = describe_attention(attention)
        again = build_attention(name, **({"max_length": 128} | json.loads(json.dumps(settings)))).eval()
        again.load_state_dict(attention.state_dict())
        x, valid = torch.randn(2, 33, D), ragged(2, 33)
        assert torch.equal(self.call(again, x, valid), self.call(attention, x, valid))

    def test_arguments_are_not_edited(self, attention: Attention) -> None:
        x, valid = torch.randn(2, 7, D), ragged(2, 7)
        x_before, valid_before = x.clone(), valid.clone()
        self.call(attention, x, valid)
        assert torch.equal(x, x_before)
        assert torch.equal(valid, valid_before)

    def test_autocast_is_finite_and_close(self, attention: Attention) -> None:
        x, valid = torch.randn(2, 33, D), ragged(2, 33)
        exact = self.call(attention, x, valid)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = self.call(attention, x, valid)
        assert torch.isfinite(half).all()
        assert_close(half.float(), exact.float(), computed_in=torch.bfloat16)

    def test_length_4096_is_finite(self) -> None:
        attention = build_attention(self.mechanism, hidden_size=D, max_length=4096, **self.settings).eval()
        with torch.no_grad():
            out = self.call(attention, torch.randn(1, 4096, D), torch.ones(1, 4096, dtype=torch.bool))
        assert torch.isfinite(out).all()


def only_causal(attention: Attention, request: pytest.FixtureRequest) -> None:
    """Skip a bidirectional mechanism; one that says it sees the future must be caught at it."""
    if not attention.is_causal:
        pytest.skip("bidirectional by declaration")
    if attention.sees_future:
        request.applymarker(pytest.mark.xfail(strict=True, reason="the published form sees the future"))


def ragged(n: int, length: int) -> Tensor:
    """A valid mask (N, L): row 0 full, the others of random lengths from 1 up."""
    lengths = torch.randint(1, length + 1, (n,))
    lengths[0] = length
    return torch.arange(length) < lengths.unsqueeze(1)


def full_shared_attention(attention: ReformerAttention | RoutingAttention, x: Tensor) -> Tensor:
    """Exact causal attention with unit keys; a position sees itself only when it is the first: x (N, L, D)."""
    query, value = attention.query_key(x), attention.value(x)
    length = x.shape[1]
    logits = query @ normalize(query, dim=-1).transpose(1, 2) / math.sqrt(x.shape[-1])
    logits = torch.where(torch.eye(length, dtype=torch.bool), -5e4, logits)
    logits = logits.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    return attention.output(torch.softmax(logits, dim=-1) @ value)
