"""Triton kernels of LISA; triton_op launches them.

One program works on a block of `block` positions of one sequence, on `block_w` >= W columns of a codebook (those beyond
W are masked) and, where it touches vectors, on `block_d` of their D components. Histograms, scores and normalisers are
float32; products with the values take their operands in the type of the values and sum in float32. Offsets are 64-bit.

Shared by the argument lists: items (N, L); codes (U, B); assignment (U, B * W); valid (N, L) uint8; decay float64, 0-d
or (N, L); rows (B * W, W) = exp(T - row maximum); values (B * W, D); carries, sums (N, n_blocks, B * W): the histogram
before each block, and what the block itself adds.
"""

import triton
import triton.language as tl

MAX_DECAY = tl.constexpr(1e4)
TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def _positions(pid, items, valid, length, n_blocks, block: tl.constexpr, has_valid: tl.constexpr):
    """Flat positions n * L + i of a block, whether they are inside and valid, and their items; all (block,)."""
    steps = (pid % n_blocks) * block + tl.arange(0, block)
    inside = steps < length
    flat = (tl.zeros((block,), tl.int64) + pid // n_blocks) * length + steps
    item = tl.load(items + flat, mask=inside, other=0).to(tl.int64)
    present = inside
    if has_valid:
        present = inside & (tl.load(valid + flat, mask=inside, other=0) != 0)
    return flat, inside, present, item


@triton.jit
def _elapsed(decay, flat, inside, block: tl.constexpr, per_step: tl.constexpr):
    """Sum of the decays from the block's first step to each step, both included, float64 (block,)."""
    if per_step:
        elapsed = tl.cumsum(tl.minimum(tl.load(decay + flat, mask=inside, other=0.0), MAX_DECAY), 0)
    else:
        elapsed = (tl.arange(0, block) + 1).to(tl.float64) * tl.minimum(tl.load(decay), MAX_DECAY)
    return elapsed


@triton.jit
def _left(elapsed, block: tl.constexpr):
    """(block, block): what is left at step i of a step j < i, and 0 for j >= i."""
    steps = tl.arange(0, block)
    exponent = tl.minimum(elapsed[None, :] - elapsed[:, None], 0.0).to(tl.float32)
    return tl.where(steps[:, None] > steps[None, :], tl.exp(exponent), 0.0)


@triton.jit
def _keys(
    codes, assignment, item, inside, present, b, n_codebooks, n_codewords, block_w: tl.constexpr, hard: tl.constexpr
):
    """Codes (block,) and assignments E (block, block_w) of one codebook; E is 0 where no item is present."""
    columns = tl.arange(0, block_w)
    query = tl.load(codes + item * n_codebooks + b, mask=inside, other=0).to(tl.int32)
    if hard:
        keys = tl.where((columns[None, :] == query[:, None]) & present[:, None], 1.0, 0.0)
    else:
        where = (item * n_codebooks + b)[:, None] * n_codewords + columns[None, :]
        mask = present[:, None] & (columns < n_codewords)[None, :]
        keys = tl.load(assignment + where, mask=mask, other=0.0).to(tl.float32)
    return query, keys


@triton.jit
def _state(pid, b, n_codebooks, n_codewords, block_w: tl.constexpr):
    """Offsets of a block's row of one codebook in an (N, n_blocks, B, W) tensor, (block_w,)."""
    return ((tl.zeros((block_w,), tl.int64) + pid) * n_codebooks + b) * n_codewords + tl.arange(0, block_w)


@triton.jit
def _codebook(
    pid, b, codes, assignment, rows, carries, item, inside, present, elapsed, left, n_codebooks, n_codewords,
    block_w: tl.constexpr, hard: tl.constexpr, has_carry: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """One codebook of a block: codes (block,); E, F - E, attention A and its slope exp(T) / Z, (block, block_w)."""
    query, keys = _keys(
        codes, assignment, item, inside, present, b, n_codebooks, n_codewords, block_w=block_w, hard=hard
    )
    columns = tl.arange(0, block_w)
    known = columns < n_codewords
    # F - E, the faded histogram of the step before; the decay's gradient needs it without cancellation.
    earlier = tl.dot(left, keys, input_precision=precision)
    if has_carry:
        carry = tl.load(carries + _state(pid, b, n_codebooks, n_codewords, block_w=block_w), mask=known, other=0.0)
        earlier += tl.exp(-elapsed).to(tl.float32)[:, None] * carry[None, :]
    row = (b * n_codewords + query).to(tl.int64) * n_codewords
    scores = tl.load(rows + row[:, None] + columns[None, :], mask=inside[:, None] & known[None, :], other=0.0)
    weights = scores * (earlier + keys)
    scale = 1.0 / tl.maximum(tl.sum(weights, 1), TINY)
    return query, keys, earlier, weights * scale[:, None], scores * scale[:, None]


@triton.jit
def block_sums_kernel(
    sums, totals, items, codes, assignment, valid, decay, length, n_blocks, n_codebooks, n_codewords,
    block: tl.constexpr, block_w: tl.constexpr, hard: tl.constexpr, has_valid: tl.constexpr, per_step: tl.constexpr,
):  # fmt: skip
    """What each block adds to the histogram at its end, totals (N, n_blocks) of its decays. Grid (N * n_blocks, B)."""
    pid, b = tl.program_id(0), tl.program_id(1)
    flat, inside, present, item = _positions(pid, items, valid, length, n_blocks, block=block, has_valid=has_valid)
    elapsed = _elapsed(decay, flat, inside, block=block, per_step=per_step)
    whole = tl.max(elapsed, 0)
    _, keys = _keys(codes, assignment, item, inside, present, b, n_codebooks, n_codewords, block_w=block_w, hard=hard)
    columns = tl.arange(0, block_w)
    total = tl.sum(tl.exp(elapsed - whole).to(tl.float32)[:, None] * keys, 0)
    tl.store(sums + _state(pid, b, n_codebooks, n_codewords, block_w=block_w), total, mask=columns < n_codewords)
    if per_step and b == 0:
        tl.store(totals + pid, whole)


@triton.jit
def _group(
    pid, totals, decay, n_blocks, n_groups, n_columns,
    block: tl.constexpr, group: tl.constexpr, block_c: tl.constexpr, per_step: tl.constexpr, reverse: tl.constexpr,
):  # fmt: skip
    """A group of blocks in scan order: the decay of each (group,), offsets and mask of its sums (group, block_c)."""
    order = (pid % n_groups) * group + tl.arange(0, group)
    known = order < n_blocks
    at = order
    if reverse:
        at = n_blocks - 1 - order
    row = (tl.zeros((group,), tl.int64) + pid // n_groups) * n_blocks + at
    if per_step:
        step = tl.load(totals + row, mask=known, other=0.0)
    else:
        step = tl.zeros((group,), tl.float64) + block * tl.minimum(tl.load(decay), MAX_DECAY)
    columns = tl.program_id(1) * block_c + tl.arange(0, block_c)
    return step, row[:, None] * n_columns + columns[None, :], known[:, None] & (columns < n_columns)[None, :]


@triton.jit
def scan_kernel(
    sums, group_sums, group_decays, totals, decay, n_blocks, n_groups, n_columns,
    block: tl.constexpr, group: tl.constexpr, block_c: tl.constexpr, per_step: tl.constexpr, reverse: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """Replace each block's sum by what the earlier blocks of its group (reverse: the later ones) bring to it.

    Also writes what each whole group adds, (N, n_groups, B * W), and its decay. Grid (N * n_groups, tiles of B * W).
    """
    pid = tl.program_id(0)
    step, where, mask = _group(
        pid, totals, decay, n_blocks, n_groups, n_columns,
        block=block, group=group, block_c=block_c, per_step=per_step, reverse=reverse,
    )  # fmt: skip
    own = tl.load(sums + where, mask=mask, other=0.0)
    passed = tl.cumsum(step, 0)
    whole = tl.max(passed, 0)
    order = tl.arange(0, group)
    left = tl.exp(tl.minimum(passed[None, :] - (passed - step)[:, None], 0.0).to(tl.float32))
    left = tl.where(order[:, None] > order[None, :], left, 0.0)
    tl.store(sums + where, tl.dot(left, own, input_precision=precision), mask=mask)
    columns = tl.program_id(1) * block_c + tl.arange(0, block_c)
    total = tl.sum(tl.exp(passed - whole).to(tl.float32)[:, None] * own, 0)
    tl.store(group_sums + pid.to(tl.int64) * n_columns + columns, total, mask=columns < n_columns)
    if tl.program_id(1) == 0:
        tl.store(group_decays + pid, whole)


@triton.jit
def join_kernel(
    sums, group_sums, group_decays, totals, decay, n_blocks, n_groups, n_columns,
    block: tl.constexpr, group: tl.constexpr, block_c: tl.constexpr, per_step: tl.constexpr, reverse: tl.constexpr,
):  # fmt: skip
    """Add to each block what all earlier groups bring to it. Grid (N * n_groups, tiles of B * W)."""
    pid = tl.program_id(0)
    columns = tl.program_id(1) * block_c + tl.arange(0, block_c)
    carry = tl.zeros((block_c,), tl.float32)
    for first in range(0, pid % n_groups, group):
        earlier = first + tl.arange(0, group)
        known = earlier < pid % n_groups
        row = (tl.zeros((group,), tl.int64) + pid // n_groups) * n_groups + earlier
        passed = tl.cumsum(tl.load(group_decays + row, mask=known, other=0.0), 0)
        whole = tl.max(passed, 0)
        mask = known[:, None] & (columns < n_columns)[None, :]
        brought = tl.load(group_sums + row[:, None] * n_columns + columns[None, :], mask=mask, other=0.0)
        carry = carry * tl.exp(-whole).to(tl.float32)
        carry += tl.sum(tl.exp(passed - whole).to(tl.float32)[:, None] * brought, 0)
    step, where, mask = _group(
        pid, totals, decay, n_blocks, n_groups, n_columns,
        block=block, group=group, block_c=block_c, per_step=per_step, reverse=reverse,
    )  # fmt: skip
    left = tl.exp(step - tl.cumsum(step, 0)).to(tl.float32)
    tl.store(sums + where, tl.load(sums + where, mask=mask, other=0.0) + left[:, None] * carry[None, :], mask=mask)


@triton.jit
def forward_kernel(
    out, items, codes, assignment, valid, decay, rows, values, carries,
    length, n_blocks, n_codebooks, n_codewords, width,
    block: tl.constexpr, block_w: tl.constexpr, block_d: tl.constexpr, hard: tl.constexpr, has_valid: tl.constexpr,
    per_step: tl.constexpr, has_carry: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """out (N, L, D) = sum_b A_b V_b. Grid (N * n_blocks, tiles of D)."""
    pid = tl.program_id(0)
    flat, inside, present, item = _positions(pid, items, valid, length, n_blocks, block=block, has_valid=has_valid)
    elapsed = _elapsed(decay, flat, inside, block=block, per_step=per_step)
    left = _left(elapsed, block=block)
    columns = tl.arange(0, block_w)
    parts = tl.program_id(1) * block_d + tl.arange(0, block_d)
    value_mask = (columns < n_codewords)[:, None] & (parts < width)[None, :]
    total = tl.zeros((block, block_d), tl.float32)
    for b in range(n_codebooks):
        _, _, _, weights, _ = _codebook(
            pid, b, codes, assignment, rows, carries, item, inside, present, elapsed, left, n_codebooks, n_codewords,
            block_w=block_w, hard=hard, has_carry=has_carry, precision=precision,
        )  # fmt: skip
        where = (b * n_codewords + columns).to(tl.int64)[:, None] * width + parts[None, :]
        value = tl.load(values + where, mask=value_mask, other=0.0)
        total += tl.dot(weights.to(value.dtype), value, input_precision=precision)
    total = tl.where(present[:, None], total, 0.0)
    where = flat[:, None] * width + parts[None, :]
    tl.store(out + where, total.to(out.dtype.element_ty), mask=inside[:, None] & (parts < width)[None, :])


@triton.jit
def _d_weights(
    d_out, values, flat, present, b, weights, n_codewords, width,
    block: tl.constexpr, block_w: tl.constexpr, block_d: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """d A - sum_w A d A with d A = d_out V^T, (block, block_w); times exp(T) / Z it is d F."""
    columns = tl.arange(0, block_w)
    d_weights = tl.zeros((block, block_w), tl.float32)
    for first in range(0, width, block_d):
        parts = first + tl.arange(0, block_d)
        known = parts < width
        where = flat[:, None] * width + parts[None, :]
        grad = tl.load(d_out + where, mask=present[:, None] & known[None, :], other=0.0)
        where = (b * n_codewords + columns).to(tl.int64)[None, :] * width + parts[:, None]
        value = tl.load(values + where, mask=(columns < n_codewords)[None, :] & known[:, None], other=0.0)
        d_weights += tl.dot(grad.to(value.dtype), value, input_precision=precision)
    return d_weights - tl.sum(weights * d_weights, 1)[:, None]


@triton.jit
def table_backward_kernel(
    d_table, sums, d_out, items, codes, assignment, valid, decay, rows, values, carries,
    length, n_blocks, n_all_blocks, blocks_each, n_codebooks, n_codewords, width,
    block: tl.constexpr, block_w: tl.constexpr, block_d: tl.constexpr, block_q: tl.constexpr, hard: tl.constexpr,
    has_valid: tl.constexpr, per_step: tl.constexpr, has_carry: tl.constexpr, keep_sums: tl.constexpr,
    straight_through: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """d T[q_i] += F_i d F_i, one partial sum (splits, B, W, W) a split of the blocks. Grid (splits, B, tiles of codes).

    With keep_sums, also the gradient that each block sends to the histogram before it.
    """
    split, b = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, block_w)
    known = columns < n_codewords
    tile = tl.program_id(2) * block_q + tl.arange(0, block_q)
    total = tl.zeros((block_q, block_w), tl.float32)
    for pid in range(split * blocks_each, tl.minimum((split + 1) * blocks_each, n_all_blocks)):
        flat, inside, present, item = _positions(pid, items, valid, length, n_blocks, block=block, has_valid=has_valid)
        elapsed = _elapsed(decay, flat, inside, block=block, per_step=per_step)
        left = _left(elapsed, block=block)
        query, keys, earlier, weights, slope = _codebook(
            pid, b, codes, assignment, rows, carries, item, inside, present, elapsed, left, n_codebooks, n_codewords,
            block_w=block_w, hard=hard, has_carry=has_carry, precision=precision,
        )  # fmt: skip
        d_weights = _d_weights(
            d_out, values, flat, present, b, weights, n_codewords, width,
            block=block, block_w=block_w, block_d=block_d, precision=precision,
        )  # fmt: skip
        chosen = tl.where(tile[:, None] == query[None, :], 1.0, 0.0)
        total += tl.dot(chosen, (earlier + keys) * d_weights * slope, input_precision=precision)
        if keep_sums and tl.program_id(2) == 0:
            if straight_through:
                slope = tl.minimum(slope, 1.0)
            sent = tl.sum(tl.exp(-elapsed).to(tl.float32)[:, None] * d_weights * slope, 0)
            tl.store(sums + _state(pid, b, n_codebooks, n_codewords, block_w=block_w), sent, mask=known)
    row = (split.to(tl.int64) * n_codebooks + b) * n_codewords + tile
    tl.store(
        d_table + row[:, None] * n_codewords + columns[None, :],
        total,
        mask=(tile < n_codewords)[:, None] & known[None, :],
    )


@triton.jit
def values_backward_kernel(
    d_values, d_out, items, codes, assignment, valid, decay, rows, carries,
    length, n_blocks, n_all_blocks, blocks_each, n_codebooks, n_codewords, width,
    block: tl.constexpr, block_w: tl.constexpr, block_d: tl.constexpr, hard: tl.constexpr, has_valid: tl.constexpr,
    per_step: tl.constexpr, has_carry: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """d V_b = sum_i A_i^T d_out_i, partial sums (splits, B, W, D) of blocks. Grid (splits, B, tiles of D)."""
    split, b = tl.program_id(0), tl.program_id(1)
    columns = tl.arange(0, block_w)
    parts = tl.program_id(2) * block_d + tl.arange(0, block_d)
    total = tl.zeros((block_w, block_d), tl.float32)
    for pid in range(split * blocks_each, tl.minimum((split + 1) * blocks_each, n_all_blocks)):
        flat, inside, present, item = _positions(pid, items, valid, length, n_blocks, block=block, has_valid=has_valid)
        elapsed = _elapsed(decay, flat, inside, block=block, per_step=per_step)
        left = _left(elapsed, block=block)
        _, _, _, weights, _ = _codebook(
            pid, b, codes, assignment, rows, carries, item, inside, present, elapsed, left, n_codebooks, n_codewords,
            block_w=block_w, hard=hard, has_carry=has_carry, precision=precision,
        )  # fmt: skip
        where = flat[:, None] * width + parts[None, :]
        grad = tl.load(d_out + where, mask=present[:, None] & (parts < width)[None, :], other=0.0)
        total += tl.dot(tl.trans(weights).to(grad.dtype), grad, input_precision=precision)
    row = (split.to(tl.int64) * n_codebooks + b) * n_codewords + columns
    mask = (columns < n_codewords)[:, None] & (parts < width)[None, :]
    tl.store(d_values + row[:, None] * width + parts[None, :], total, mask=mask)


@triton.jit
def keys_backward_kernel(
    d_assignment, d_decay, d_out, items, codes, assignment, valid, decay, rows, values, carries, later,
    length, n_blocks, n_positions, n_codebooks, n_codewords, width,
    block: tl.constexpr, block_w: tl.constexpr, block_d: tl.constexpr, hard: tl.constexpr, has_valid: tl.constexpr,
    per_step: tl.constexpr, has_carry: tl.constexpr, want_keys: tl.constexpr,
    want_decay: tl.constexpr, straight_through: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """H_i = d F_i + exp(-decay_{i+1}) H_{i+1}: added to d_assignment, and d_decay (B, N * L) = -<H_i, F_i - E_i>.

    later (N, n_blocks, B * W) is the gradient that reaches the last F of each block. Grid (N * n_blocks, B).
    """
    pid, b = tl.program_id(0), tl.program_id(1)
    flat, inside, present, item = _positions(pid, items, valid, length, n_blocks, block=block, has_valid=has_valid)
    elapsed = _elapsed(decay, flat, inside, block=block, per_step=per_step)
    left = _left(elapsed, block=block)
    _, _, earlier, weights, slope = _codebook(
        pid, b, codes, assignment, rows, carries, item, inside, present, elapsed, left, n_codebooks, n_codewords,
        block_w=block_w, hard=hard, has_carry=has_carry, precision=precision,
    )  # fmt: skip
    d_weights = _d_weights(
        d_out, values, flat, present, b, weights, n_codewords, width,
        block=block, block_w=block_w, block_d=block_d, precision=precision,
    )  # fmt: skip
    d_histogram = d_weights * (tl.minimum(slope, 1.0) if straight_through else slope)
    total = d_histogram + tl.dot(tl.trans(left), d_histogram, input_precision=precision)
    columns = tl.arange(0, block_w)
    known = columns < n_codewords
    if has_carry:
        after = tl.load(later + _state(pid, b, n_codebooks, n_codewords, block_w=block_w), mask=known, other=0.0)
        total += tl.exp(elapsed - tl.max(elapsed, 0)).to(tl.float32)[:, None] * after[None, :]
    if want_decay:
        tl.store(d_decay + b.to(tl.int64) * n_positions + flat, -tl.sum(total * earlier, 1), mask=inside)
    if want_keys:
        where = (item * n_codebooks + b)[:, None] * n_codewords + columns[None, :]
        tl.atomic_add(d_assignment + where, total, mask=present[:, None] & known[None, :])
