"""Every function of ops names the operand that does not fit; torch's own words never reach the caller."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from recbole_lisa.attention import build_attention
from recbole_lisa.layers.dropout import Dropout
from recbole_lisa.ops import lisa_attention, lisa_attention_items, lisa_attention_last, lisa_attention_non_padding
from recbole_lisa.ops.balanced_clusters import balanced_cluster_attention
from recbole_lisa.ops.banded_attention import banded_attention
from recbole_lisa.ops.bucket_sorting import choose_buckets, sorted_bucket_attention
from recbole_lisa.ops.checks import check_number, check_operands
from recbole_lisa.ops.clustered_attention import (
    bidirectional_clustered_attention,
    causal_clustered_attention,
    cluster_means,
    group_queries,
)
from recbole_lisa.ops.codeword_scores import lookup_tables, scores_of_one, sum_of_rows
from recbole_lisa.ops.codeword_usage import codeword_usage
from recbole_lisa.ops.cross_entropy import catalogue_cross_entropy, coded_cross_entropy
from recbole_lisa.ops.dropout_bits import draw_mask
from recbole_lisa.ops.encoder_block import BlockWeights, encoder_block
from recbole_lisa.ops.hamming_kmeans import hamming_kmeans, hash_signs
from recbole_lisa.ops.kmeans import cluster_sums, mean_directions, nearest, nearest_points, similarity
from recbole_lisa.ops.linear_attention import linear_attention
from recbole_lisa.ops.lisa.attention import read_histogram
from recbole_lisa.ops.packing import bits_per_code, code_dtype, pack_codes, packed_size, unpack_codes
from recbole_lisa.ops.pair_scores import pair_scores
from recbole_lisa.ops.quantize import quantize
from recbole_lisa.ops.recurrences import diagonal_recurrence, selective_recurrence
from recbole_lisa.ops.rotation_hashing import rotation_buckets
from recbole_lisa.ops.score_bounds import shortlist
from recbole_lisa.ops.sorted_window import (
    bucket_attention,
    bucket_attention_last,
    chunked_round_attention,
    split,
    take_rows,
)
from recbole_lisa.ops.top_k import Best, best_of_row, merge

N, L, D, W = 2, 9, 4, 5


def whole(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


def block(stream: Tensor, attended: Tensor, dropout: float = 0.0, eps: float = 1e-5, **weights: Tensor) -> Tensor:
    return encoder_block(stream, attended, BlockWeights(**weights), dropout=dropout, eps=eps)


X, VALID = torch.ones(N, L, D), torch.ones(N, L, dtype=torch.bool)
QKV = {"query": X, "key": X, "value": X}
BUCKET, CODEWORDS = whole(N, 1, L), torch.ones(3, W, D)
BOOKS = {"x": X[0], "codebooks": CODEWORDS}
TABLES = {"table": torch.ones(3, W, W), "values": CODEWORDS}
WEIGHTS = {"w1": torch.ones(7, D), "b1": torch.ones(7), "w2": torch.ones(D, 7), "b2": torch.ones(D)}
WEIGHTS |= {name: torch.ones(D) for name in ("gain1", "shift1", "gain2", "shift2")}
COMPLEX = torch.ones(3, N, L, dtype=torch.complex64)
DIAGONAL = {"state": COMPLEX[:, :, 0], "decay": X[0, :3, 0], "angle": X[0, :3, 0], "u": COMPLEX}
SELECTIVE = {"state": torch.ones(N, 3, 2, D), "a": -torch.ones(N, L, 3), "x": torch.ones(N, L, 3, 2), "b": X, "c": X}
CLUSTERED = {**QKV, "centroid": torch.ones(N, 3, D), "valid": VALID}
GROUPS = group_queries(whole(N, L), 3)
bidirectional = partial(bidirectional_clustered_attention, groups=GROUPS, n_top=2)
GOOD: dict[Callable[..., Any], dict[str, Any]] = {
    lisa_attention: {"codes": whole(N, L, 3), **TABLES, "assignment": torch.ones(N, L, 3, W), "valid": VALID},
    lisa_attention_items: {"items": whole(N, L), "codes": whole(6, 3), **TABLES, "assignment": torch.ones(6, 3, W)},
    lisa_attention_last: {"items": whole(N, L), "codes": whole(6, 3), **TABLES, "valid": VALID},
    lisa_attention_non_padding: {"items": whole(N, L), "codes": whole(6, 3), **TABLES, "valid": VALID},
    read_histogram: {"histogram": torch.ones(N, 3, W), "query": whole(N, 3), **TABLES},
    quantize: BOOKS,
    partial(quantize, hard=False): BOOKS,
    partial(quantize, similarity="bilinear"): BOOKS | {"bilinear": torch.ones(D, D)},
    balanced_cluster_attention: {**QKV, "members": torch.arange(6).view(1, 3, 2).repeat(N, 1, 1)},
    banded_attention: {name: torch.ones(N, L, 2, D) for name in QKV} | {"bias": torch.ones(2, 3)},
    partial(choose_buckets, n_top=1, temperature=1.0): {"scores": torch.ones(N, 3, 4), "own": whole(3)},
    partial(sorted_bucket_attention, visible=torch.tensor(True)): {
        **{name: torch.ones(N, 2, 3, D) for name in (*QKV, "past_key", "past_value")},
        "probability": torch.ones(N, 2, 1),
    },
    partial(cluster_means, n_clusters=1): {"x": X, "cluster": whole(N, L), "valid": VALID},
    partial(group_queries, n_clusters=1): {"cluster": whole(N, L)},
    bidirectional: CLUSTERED,
    partial(causal_clustered_attention, groups=GROUPS, n_top=2): CLUSTERED,
    lookup_tables: {"hidden": X[0], "codewords": CODEWORDS},
    sum_of_rows: {"codes": whole(6, 3), "tables": torch.ones(3, W, N)},
    scores_of_one: {"codes": whole(6, 3), "tables": torch.ones(3, W)},
    partial(codeword_usage, n_codewords=W): {"codes": whole(6, 3)},
    catalogue_cross_entropy: {"hidden": X[0], "table": torch.ones(W, D), "target": whole(L), "group": whole(L)},
    block: {"stream": X, "attended": X, **WEIGHTS},
    partial(hamming_kmeans, n_clusters=2, n_iterations=1): {"signs": X, "valid": VALID},
    hash_signs: {"x": X, "planes": torch.ones(D, 3), "offsets": torch.ones(3)},
    **{near: {"x": X, "centroids": torch.ones(3, D)} for near in (similarity, nearest)},
    partial(best_of_row, k=2): {"scores": X[0]},
    partial(unpack_codes, shape=(6, 3), n_codewords=4): {"packed": torch.zeros(5, dtype=torch.uint8)},
    partial(nearest_points, centroids=torch.ones(3, D), size=2): {"x": X, "valid": VALID},
    partial(cluster_sums, n_clusters=1): {"x": X[0], "cluster": whole(L)},
    mean_directions: {"sums": torch.ones(3, D + 1), "centroids": torch.ones(3, D)},
    linear_attention: QKV,
    partial(pack_codes, n_codewords=4): {"codes": whole(6, 3)},
    pair_scores: {"hidden": X[0], "table": torch.ones(W, D), "index": whole(L, 2)},
    diagonal_recurrence: DIAGONAL,
    selective_recurrence: SELECTIVE,
    rotation_buckets: {"x": X, "rotations": torch.ones(2, D, 3)},
    partial(bucket_attention, window=3): {**QKV, "bucket": BUCKET},
    partial(bucket_attention_last, window=3): {**QKV, "query": X[:, 0], "bucket": BUCKET, "final": whole(N) + 3},
    partial(chunked_round_attention, window=3): {**QKV, "bucket": BUCKET, "lengths": whole(N) + L},
}
ANY_SHAPE = {(hash_signs, "x"), (similarity, "x"), (nearest, "x"), "pack_codes", "choose_buckets"}
CASES = [(op, name) for op, good in GOOD.items() for name in good]


def name_of(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "func", value).__name__  # type: ignore[attr-defined]  # a function or a partial


@pytest.mark.parametrize(("op", "name"), CASES, ids=name_of)
def test_an_operand_of_another_kind_or_shape_is_named(op: Callable[..., Any], name: str) -> None:
    good = GOOD[op]
    op(**good)
    x = good[name]
    for odd in (x.to("meta"), x.to_sparse()):
        with pytest.raises(ValueError, match=r"^\w+ must be a dense tensor with numbers, .*, got .* on (meta|cpu)"):
            op(**{**good, name: odd})
    wrong = [x.numpy(), [1.0], x.long() if x.is_floating_point() else x.real.float() + 0.5]
    if x.dtype == torch.long:
        wrong.append(x > 0)
    if (op, name) not in ANY_SHAPE and name_of(op) not in ANY_SHAPE:
        wrong += [x[None], x[..., 0] if x.dim() > 1 else x[0]]
    for other in wrong:
        with pytest.raises(ValueError, match=r"^\w+ must be .*, got (torch|ndarray|list|\()") as caught:
            op(**{**good, name: other})
        if not (isinstance(other, Tensor) and other.dtype == x.dtype):
            assert str(caught.value).startswith(f"{name} must be ")
    for dim in range(x.dim() if name_of(op) not in ("mean_directions", "unpack_codes") else 0):  # D + 1 is no letter
        try:
            op(**{**good, name: torch.cat([x, x.narrow(dim, 0, 1)], dim=dim)})
        except ValueError as error:
            assert " must be " in str(error)


@pytest.mark.parametrize("op", GOOD, ids=name_of)
def test_no_rows_give_no_rows_or_are_named(op: Callable[..., Any]) -> None:
    at = 1 if op is diagonal_recurrence else 0  # (H, N, ...)
    rows = {name: x.narrow(at, 0, 0) if x.dim() > at and x.shape[at] == N else x for name, x in GOOD[op].items()}
    try:
        op(**rows)
    except ValueError as error:
        assert " must be " in str(error)


def test_a_band_takes_a_bias_of_another_precision() -> None:
    half = {name: x.half() for name, x in GOOD[banded_attention].items()}
    expected = banded_attention(**half)
    assert banded_attention(**half | {"bias": half["bias"].float()}).dtype == expected.dtype == torch.float16


def of_codes(hidden: Tensor, codewords: Tensor) -> Tensor:
    return coded_cross_entropy(hidden, [(whole(6, 3), codewords)], whole(L))


ONCE: dict[Callable[..., Any], dict[str, Any]] = {
    **{op: GOOD[op] for op in (lisa_attention, lisa_attention_items, catalogue_cross_entropy, block, pair_scores)},
    quantize: GOOD[quantize],
    of_codes: {"hidden": X[0], "codewords": CODEWORDS},
    Dropout(0.5): {"x": X},
}


@pytest.mark.parametrize("op", ONCE, ids=lambda op: getattr(op, "__name__", "Dropout"))
def test_a_second_derivative_is_an_error(op: Callable[..., Any]) -> None:
    good = {name: x.clone().requires_grad_() if x.is_floating_point() else x for name, x in ONCE[op].items()}
    leaves = [x for x in good.values() if x.requires_grad]
    result = op(**good)
    for out in result if isinstance(result, tuple) else (result,):
        if out.requires_grad:
            torch.autograd.grad(out.sum(), leaves, retain_graph=True, allow_unused=True)
            with pytest.raises(RuntimeError, match=r"^\w+ has no second derivative: leave out create_graph=True"):
                torch.autograd.grad(out.sum(), leaves, create_graph=True, allow_unused=True)


@pytest.mark.parametrize(("op", "name"), [c for c in CASES if c != (mean_directions, "centroids")], ids=name_of)
def test_nan_gives_nan(op: Callable[..., Any], name: str) -> None:
    x = GOOD[op][name]
    if x.is_floating_point() or x.is_complex():
        result = op(**{**GOOD[op], name: torch.full_like(x, torch.nan)})
        parts = [part for part in (result if isinstance(result, tuple) else (result,)) if part.dtype != torch.long]
        assert not parts or any(bool(part.isnan().any()) for part in parts)


MINUS = torch.ones(N, L, D).index_fill(1, torch.tensor(3), -1)  # -1 at position 3
MESSAGES: list[tuple[Callable[[], Any], str]] = [
    (lambda: check_operands("a: N D; b: N D", X[0], X[0, :5]), r"b .* N = 9, D = 4, got torch.float32 \(5, 4\)"),
    (lambda: check_operands("a: N D; b: N", X[0], X[0, :, 0].double()), "b must be torch.float32 .* got .*float64"),
    (lambda: bucket_attention(**QKV, bucket=BUCKET, window=0), "window must be .* at least 1, got 0"),
    (lambda: catalogue_cross_entropy(X[0], X[0, :0], whole(L)), r"table must be floating-point \(V >= 1, D\)"),
    (lambda: catalogue_cross_entropy(X[0], X[1], whole(L), excluded=whole(1, 2)), "group must be .* got NoneType"),
    (lambda: lisa_attention_last(whole(N, L), whole(6, 3), **TABLES, valid=None), "valid must be .* got NoneType"),
    (lambda: bits_per_code(0), "n_codewords must be a whole number of at least 1, got 0"),
    (lambda: pack_codes(whole(3), 5.5), "n_codewords must be a whole number of at least 1, got 5.5"),
    (lambda: pack_codes(whole(3), 2**33), "n_codewords must be at most 2147483648, got 8589934592"),
    (lambda: pack_codes(torch.tensor([1, 4]), 4), r"codes must lie in 0\.\.3 \(W - 1\), got 1\.\.4"),
    (lambda: pack_codes(torch.tensor([0, -1]), 4), r"got -1\.\.0"),
    (lambda: unpack_codes(torch.zeros(0, dtype=torch.uint8), (10**12, 3), 1), "shape must be .*below 2147483648 codes"),
    *(
        (partial(unpack_codes, whole(0).byte(), shape, 4), message)
        for shape, message in (
            *((sizes, "a size of shape must be a whole number of at least 0") for sizes in ((-3,), (True, 8), ("8",))),
            *((sizes, "shape must be a tuple of sizes, got ") for sizes in (8, None, [3])),
        )
    ),
    *((partial(codeword_usage, whole(3, 2), w), "n_codewords must be a whole number") for w in (2.5, True, 0)),
    *((partial(take_rows, x, whole(1, 2)), r"x must be \(N, L, ...\) with N = 1, got") for x in (X, X[0, 0], None)),
    (lambda: take_rows(X, whole(2)), r"index must be int64 \(N, M\), got"),
    (lambda: split(X, 2.0), "size must be a whole number of at least 1, got 2.0"),  # type: ignore[arg-type]  # a user's mistake
    (lambda: split(X[0, 0], 2), r"size must divide the length of x, \(N, L, ...\), got 2 and \(4,\)"),
    *(
        (call, "n_clusters must be at most 2147483648, got 1000000000000")
        for call in (
            partial(cluster_means, X, whole(N, L), VALID, 10**12),
            partial(group_queries, whole(N, L), 10**12),
            partial(cluster_sums, X[0], whole(L), 10**12),
        )
    ),
    (lambda: cluster_means(X, whole(N, L), VALID, 3.0), "n_clusters must be a whole number"),  # type: ignore[arg-type]  # a user's mistake
    *(
        (partial(bidirectional, **CLUSTERED | {"groups": groups}), message)
        for groups, message in ((None, "groups must be Groups.* got NoneType"), ((1, 2), "groups must be .* got tuple"))
    ),
    *(
        (
            partial(sorted_bucket_attention, *[X[:, None]] * 5, torch.ones(N, 1, 3), visible),
            "visible must be bool and bro",
        )
        for visible in (torch.ones(5, 3, dtype=torch.bool), torch.ones(L, L), None, torch.ones(1, N, 1, L, L) > 0)
    ),
    (
        lambda: lisa_attention(**GOOD[lisa_attention] | {"decay": torch.tensor(1j)}),
        "decay must be real numbers, got torch.complex64",
    ),
    (lambda: check_number("x", 10**400, 0), "x must be a finite number of at least 0, got 1000"),
    (lambda: sum_of_rows(whole(6, 0), X[:0]), r"tables must be floating-point \(B >= 1, W, N\)"),
    (lambda: scores_of_one(whole(6, 0), X[0, :0]), r"tables must be floating-point \(B >= 1, W\)"),
    (lambda: unpack_codes(torch.tensor([9, 250], dtype=torch.uint8), (2,), 200), r"codes must lie in 0\.\.199 .* 250"),
    (lambda: unpack_codes(whole(2).byte(), (4,), 4), r"4 codes of 2 bits take 1 bytes of uint8, got \(2,\)"),
    (lambda: code_dtype(2**40), "n_codewords must be at most 2147483648, got"),
    (lambda: packed_size(-1, 4), "n_codes must be a whole number of at least 0, got -1"),
    (lambda: packed_size(2.5, 4), "n_codes must be a whole number of at least 0, got 2.5"),  # type: ignore[arg-type]  # what is refused
    (lambda: block(X, X, **{**WEIGHTS, "b1": torch.ones(6)}), r"b1 must be .* with F = 7, got .*\(6,\)"),
    (lambda: block(X, X, **{**WEIGHTS, "gain1": torch.ones(D).double()}), "gain1 must be torch.float32"),
    (lambda: block(X, X, **{**WEIGHTS, "w2": X[0, :6]}), r"w2 must be .*\(D, F\) with D = 4, F = 7, got .*\(6, 4\)"),
    (lambda: block(X, X[:1], **WEIGHTS), r"attended must be \(2, 9, 4\) as stream is, got \(1, 9, 4\)"),
    (lambda: block(X, X, eps=-1.0, **WEIGHTS), "eps must be a finite number of at least 0, got -1.0"),
    *(
        (partial(call, p), rf"dropout must be in \[0, 1\), got {p!r}")
        for call in (draw_mask, Dropout, lambda p: block(X, X, dropout=p, **WEIGHTS))
        for p in (1.0, -1.0, float("nan"), "0.5", None)
    ),
    *((partial(best_of_row, X[0], k), rf"k must lie in 1\.\.4 \(m\), got {k}") for k in (-1, 0, 5, 2.0, True)),
    (lambda: best_of_row(X[0, 0], 3), r"scores must be floating-point \(N, m\), got"),
    (lambda: merge([], 3), "number_of_blocks must be a whole number of at least 1, got 0"),
    (lambda: merge([Best(X[:n, :, 0], whole(n, L)) for n in (2, 1)], 3), r"scores must be .*32 \(N, n\) with N = "),
    (lambda: split(X, 0), "size must be a whole number of at least 1, got 0"),
    (lambda: split(X, L - 1), f"size must divide the length of x, .*, got {L - 1} and "),
    (lambda: build_attention([], hidden_size=4, max_length=9), r"unknown attention \[\]"),  # type: ignore[arg-type]  # a user's mistake
    *(
        (partial(call, **{flag: value}), f"{flag} must be True or False, got {shown}")
        for value, shown in (("no", "'no'"), (1, "1"), (torch.tensor([True, False]), "tensor"))
        for flag, call in (
            *((flag, partial(quantize, X[0], torch.ones(2, W, D))) for flag in ("residual", "hard")),
            *(("causal", partial(op, **GOOD[op])) for op in (lisa_attention, lisa_attention_items)),
            *(("straight_through", partial(op, **GOOD[op])) for op in (lisa_attention, lisa_attention_last)),
        )
    ),
    *(
        (partial(quantize, X[0], torch.ones(2, W, D), n_keys=n), f"n_keys must be {right}, got {n}")
        for n, right in ((-1, "a whole number of at least 0"), (L + 1, f"at most {L}"))
    ),
    (lambda: check_number("x", True, 0), "x must be a finite number of at least 0, got True"),
    (lambda: check_number("x", torch.ones(2), 0), "x must be a finite number of at least 0, got tensor"),
    (lambda: linear_attention(MINUS, X, X), r"query must be at least 0, got -1\.\.1"),
    (lambda: linear_attention(X, MINUS, X), r"key must be at least 0, got -1\.\.1"),
    (
        lambda: diagonal_recurrence(**DIAGONAL | {"decay": MINUS[0, 1:4, 0]}),
        r"decay must be in 0\.\.1.26765e\+30, got -1",
    ),
    (
        lambda: selective_recurrence(**SELECTIVE | {"a": MINUS[..., :3]}),
        r"a must be in -1.26765e\+30\.\.0, got -1\.\.1",
    ),
    (lambda: selective_recurrence(**SELECTIVE | {"a": -X[..., :3] / 0}), r"a must be in -1.26765e\+30\.\.0, got -inf"),
    (lambda: coded_cross_entropy(X[0], [], whole(L)), r"items must have one or more pairs of codes"),
    (lambda: coded_cross_entropy(X[0], [X[:1, 0]], whole(L)), r"items must have one or more pairs of codes"),  # type: ignore[list-item]  # a user's mistake
    (
        lambda: coded_cross_entropy(X[0], [(whole(n, 3), CODEWORDS) for n in (10, 11)], whole(L)),
        "codes of pair 1 have 11 items, those of pair 0 10",
    ),
    (lambda: bucket_attention(**QKV, bucket=BUCKET - 1, window=3), "bucket must be at least 0, got -1"),
    (
        lambda: chunked_round_attention(**QKV, bucket=1 + MINUS[:, None, :, 0].long(), lengths=whole(N) + 1, window=3),
        "bucket of padding minus the last bucket must be at least 0, got -2",
    ),
    (lambda: choose_buckets(X, MINUS[0, :, 0].long(), n_top=1, temperature=1.0), "own must be at least 0, got -1"),
    (lambda: choose_buckets(X, whole(L), n_top=5, temperature=1.0), "scores must have at least n_top = 5 columns"),
    (lambda: hamming_kmeans(X / 2, VALID, n_clusters=2, n_iterations=1), r"square of signs must be in 1\.\.1, got 0"),
    (lambda: hamming_kmeans(X, MINUS[..., 0] > 0, n_clusters=2, n_iterations=1), "valid has padding before an item"),
    (lambda: bidirectional(**CLUSTERED | {"valid": MINUS[..., 0] > 0}), "valid has padding before an item"),
    (lambda: balanced_cluster_attention(X, X, X, whole(N, 1, 2)), "members has a position twice in a cluster"),
    (lambda: nearest_points(X, VALID, X[0], size=0), "size must be a whole number of at least 1, got 0"),
    (lambda: mean_directions(X[0, :, :2], X[0]), r"sums must be \(C, D . 1\) with D = 4, got \(9, 2\)"),
    (lambda: shortlist(whole(1, 1, 64), 9, torch.ones(1, 2, 1), 0, None), "k must be a whole number of at least 1"),
]


@pytest.mark.parametrize(("call", "message"), MESSAGES)
def test_the_message_has_size_and_value(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_numbers_out_of_range_are_named() -> None:
    with pytest.raises(IndexError, match=r"query must lie in 0\.\.4, got -1\.\.-1"):
        read_histogram(**{**GOOD[read_histogram], "query": whole(N, 3) - 1})
    tables = torch.ones(3, W, N)
    of_one = partial(scores_of_one, tables=tables[..., 0])
    for call in (partial(sum_of_rows, tables=tables), of_one, partial(codeword_usage, n_codewords=W)):
        with pytest.raises(IndexError, match=r"codes must lie in 0\.\.4, got 0\.\.5"):
            call(torch.tensor([[0, 0, W]]))
    with pytest.raises(IndexError, match=r"codes must lie in 0\.\.4, got 0\.\.5"):
        coded_cross_entropy(X[0], [(torch.arange(9).view(9, 1) % 6, torch.ones(1, W, D))], whole(L))
    in_group = partial(catalogue_cross_entropy, X[0], X[1], whole(L))
    inside: dict[str, Callable[[Tensor], Any]] = {
        "target": partial(catalogue_cross_entropy, X[0], X[1]),
        "excluded . 1": lambda x: in_group(excluded=x.view(1, L), group=whole(L)),
        "group": lambda x: in_group(excluded=whole(L, 2), group=x),
        "index": lambda x: pair_scores(X[0], X[1], x.view(L, 1)),
        "members": lambda x: balanced_cluster_attention(X, X, X, x.view(1, 3, 3).expand(N, -1, -1) + 1),
    }
    for name, call in inside.items():
        with pytest.raises(IndexError, match=rf"{name} must lie in 0\.\.\d, got (9|10)\.\.(9|10)"):
            call(whole(L) + L)
    with pytest.raises(IndexError, match=r"excluded . 1 must lie in 0\.\.9, got -1\.\.-1"):  # -1 is none
        in_group(excluded=whole(1, L) - 2, group=whole(L))
    in_row: dict[str, Callable[[Tensor], Any]] = {
        "index": lambda x: take_rows(X, x),
        "cluster": lambda x: cluster_means(X, x, VALID, L),
        "cluster ": lambda x: group_queries(x, L),
        " cluster": lambda x: cluster_sums(X.flatten(0, 1), x.flatten(), L),
    }
    for name, call in in_row.items():
        for number in (-1, L):
            with pytest.raises(IndexError, match=rf"{name.strip()} must lie in 0\.\.8, got"):
                call(whole(N, L) + number)
    for number in (-0.5, float("inf")):
        with pytest.raises(ValueError, match=f"assignment must be at least 0 and finite, got .*{number:g}"):
            lisa_attention_last(**{**GOOD[lisa_attention_last], "assignment": torch.full((6, 3, W), number)})
