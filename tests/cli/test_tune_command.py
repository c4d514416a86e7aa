"""`recbole-lisa tune`: what it makes of its arguments, and one line for every mistake before a trial begins."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from recbole_lisa.cli import tune_command as command
from recbole_lisa.cli.main import main
from recbole_lisa.tuning.space import Domain
from recbole_lisa.tuning.trial import build_config
from tests.helpers import refusal
from tests.tiny import write_tiny_dataset

ARGUMENTS = ["tune", "-m", "LISASoft", "-d", "ml-100k"]


@pytest.fixture
def search(isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A recorder of arguments in place of the search."""
    recorder = Mock(return_value=0)
    monkeypatch.setattr(command, "run_study", recorder)
    return recorder


def test_defaults_are_short_trials_under_asha(search: Mock, isolated_run_dir: Path) -> None:
    assert main(ARGUMENTS) == 0
    (study,), options = search.call_args
    assert (study.search, study.num_samples, study.fixed["epochs"], study.seed) == ("random", 10, 30, 2020)
    assert study.valid_metric == "NDCG@10"
    assert study.halving == {"max_t": 31, "grace_period": 5, "reduction_factor": 3}
    assert study.space["n_codewords"] == Domain("choice", (8, 16, 32, 64))
    assert study.default["n_codewords"] == 16
    assert study.folder == isolated_run_dir / "tuned" / "LISASoft-ml-100k-full_ranking"
    assert (study.resources, options) == ((1.0, None), {"address": None, "resume": False})
    main([*ARGUMENTS, "--scheduler=none", "--use_gpu=False"])
    (study,), _ = search.call_args
    assert (study.halving, study.resources) == (None, (1.0, 0.0))


def test_arguments_are_taken_and_paths_made_absolute(search: Mock, isolated_run_dir: Path) -> None:
    write_tiny_dataset(Path("data"))
    Path("mine.yaml").write_text("n_layers: 2\nepochs: 12\n", encoding="utf-8")
    Path("space.yaml").write_text("n_codewords: [8, 16]\nlearning_rate: [0.01]\n", encoding="utf-8")
    arguments = [
        *("tune", "-m", "LISASoft", "-d", "tiny", "--data_path=data", "--topk=[5]", "--valid_metric=NDCG@5"),
        *("--config_files", "mine.yaml", "--space=space.yaml", "--search=grid", "--gpus_per_trial=0.25", "--resume"),
        *("--cpus_per_trial=2", "--address=auto", "--storage=kept", "--name=first", "--learning_rate=0.02", "--seed=7"),
    ]
    assert main(arguments) == 0
    (study,), options = search.call_args
    assert study.space == {"n_codewords": Domain("choice", (8, 16))}  # a key that is set is not searched
    assert (study.num_samples, study.seed, study.valid_metric) == (None, 7, "NDCG@5")
    assert study.halving is not None and study.halving["grace_period"] == 2
    assert study.fixed["config_files"] == [str(isolated_run_dir / "mine.yaml")]
    assert study.fixed["data_path"] == str(isolated_run_dir / "data")
    assert study.folder == isolated_run_dir / "kept" / "first"
    assert (study.resources, options) == ((2.0, 0.25), {"address": "auto", "resume": True})
    config = build_config({**study.fixed, "n_codewords": 8})
    assert [config[key] for key in ("n_layers", "learning_rate", "n_codewords", "epochs")] == [2, 0.02, 8, 12]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "LISASfot"], "Did you mean 'LISASoft'?"),
        (["-d", "ml-100q"], "there is no file"),
        (["--epocs=3"], "unknown key 'epocs' (command line). Did you mean 'epochs'?"),
        (["--num_sample=2"], "unknown key 'num_sample' (command line). Did you mean 'num_samples'?"),
        (["--protocol=paper"], "write --protocol=full_ranking"),
        (["--space=LISASfot"], "Did you mean 'LISASoft'?"),
        (["--space=bad.yaml"], "unknown key 'n_codeword' (space '"),
        (["--space=broken.yaml"], "is not valid yaml"),
        (["--space=one.yaml", "--n_codewords=8"], "nothing is left to search"),
        (["--search=grid"], "--search=grid needs choices"),
        (["--search=grid", "--space=one.yaml", "--num_samples=3"], "leave --num_samples=3 out"),
        (["--search=bayes"], "invalid choice: 'bayes'"),
        (["--num_samples=0"], "argument --num_samples: must be a whole number from 1"),
        (["--scheduler=none", "--grace_period=3"], "--grace_period=3 needs ASHA"),
        (["--grace_period=31"], "--grace_period is 31, it must be from 1 to epochs, 30"),
        (["--reduction_factor=1"], "--reduction_factor is 1, it must be at least 2"),
        (["--cpus_per_trial=0"], "--cpus_per_trial is 0, it must be above 0"),
        (["--gpus_per_trial=-1"], "--gpus_per_trial is -1, it must be at least 0"),
        (["--gpus_per_trial=0.5", "--use_gpu=False"], "--gpus_per_trial is 0.5, but use_gpu is False"),
        (["--gpu_id=1"], "use --gpus_per_trial"),
        (["--checkpoint_dir=here"], "use --storage"),
        (["--resume=auto"], "--resume takes no value, got 'auto': write --resume, or leave it out"),
        (["--name=a/b"], "--name is 'a/b', it must be the name of one folder"),
        (["--name=.."], "--name is '..', it must be the name of one folder"),
        (["--name="], "--name is '', it must be the name of one folder"),
        (["--storage=one.yaml"], "nothing can be written there"),
        (["--storage="], "--storage is empty"),
        (["--config_files=two.yaml"], "'nproc' is not a setting of a search"),
    ],
)
def test_mistakes_stop_before_ray_starts(
    isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("recbole_lisa.tuning.study.ray_session", None)
    monkeypatch.setattr("recbole_lisa.tuning.study.import_tune", lambda: None)  # the extra may be missing
    files = {
        "bad.yaml": "n_codeword: [8]\n", "broken.yaml": "a: [1\n", "one.yaml": "n_codewords: [8, 16]\n",
        "two.yaml": "nproc: 2\n",
    }  # fmt: skip
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    model = [] if "-m" in arguments else ["-m", "LISASoft"]
    dataset = [] if "-d" in arguments else ["-d", "ml-100k"]
    assert message in refusal(capsys, main(["tune", *model, *dataset, *arguments]))
    assert {path.name for path in isolated_run_dir.iterdir()} == set(files)


def test_the_advice_after_ctrl_c_is_true(search: Mock, capsys: pytest.CaptureFixture[str]) -> None:
    search.side_effect = KeyboardInterrupt
    assert main(ARGUMENTS) == 130
    assert capsys.readouterr().err == "interrupted: no trial has begun, start again by the same arguments\n"
    folder = Path("tuned/LISASoft-ml-100k-full_ranking")
    folder.mkdir(parents=True)
    (folder / "search.json").write_text("{}")
    assert main([*ARGUMENTS, "--resume"]) == 130
    assert capsys.readouterr().err == "interrupted: continue by the same arguments and --resume\n"
