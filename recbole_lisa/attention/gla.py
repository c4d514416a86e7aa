"""Gated linear attention (Yang et al., 2024) on the kernels of flash-linear-attention, which need a CUDA device."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, silu

from recbole_lisa.attention.base import Attention

GATE_NORMALIZER = 16.0
"""The logarithm of a gate is divided by this, so that the gate starts near 1; the published value."""
GATE_RANK = 16
"""Width between the two layers of the gates; the published value."""
Recurrence = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


def missing_requirement() -> str | None:
    """The requirement of gated linear attention that is missing on this machine, or None."""
    for module, package in (("fla", "flash-linear-attention"), ("triton", "triton")):
        if find_spec(module) is None:
            return f"{package} is not installed: pip install flash-linear-attention"
    return None if torch.cuda.is_available() else "there is no CUDA device"


def load_recurrence() -> Recurrence:
    """The kernel: queries, keys and log gates (N, L, H, K), values (N, L, H, V) -> outputs (N, L, H, V), None."""
    missing = missing_requirement()
    if missing is not None:
        raise ValueError(f"gated linear attention cannot run: {missing}")
    kernel: Recurrence = import_module("fla.ops.gla").chunk_gla
    return kernel


class GatedLinearAttention(Attention):
    r"""Linear attention with a state that decays by gates of the input, O(L D^2 / H), strictly causal.

        S_i = diag(exp g_i) S_{i-1} + k_i v_i^T,   g = logsigmoid(x W_1 W_2 + b) / 16
        out = [swish(x W_r) * RMSNorm(S_i^T q_i / sqrt(K))] W_o,   K = D / (2 H) a head, values of width D / H

    Layer, widths and gates are those of the paper. The kernel is that of flash-linear-attention, which is imported when
    the module is built. Twice n_heads must divide D.

    Raises:
        ValueError: as Attention, or the package or a CUDA device is missing.
    """

    def __init__(self, *, hidden_size: int, n_heads: int = 4) -> None:
        super().__init__(hidden_size)
        if n_heads < 1 or hidden_size % (2 * n_heads):
            raise ValueError(f"twice n_heads must divide hidden_size {hidden_size}, got n_heads {n_heads}")
        self._recurrence = load_recurrence()
        self.n_heads = n_heads
        self.query, self.key = (nn.Linear(hidden_size, hidden_size // 2, bias=False) for _ in range(2))
        self.value, self.output_gate, self.output = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
        inner = nn.Linear(hidden_size, GATE_RANK, bias=False)
        self.forget_gate = nn.Sequential(inner, nn.Linear(GATE_RANK, hidden_size // 2))
        self.norm = nn.RMSNorm(hidden_size // n_heads, eps=1e-5)

    def everywhere(self, x: Tensor, valid: Tensor) -> Tensor:
        """Attend at every position: x (N, L, D), valid (N, L) -> (N, L, D)."""
        gate = logsigmoid(self.forget_gate(x)) / GATE_NORMALIZER
        attended, _ = self._recurrence(*(self._heads(y) for y in (self.query(x), self.key(x), self.value(x), gate)))
        normed = self.norm(attended.to(self.norm.weight.dtype)).flatten(2)  # (N, L, D)
        return self.project(silu(self.output_gate(x)) * normed)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.n_heads, -1)  # (N, L, H, K or V)
