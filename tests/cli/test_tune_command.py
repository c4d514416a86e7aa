"""`recbole-lisa tune`: what it makes of its words, and one line for every mistake before a trial begins."""

import sys
from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.cli import tune_command as command
from recbole_lisa.cli.main import main
from recbole_lisa.tuning.run import Plan, Resources
from recbole_lisa.tuning.space import Domain
from tests.tiny import write_tiny_dataset

WORDS = ["tune", "-m", "LISASoft", "-d", "ml-100k"]


@pytest.fixture
def plans(isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the search by a recorder of what it is asked for."""
    recorded: list[dict[str, Any]] = []

    def run_plan(plan: Plan, folder: Path, resources: Resources, *, resume: bool) -> int:
        recorded.append({"plan": plan, "folder": folder, "resources": resources, "resume": resume})
        return 0

    monkeypatch.setattr(command, "run_plan", run_plan)
    return recorded


def test_defaults_are_short_trials_under_asha(plans: list[dict[str, Any]], isolated_run_dir: Path) -> None:
    assert main(WORDS) == 0
    (asked,) = plans
    plan = asked["plan"]
    assert (plan.search, plan.num_samples, plan.epochs, plan.seed, plan.valid_metric) == (
        "random", 10, 30, 2020, "NDCG@10"
    )  # fmt: skip
    assert plan.halving == {"epochs": 30, "grace_period": 5, "reduction_factor": 3}
    assert plan.space["n_codewords"] == Domain("choice", (8, 16, 32, 64))
    assert plan.default["n_codewords"] == 16
    assert asked["folder"] == isolated_run_dir / "tuned" / "LISASoft-ml-100k-full_ranking"
    assert (asked["resources"], asked["resume"]) == (Resources(1.0, None, None), False)


def test_words_are_taken_and_paths_made_absolute(plans: list[dict[str, Any]], isolated_run_dir: Path) -> None:
    write_tiny_dataset(Path("data"))
    Path("mine.yaml").write_text("n_layers: 2\nepochs: 12\n", encoding="utf-8")
    Path("space.yaml").write_text("n_codewords: [8, 16]\nlearning_rate: [0.01]\n", encoding="utf-8")
    words = [
        *(
            "tune",
            "-m",
            "LISASoft",
            "-d",
            "tiny",
            "--data_path=data",
            "--topk=[5]",
            "--valid_metric=NDCG@5",
            "--seed=7",
        ),
        *("--config_files", "mine.yaml", "--space=space.yaml", "--search=grid", "--gpus_per_trial=0.25", "--resume"),
        *("--cpus_per_trial=2", "--address=auto", "--storage=kept", "--name=first", "--learning_rate=0.02"),
    ]
    assert main(words) == 0
    (asked,) = plans
    plan = asked["plan"]
    assert plan.space == {"n_codewords": Domain("choice", (8, 16))}  # what is set is not searched
    assert (plan.num_samples, plan.epochs, plan.seed, plan.valid_metric) == (None, 12, 7, "NDCG@5")
    assert plan.halving["grace_period"] == 2
    assert plan.request.config_files == [str(isolated_run_dir / "mine.yaml")]
    assert plan.request.settings["data_path"] == str(isolated_run_dir / "data")
    assert asked["folder"] == isolated_run_dir / "kept" / "first"
    assert (asked["resources"], asked["resume"]) == (Resources(2.0, 0.25, "auto"), True)
    config = plan.request.config({"n_codewords": 8})
    assert [config[key] for key in ("n_layers", "learning_rate", "n_codewords")] == [2, 0.02, 8]


def test_the_same_words_are_the_same_search(plans: list[dict[str, Any]]) -> None:
    main([*WORDS, "--num_samples=8"])
    main([*WORDS, "--num_samples=9", "--cpus_per_trial=2"])
    main([*WORDS, "--scheduler=none"])
    first, more, other = (asked["plan"].identity() for asked in plans)
    assert first == more
    assert other["scheduler"] == "none"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "LISASfot"], "Did you mean 'LISASoft'?"),
        (["--epocs=3"], "unknown key 'epocs' (command line). Did you mean 'epochs'?"),
        (["--protocol=paper"], "write --protocol=full_ranking"),
        (["--space=LISASfot"], "Did you mean 'LISASoft'?"),
        (["--space=bad.yaml"], "unknown key 'n_codeword' (space '"),
        (["--space=broken.yaml"], "is not valid yaml"),
        (["--space=one.yaml", "--n_codewords=8"], "nothing is left to search"),
        (["--search=grid"], "--search=grid needs choices"),
        (["--search=grid", "--space=one.yaml", "--num_samples=3"], "leave --num_samples=3 out"),
        (["--search=bayes"], "invalid choice: 'bayes'"),
        (["--num_samples=0"], "--num_samples is 0, it must be at least 1"),
        (["--scheduler=none", "--grace_period=3"], "--grace_period=3 is of asha"),
        (["--grace_period=31"], "--grace_period is 31, it must be from 1 to epochs, 30"),
        (["--reduction_factor=1"], "--reduction_factor is 1, it must be at least 2"),
        (["--cpus_per_trial=0"], "--cpus_per_trial is 0, it must be above 0"),
        (["--gpus_per_trial=-1"], "--gpus_per_trial is -1, it must be at least 0"),
        (["--gpus_per_trial=0.5", "--use_gpu=False"], "--gpus_per_trial is 0.5, but use_gpu is False"),
        (["--gpu_id=1"], "use --gpus_per_trial"),
        (["--checkpoint_dir=here"], "use --storage"),
        (["--resume=auto"], "argument --resume: ignored explicit argument 'auto'"),
        (["--name=a/b"], "--name is 'a/b', it must be the name of one folder"),
        (["--name=.."], "--name is '..', it must be the name of one folder"),
        (["--name="], "--name is '', it must be the name of one folder"),
        (["--storage=one.yaml"], "nothing can be written there"),
        (["--storage="], "--storage is empty"),
        (["--config_files=two.yaml"], "'nproc' in --config_files is no setting of a search"),
        (["--config_files=shared.yaml"], "'result_file' in --config_files is no setting of a search"),
    ],
)
def test_mistakes_stop_before_ray_starts(
    isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("recbole_lisa.tuning.ray_adapter.check_tune", None)
    files = {
        "bad.yaml": "n_codeword: [8]\n", "broken.yaml": "a: [1\n", "one.yaml": "n_codewords: [8, 16]\n",
        "two.yaml": "nproc: 2\n", "shared.yaml": "result_file: r.json\n",
    }  # fmt: skip
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    model = [] if "-m" in words else ["-m", "LISASoft"]
    assert main(["tune", *model, "-d", "ml-100k", *words]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("error: ") and errors.count("\n") == 1
    assert message in errors
    assert {path.name for path in isolated_run_dir.iterdir()} == set(files)


def test_a_search_that_is_there_is_not_begun_again(
    isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("recbole_lisa.tuning.ray_adapter.check_tune", lambda: None)
    folder = Path("tuned") / "LISASoft-ml-100k-full_ranking"
    folder.mkdir(parents=True)
    assert main([*WORDS, "--resume"]) == 2
    assert "to resume: leave --resume out" in capsys.readouterr().err
    (folder / "search.json").write_text('{"seed": 1}', encoding="utf-8")
    assert main(WORDS) == 2
    assert "holds a search already: go on with it by --resume" in capsys.readouterr().err
    assert main([*WORDS, "--resume"]) == 2
    assert "seed is 1 there and 2020 here" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["search.json"]


def test_a_space_that_the_model_refuses_leaves_nothing_behind(
    isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("recbole_lisa.tuning.ray_adapter.check_tune", lambda: None)
    monkeypatch.setattr("recbole_lisa.tuning.ray_adapter.ray_session", None)
    Path("space.yaml").write_text("n_heads: [3, 5]\n", encoding="utf-8")
    assert main(["tune", "-m", "Transformer", "-d", "ml-100k", "--space=space.yaml"]) == 2
    assert "the model refuses every combination of the space, the last one since n_heads" in capsys.readouterr().err
    assert [path.name for path in isolated_run_dir.iterdir()] == ["space.yaml"]


@pytest.mark.parametrize("package", ["ray.tune", "pyarrow"])
def test_without_what_tune_needs_the_extra_is_named(
    isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main(WORDS) == 2
    assert "pip install 'recbole-lisa[tune]'" in capsys.readouterr().err
    assert list(isolated_run_dir.iterdir()) == []
