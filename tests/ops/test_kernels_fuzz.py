"""Functions that enter Numba kernels refuse operands that do not fit: no crash, no value from outside the arrays."""

from tests.helpers import run_python

SCRIPT = """
import random
import torch
from recbole_lisa.ops import lisa_attention, lisa_attention_items, lisa_attention_last, lisa_attention_non_padding
from recbole_lisa.ops.codeword_scores import scores_of_one
from recbole_lisa.ops.encoder_block import BlockWeights, encoder_block
from recbole_lisa.ops.pair_scores import pair_scores

SENTINEL = 1e30
random.seed(0)
torch.manual_seed(0)


def size(usual):
    return usual if random.random() < 0.9 else random.choice([0, 1, usual - 1, usual + 1, 50])


def guarded(x):
    # The tensor between sentinel values, so that a read beyond it shows in the result.
    fill = SENTINEL if x.is_floating_point() else (True if x.dtype == torch.bool else 100)
    whole = torch.full((x.numel() + 128,), fill, dtype=x.dtype)
    whole[64 : 64 + x.numel()] = x.flatten()
    return whole[64 : 64 + x.numel()].view(x.shape)


def floats(*shape):
    dtype = torch.float32 if random.random() < 0.9 else random.choice([torch.float64, torch.float16, torch.int64])
    return guarded(torch.randn(*map(size, shape)).to(dtype))


def integers(high, *shape):
    dtype = random.choice([torch.int64, torch.int64, torch.uint8, torch.int32, torch.float32])
    low, high = random.choice([(0, high)] * 20 + [(-2, high), (0, high + 2)])
    return guarded(torch.randint(low, max(high, low + 1), [size(x) for x in shape]).to(dtype))


def call():
    n, length, b, w, u, d = (random.randint(1, 6) for _ in range(6))
    kind = random.randrange(7)
    if kind == 0:
        return scores_of_one(integers(w, u, b), floats(b, w)), []
    if kind == 1:
        hidden, table = floats(n, d).requires_grad_(), floats(u, d).requires_grad_()
        return pair_scores(hidden, table, integers(u, n, length)), [hidden, table]
    if kind == 6:
        shapes = [(n, d), (n, d), (b, d), (b,), (d, b), (d,), (d,), (d,), (d,), (d,)]
        stream, attended, *weights = leaves = [floats(*shape).requires_grad_() for shape in shapes]
        dropout = random.choice([0.0, 0.5])
        return encoder_block(stream, attended, BlockWeights(*weights), dropout=dropout, eps=1e-3), leaves
    table, values = floats(b, w, w).requires_grad_(), floats(b, w, d).requires_grad_()
    valid = guarded(torch.rand(size(n), size(length)) < 0.8) if kind in (3, 4) or random.random() < 0.5 else None
    decay = random.choice([0.0, 0.3, torch.tensor(0.2), torch.rand(size(n), size(length))])
    leaves = [table, values]
    if kind == 2:
        return lisa_attention(integers(w, n, length, b), table, values, decay=decay, valid=valid), leaves
    keys = None if random.random() < 0.5 else floats(u, b, w).abs().requires_grad_()
    op = {3: lisa_attention_last, 4: lisa_attention_non_padding, 5: lisa_attention_items}[kind]
    out = op(integers(u, n, length), integers(w, u, b), table, values, assignment=keys, decay=decay, valid=valid)
    return out, leaves if keys is None else [*leaves, keys]


done = 0
for number in range(2000):
    torch.set_num_threads(1 + number % 2)
    try:
        out, leaves = call()
        grads = torch.autograd.grad(out.sum(), leaves, allow_unused=True) if leaves else []
    except (ValueError, IndexError, RuntimeError):
        continue
    done += 1
    for x in (out, *(grad for grad in grads if grad is not None)):
        assert torch.isfinite(x).all() and (x.abs() < 1e6).all(), (number, x)
print(done)
"""


def test_two_thousand_calls_of_any_shape_neither_crash_nor_read_beyond_the_arrays() -> None:
    assert int(run_python(SCRIPT)[0]) > 400
