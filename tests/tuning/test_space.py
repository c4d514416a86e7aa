"""Spaces: what a file may say, what is drawn from it, and that every shipped space fits its model."""

import math
from pathlib import Path

import numpy as np
import pytest

from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS
from recbole_lisa.errors import UsageError
from recbole_lisa.tuning.plan import Request, check_space, defaults, planned
from recbole_lisa.tuning.space import Domain, grid, read_space, space_file


def write(folder: Path, text: str) -> Path:
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_space_is_lists_and_ranges(tmp_path: Path) -> None:
    text = "a: [1, x, [2, 3], ~]\nb: {log_uniform: [1e-4, 1e-2]}\nc: {integers: [1, 3]}\nd: {uniform: [0, 0.5]}\n"
    assert read_space(write(tmp_path, text)) == {
        "a": Domain("choice", (1, "x", [2, 3], None)),
        "b": Domain("log_uniform", (1e-4, 1e-2)),
        "c": Domain("integers", (1, 3)),
        "d": Domain("uniform", (0, 0.5)),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a: []", "no value to choose"),
        ("a: 3", "a in the space"),
        ("a: [1, 2, 1]", "has 1 twice"),
        ("a: {log_unifrom: [1, 2]}", "Did you mean 'log_uniform'"),
        ("a: {uniform: [1, 2], integers: [1, 2]}", "write a list of values, or one of"),
        ("a: {uniform: [1]}", "must be [low, high], two numbers"),
        ("a: {uniform: [1, .inf]}", "must be [low, high], two numbers"),
        ("a: {integers: [1, 2.5]}", "two whole numbers"),
        ("a: {integers: [1, True]}", "two whole numbers"),
        ("a: {uniform: [2, 1]}", "the first number must be below the second"),
        ("a: {log_uniform: [0, 1]}", "the numbers must be above 0"),
        ("epochs: [10, 20]", "epochs in the space"),
        ("valid_metric: [NDCG@10, HR@10]", "cannot be compared"),
        ("gpu_id: [0, 1]", "it does not change what is learnt"),
        ("a: [1\n", "is not valid yaml"),
    ],
)
def test_a_malformed_space_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_space(write(tmp_path, text))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("domain", "low", "high"),
    [
        (Domain("uniform", (0, 0.5)), 0, 0.5),
        (Domain("log_uniform", (3e-4, 3e-3)), 3e-4, 3e-3),
        (Domain("integers", (1, 3)), 1, 3),
        (Domain("log_integers", (1, 64)), 1, 64),
    ],
)
def test_draws_fill_the_range_and_stay_in_it(domain: Domain, low: float, high: float) -> None:
    rng = np.random.default_rng(3)
    drawn = [domain.draw(rng) for _ in range(2000)]
    assert low <= min(drawn) and max(drawn) <= high
    assert all(isinstance(value, int) is domain.is_integer for value in drawn)
    assert all(value == float(f"{value:.4g}") for value in drawn)
    middle = math.sqrt(low * high) if domain.is_log else (low + high) / 2
    below = sum(value < middle for value in drawn) + sum(value == middle for value in drawn) / 2
    assert 0.4 < below / len(drawn) < 0.6
    if domain.is_integer:
        assert {low, high} <= set(drawn)


def test_choices_are_all_drawn() -> None:
    rng = np.random.default_rng(3)
    domain = Domain("choice", ([1], None, "x"))
    drawn = [domain.draw(rng) for _ in range(60)]
    assert all(value in drawn for value in domain.values)


def test_a_grid_is_every_combination() -> None:
    space = {"a": Domain("choice", (1, 2)), "b": Domain("choice", ("x", "y", "z"))}
    combinations = list(grid(space))
    assert combinations[:2] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]
    assert len(combinations) == 6
    with pytest.raises(UsageError, match="b has the range uniform"):
        list(grid({**space, "b": Domain("uniform", (0, 1))}))


def test_a_space_is_found_by_path_by_name_and_by_model(tmp_path: Path) -> None:
    path = write(tmp_path, "a: [1]")
    assert space_file(str(path), "LISASoft") == path
    assert space_file(None, "LISASoft") == properties_path() / "tuning" / "LISASoft.yaml"
    assert space_file("sensitivity", "LISASoft").stem == "sensitivity"
    with pytest.raises(UsageError, match="Did you mean 'sensitivity'"):
        space_file("sensitivty", "LISASoft")


def test_every_model_has_a_space() -> None:
    names = {path.stem for path in (properties_path() / "tuning").iterdir()}
    assert names == {*MODELS, *OPTIONAL_MODELS, "sensitivity"}


@pytest.mark.parametrize("name", MODELS)
def test_a_shipped_space_fits_its_model_and_holds_its_default(name: str) -> None:
    request = Request(name, "ml-100k")
    config = request.config({})
    space = check_space(config, read_space(space_file(None, name)), name)
    default = defaults(config, space)
    assert [key for key, domain in space.items() if not domain.holds(default[key])] == []
    for chosen in planned("random", space, default, num_samples=4, seed=1, problem=lambda chosen: None):
        assert {key: request.config(chosen)[key] for key in chosen} == chosen


def test_the_study_of_the_number_of_codewords_is_the_papers() -> None:
    space = read_space(space_file("sensitivity", "LISASoft"))
    assert space == {
        "n_codebooks": Domain("choice", (8,)),
        "n_codewords": Domain("choice", (16, 32, 48, 64, 80, 96)),
    }
