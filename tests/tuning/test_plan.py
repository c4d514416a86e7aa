"""What is planned before a trial begins: checks against the model, the default first, the same draws every time."""

from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.errors import UsageError
from recbole_lisa.tuning.plan import Request, check_space, check_validation, defaults, planned
from recbole_lisa.tuning.space import Domain, Settings

REQUEST = Request("LISASoft", "ml-100k")
SPACE = {"n_codewords": Domain("choice", (8, 16)), "learning_rate": Domain("log_uniform", (1e-4, 1e-2))}
DEFAULT = {"n_codewords": 16, "learning_rate": 0.001}


def accept(chosen: Settings) -> None:
    return None


def plan(search: str = "random", space: Any = None, num_samples: int | None = 5, **more: Any) -> list[Settings]:
    arguments = {"num_samples": num_samples, "seed": 3, "problem": accept, **more}
    return planned(search, space or SPACE, DEFAULT, **arguments)


def test_a_request_builds_the_configuration_of_a_trial(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("n_layers: 2\nhidden_dropout_prob: 0.3\n", encoding="utf-8")
    request = Request("LISASoft", "ml-100k", "paper", [str(file)], {"epochs": "7"})
    assert Request(**request.plain()) == request
    config = request.config({"hidden_dropout_prob": 0.2}, {"show_progress": False})
    shown = [config[key] for key in ("protocol", "n_layers", "hidden_dropout_prob", "epochs", "show_progress")]
    assert shown == ["paper", 2, 0.2, 7, False]


def test_defaults_are_those_of_the_searched_keys() -> None:
    assert defaults(REQUEST.config({}), SPACE) == DEFAULT


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"n_codeword": Domain("choice", (8,))}, "unknown key 'n_codeword' (space). Did you mean 'n_codewords'?"),
        ({"n_codewords": Domain("choice", (8, "many"))}, "n_codewords (space) is 'many', it must be int"),
        ({"n_codewords": Domain("choice", (8, 0))}, "n_codewords (space) is 0, it must be >= 1"),
        ({"hidden_dropout_prob": Domain("uniform", (0, 1.5))}, "hidden_dropout_prob (space) is 1.5"),
        ({"n_codewords": Domain("uniform", (8, 64))}, "it must be int: write n_codewords: {integers: [8, 64]}"),
        ({"n_codewords": Domain("log_uniform", (8, 64))}, "it must be int: write n_codewords: {log_integers: [8, 64]}"),
    ],
)
def test_keys_and_values_are_those_of_the_model(space: dict[str, Domain], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_space(REQUEST.config({}), space, "space")
    assert message in str(caught.value)


def test_values_get_the_type_of_their_key() -> None:
    space = check_space(REQUEST.config({}), {"hidden_dropout_prob": Domain("choice", (0, 0.5))}, "space")
    assert [type(value) for value in space["hidden_dropout_prob"].values] == [float, float]


def test_a_search_needs_validation_items() -> None:
    with pytest.raises(UsageError, match="protocol 'paper' has no validation items .* write --protocol=full_ranking"):
        check_validation(Request("LISASoft", "ml-100k", "paper").config({}))
    kept = Request("LISASoft", "ml-100k", "paper", settings={"eval_args": "{split: {LS: valid_and_test}}"}).config({})
    check_validation(kept)
    assert kept["eval_args"]["mode"] == {"valid": "uni100", "test": "uni100"}


def test_the_default_comes_first_and_more_trials_begin_with_the_same_ones() -> None:
    chosen = plan()
    assert chosen[0] == DEFAULT
    assert len(chosen) == 5
    assert all(chosen.count(settings) == 1 for settings in chosen)
    assert plan(num_samples=9)[:5] == chosen
    assert plan(seed=4)[1] != chosen[1]


def test_a_small_space_gives_fewer_trials() -> None:
    space = {"n_codewords": Domain("choice", (8, 16, 32)), "learning_rate": Domain("choice", (0.001,))}
    assert sorted(settings["n_codewords"] for settings in plan(space=space, num_samples=20)) == [8, 16, 32]


def test_a_grid_has_the_default_once_and_every_combination() -> None:
    space = {"n_codewords": Domain("choice", (8, 16)), "learning_rate": Domain("choice", (0.001, 0.01))}
    chosen = plan("grid", space, None)
    assert chosen[0] == DEFAULT
    assert len(chosen) == 4


def test_refused_combinations_are_left_out() -> None:
    def problem(chosen: Settings) -> str | None:
        return "8 is too few" if chosen["n_codewords"] == 8 else None

    assert [settings["n_codewords"] for settings in plan(problem=problem)] == [16] * 5
    with pytest.raises(UsageError, match="refuses every combination of the space, the last one since no"):
        plan(problem=lambda chosen: "no")


def test_a_refused_combination_is_asked_about_once() -> None:
    asked: list[Settings] = []
    space = {"n_codewords": Domain("choice", (8, 32))}
    with pytest.raises(UsageError, match="refuses every combination"):
        plan(space=space, problem=lambda chosen: str(asked.append(chosen)))
    assert sorted(chosen["n_codewords"] for chosen in asked) == [8, 32]
