"""Spaces: what a file may say, the checks against the model, and the settings of the trials."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS
from recbole_lisa.errors import UsageError
from recbole_lisa.tuning import space as spaces
from recbole_lisa.tuning.space import Domain, Settings, grid, read_space, space_file
from recbole_lisa.tuning.trial import build_config

SPACE = {"n_codewords": Domain("choice", (8, 16)), "learning_rate": Domain("log_uniform", (1e-4, 1e-2))}
DEFAULT = {"n_codewords": 16, "learning_rate": 0.001}


def write(folder: Path, text: str) -> Path:
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def config(**settings: Any) -> Any:
    return build_config({"model": "LISASoft", "dataset": "ml-100k", **settings})


def accept(chosen: Settings) -> None:
    return None


def plan(num_samples: int = 5, *, seed: int = 3, space: Any = None, problem: Any = accept) -> list[Settings]:
    return spaces.planned(spaces.draws(space or SPACE, seed), DEFAULT, num_samples, problem)


def test_space_is_lists_and_ranges(tmp_path: Path) -> None:
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
        ("a: {integers: [1, True]}", "two integers"),
        ("a: {uniform: [2, 1]}", "the first number must be below the second"),
        ("a: {log_uniform: [0, 1]}", "the numbers must be above 0"),
        ("epochs: [10, 20]", "'epochs' cannot be searched"),
        ("valid_metric: [NDCG@10, HR@10]", "cannot be compared"),
        ("nproc: [1, 2]", "a trial is one process"),
        ("gpu_id: [0, 1]", "it does not change what a model learns"),
        ("a: [1\n", "is not valid yaml"),
    ],
)
def test_malformed_space_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_space(write(tmp_path, text))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"n_codeword": Domain("choice", (8,))}, "unknown key 'n_codeword' (space). Did you mean 'n_codewords'?"),
        ({"n_codewords": Domain("choice", (8, "many"))}, "n_codewords (space) is 'many', it must be int"),
        ({"n_codewords": Domain("choice", (8, 0))}, "n_codewords (space) is 0, it must be >= 1"),
        ({"hidden_dropout_prob": Domain("uniform", (0, 1.5))}, "hidden_dropout_prob (space) is 1.5"),
        ({"n_codewords": Domain("log_uniform", (8, 64))}, "it must be int: write n_codewords: {log_integers: [8, 64]}"),
    ],
)
def test_keys_and_values_are_those_of_the_model(space: dict[str, Domain], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        spaces.check_space(config(), space, "space")
    assert message in str(caught.value)


def test_values_get_the_type_of_their_key_and_lists_become_text() -> None:
    written = {"hidden_dropout_prob": Domain("choice", (0, 0.5)), "adam_betas": Domain("choice", ([0.9, 0.98],))}
    space = spaces.check_space(config(), written, "space")
    assert [type(value) for value in space["hidden_dropout_prob"].values] == [float, float]
    (text,) = space["adam_betas"].values
    assert config(adam_betas=text)["adam_betas"] == [0.9, 0.98]
    assert spaces.plain_value(None) is None and spaces.plain_value("learnable") == "learnable"


@pytest.mark.parametrize(
    ("kind", "low", "high", "in_ray"),
    [
        ("uniform", 0, 0.5, ("uniform", 0.0, 0.5)),
        ("log_uniform", 3e-4, 3e-3, ("loguniform", 3e-4, 3e-3)),
        ("integers", 1, 3, ("randint", 1, 4)),
        ("log_integers", 1, 64, ("lograndint", 1, 65)),
    ],
)
def test_draws_fill_the_range_as_in_ray(kind: Any, low: float, high: float, in_ray: tuple[str, float, float]) -> None:
    domain, rng = Domain(kind, (low, high)), np.random.default_rng(3)
    drawn = [domain.draw(rng) for _ in range(2000)]
    assert low <= min(drawn) and max(drawn) <= high
    assert all(isinstance(value, int) is domain.is_integer for value in drawn)
    assert all(value == float(f"{value:.4g}") for value in drawn)
    middle = math.sqrt(low * high) if domain.kind.startswith("log_") else (low + high) / 2
    below = sum(value < middle for value in drawn) + sum(value == middle for value in drawn) / 2
    assert 0.4 < below / len(drawn) < 0.6
    if domain.is_integer:
        assert {low, high} <= set(drawn)
    choice = Domain("choice", ("[1]", None, "x"))
    assert {choice.draw(rng) for _ in range(60)} == set(choice.values)
    function, *ends = in_ray
    same, converted = getattr(pytest.importorskip("ray.tune"), function)(*ends), domain.to_ray()
    assert converted.domain_str == same.domain_str
    assert type(converted.get_sampler()) is type(same.get_sampler())
    assert choice.to_ray().categories == list(choice.values)


def test_default_comes_first_and_more_trials_extend_the_list() -> None:
    chosen = plan()
    assert chosen[0] == DEFAULT
    assert len(chosen) == 5
    assert all(chosen.count(settings) == 1 for settings in chosen)
    assert plan(num_samples=9)[:5] == chosen
    assert plan(seed=4)[1] != chosen[1]


def test_small_space_gives_fewer_trials_and_a_grid_every_combination_once() -> None:
    space = {"n_codewords": Domain("choice", (8, 16, 32)), "learning_rate": Domain("choice", (0.001,))}
    assert sorted(settings["n_codewords"] for settings in plan(space=space, num_samples=20)) == [8, 16, 32]
    space["learning_rate"] = Domain("choice", (0.001, 0.01))
    assert list(grid(space))[:2] == [{"n_codewords": 8, "learning_rate": rate} for rate in (0.001, 0.01)]
    chosen = spaces.planned(grid(space), DEFAULT, None, accept)
    assert chosen[0] == DEFAULT
    assert len(chosen) == 6
    with pytest.raises(UsageError, match="learning_rate has the range log_uniform"):
        list(grid({**space, "learning_rate": SPACE["learning_rate"]}))


def test_refused_combinations_are_left_out_and_checked_once() -> None:
    def problem(chosen: Settings) -> str | None:
        return "8 is too few" if chosen["n_codewords"] == 8 else None

    assert [settings["n_codewords"] for settings in plan(problem=problem)] == [16] * 5
    checked: list[Settings] = []
    space = {"n_codewords": Domain("choice", (8, 32))}
    with pytest.raises(UsageError, match="refuses every combination of the space, the last one because None"):
        plan(space=space, problem=lambda chosen: str(checked.append(chosen)))
    assert sorted(chosen["n_codewords"] for chosen in checked) == [8, 32]


def test_space_file_is_a_path_a_name_or_the_file_of_the_model(tmp_path: Path) -> None:
    path = write(tmp_path, "a: [1]")
    assert space_file(str(path), "LISASoft") == path
    folder = properties_path() / "tuning"
    assert space_file(None, "LISASoft") == folder / "LISASoft.yaml"
    assert {path.stem for path in folder.iterdir()} == {*MODELS, *OPTIONAL_MODELS, "sensitivity"}
    assert read_space(space_file("sensitivity", "LISASoft")) == {
        "n_codebooks": Domain("choice", (8,)),
        "n_codewords": Domain("choice", (16, 32, 48, 64, 80, 96)),
    }  # the study of the paper
    with pytest.raises(UsageError, match="Did you mean 'sensitivity'"):
        space_file("sensitivty", "LISASoft")


@pytest.mark.parametrize("name", MODELS)
def test_shipped_space_fits_its_model_and_has_its_default(name: str) -> None:
    base = config(model=name)
    space = spaces.check_space(base, read_space(space_file(None, name)), name)
    default = spaces.defaults(base, space)
    for key, domain in space.items():
        low, high = domain.values[0], domain.values[-1]
        assert default[key] in domain.values if domain.kind == "choice" else low <= default[key] <= high
    for chosen in spaces.planned(spaces.draws(space, 1), default, 4, accept):
        trial = config(model=name, **chosen)
        assert {key: spaces.plain_value(trial[key]) for key in chosen} == chosen
