import pytest
import torch

from recbole_lisa.attention.codebook import Codebook
from recbole_lisa.layers.dropout import Dropout
from tests.helpers import assert_close


def test_codebook_uses_its_settings() -> None:
    x = torch.randn(9, 6)
    base = {"hidden_size": 6, "n_codebooks": 2, "n_codewords": 4, "similarity": "dot"}
    hard = Codebook(**base)
    outputs = [hard(x).assignment]
    for change in ({"hard": False}, {"hard": False, "temperature": 2.0}, {"hard": False, "encoding": "parallel"}):
        other = Codebook(**base, **change)
        other.load_state_dict(hard.state_dict())
        outputs.append(other(x).assignment)
    for i, a in enumerate(outputs):
        for b in outputs[:i]:
            assert not torch.allclose(a, b)


def test_codebook_stays_float32_under_autocast() -> None:
    codebook = Codebook(hidden_size=6, n_codebooks=2, n_codewords=4)
    x = torch.randn(9, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = codebook(x.bfloat16())
    assert half.reconstruction.dtype == torch.float32
    assert torch.equal(half.codes, codebook(x.bfloat16().float()).codes)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_drops_the_fraction_p_and_keeps_the_mean(p: float) -> None:
    x = torch.ones(1001, 999)
    out = Dropout(p)(x)
    dropped = (out == 0).float().mean().item()
    assert dropped == pytest.approx(p, abs=4 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-5)
    assert_close(out[out != 0], torch.full_like(out[out != 0], 1 / (1 - p)), computed_in=torch.bfloat16)
    assert out.mean().item() == pytest.approx(1.0, abs=0.01)


def test_dropout_follows_the_seed_in_both_passes_and_rests_in_eval() -> None:
    dropout, x = Dropout(0.3), torch.randn(33, 7, requires_grad=True)
    torch.manual_seed(3)
    out = dropout(x)
    out.sum().backward()
    assert torch.equal(x.grad == 0, out == 0)
    assert_close(x.grad * x, out)
    torch.manual_seed(3)
    assert torch.equal(dropout(x), out)
    assert torch.equal(dropout.eval()(x), x)


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_dropout_names_a_wrong_probability(p: float) -> None:
    assert torch.isfinite(Dropout(0.999999)(torch.ones(50, 50))).all()
    with pytest.raises(ValueError, match=rf"in \[0, 1\), got {p}"):
        Dropout(p)
