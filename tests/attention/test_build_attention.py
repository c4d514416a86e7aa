import pytest
import torch

from recbole_lisa.attention import MECHANISMS, build_attention


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_is_built_by_name_and_used_outside_recbole(name: str) -> None:
    attention = build_attention(name, hidden_size=8, max_length=20)
    assert isinstance(attention, MECHANISMS[name])
    assert attention(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)).shape == (2, 5, 8)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lissa", {}, "unknown attention 'lissa': did you mean 'lisa'"),
        ("xyz", {}, "unknown attention 'xyz': choose from .*lisa"),
        ("lisa", {"n_codeword": 4}, "'lisa' has no setting 'n_codeword': did you mean 'n_codewords'"),
        ("full", {"n_codebooks": 4}, "'full' has no setting 'n_codebooks'"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(name: str, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_attention(name, hidden_size=8, max_length=20, **settings)
