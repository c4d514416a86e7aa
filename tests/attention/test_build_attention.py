import inspect

import pytest
import torch

from recbole_lisa.attention import MECHANISMS, OPTIONAL_MECHANISMS, build_attention


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_is_built_by_name_and_used_outside_recbole(name: str) -> None:
    attention = build_attention(name, hidden_size=8, max_length=20)
    assert isinstance(attention, MECHANISMS[name])
    assert attention(torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)).shape == (2, 5, 8)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lissa", {}, "unknown attention 'lissa': known are .* Did you mean 'lisa'"),
        ("xyz", {}, "unknown attention 'xyz': known are .*lisa"),
        ("lisa", {"n_codeword": 4}, "'lisa' has no setting 'n_codeword': .* Did you mean 'n_codewords'"),
        ("full", {"n_codebooks": 4}, "'full' has no setting 'n_codebooks'"),
        *(
            (name, settings, message)
            for name in [*MECHANISMS, *OPTIONAL_MECHANISMS]
            for settings, message in (
                ({"max_length": 0}, "max_length must be at least 1, got 0"),
                ({"max_length": -5}, "max_length must be at least 1, got -5"),
                ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
            )
        ),
    ],
)
def test_unknown_names_and_impossible_sizes_are_named(name: str, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_attention(name, **{"hidden_size": 8, "max_length": 20, **settings})


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "lisa"])
def test_constructors_refuse_impossible_sizes_themselves(name: str) -> None:
    mechanism = MECHANISMS[name]
    sizes = {"hidden_size": 8, "max_length": 20}
    for wrong in sizes.keys() & inspect.signature(mechanism).parameters.keys():
        known = {size: sizes[size] for size in sizes if size in inspect.signature(mechanism).parameters}
        with pytest.raises(ValueError, match=f"{wrong} must be at least 1, got -1"):
            mechanism(**{**known, wrong: -1})
