from typing import Any

import pytest
import torch
from torch import Tensor

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.ops.codeword_usage import codeword_usage

SIMILARITIES, ENCODINGS = ("bilinear", "dot", "euclidean"), ("residual", "parallel")


def build(**settings: Any) -> Codebook:
    return Codebook(hidden_size=16, n_codebooks=3, n_codewords=8, **settings)


def perplexity(codebook: Codebook, x: Tensor) -> Tensor:
    return codeword_usage(codebook(x).codes, 8).perplexity


@pytest.mark.parametrize("hard", [True, False], ids=["hard", "soft"])
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_codebooks_from_data_use_all_codewords(similarity: str, encoding: str, hard: bool) -> None:
    codebook = build(similarity=similarity, encoding=encoding, hard=hard)
    x = torch.randn(16) * 2 + torch.randn(500, 16)
    codebook.restart(x, used_too=True)
    assert (perplexity(codebook, x) > 5).all()
    assert all(p.requires_grad for p in codebook.parameters())


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_a_collapsed_codebook_uses_more_codewords_after_restarts_and_keeps_those_in_use(similarity: str) -> None:
    codebook, x = build(similarity=similarity, encoding="parallel"), torch.randn(16) * 3 + torch.randn(500, 16)
    with torch.no_grad():
        codebook.codewords[0] *= 1e-3
        first = x.mean(dim=0) if codebook.bilinear is None else x.mean(dim=0) @ codebook.bilinear
        codebook.codewords[0, 5] = first / first.norm()
    before, kept = perplexity(codebook, x), codebook.codewords[0, 5].clone()
    assert before[0] == 1
    codebook.restart(x, used_too=False)
    assert torch.equal(codebook.codewords[0, 5], kept)
    assert perplexity(codebook, x)[0] > 2


def test_equal_vectors_give_equal_codewords_and_no_draw_of_the_caller_changes() -> None:
    codebooks, x = [build(), build()], torch.randn(100, 16)
    state = torch.get_rng_state()
    for codebook in codebooks:
        codebook.restart(x, used_too=True)
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(*(codebook.parameters() for codebook in codebooks), strict=True):
        assert torch.equal(one, other)


def test_codebook_stays_float32_under_autocast() -> None:
    codebook = Codebook(hidden_size=6, n_codebooks=2, n_codewords=4)
    x = torch.randn(9, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = codebook(x.bfloat16())
    assert half.reconstruction.dtype == torch.float32
    assert torch.equal(half.codes, codebook(x.bfloat16().float()).codes)
