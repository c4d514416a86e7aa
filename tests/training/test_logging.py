"""Every run has its own log file and leaves the logging of the program as it was."""

import logging
import sys
from pathlib import Path

import pytest
from recbole.utils import get_tensorboard, set_color

from recbole_lisa.errors import UsageError
from recbole_lisa.quick_start import run
from recbole_lisa.training.logging import run_log
from tests.tiny import tiny_settings

pytestmark = pytest.mark.usefixtures("isolated_run_dir")
CONFIG = {"model": "LISASoft", "dataset": "shop.v2", "state": "INFO"}


def test_runs_of_one_process_log_to_their_own_files_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for number in range(2):
        with run_log(CONFIG) as log:
            logging.getLogger().info(set_color(f"message {number}", "blue"))
            log.note("only here")
            writer = get_tensorboard(logging.getLogger())
            writer.close()
        assert Path(writer.log_dir) == Path("log_tensorboard") / log.name
        paths.append(log.path)
    shown = capsys.readouterr().err
    assert paths[0] != paths[1]
    for number, path in enumerate(paths):
        assert path.parent == Path.cwd() / "log" / "LISASoft"
        lines = [line.split("INFO  ")[-1] for line in path.read_text().splitlines()]
        assert lines == [f"message {number}", "only here"]
        assert f"message {number}" in shown and "only here" not in shown


@pytest.mark.parametrize(("state", "level"), [("debug", logging.DEBUG), ("WARNING", 30), (None, logging.INFO)])
def test_state_sets_the_level_and_the_logging_of_the_program_is_left_as_it_was(state: str | None, level: int) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    with run_log({**CONFIG, "state": state}):
        assert (root.handlers[2:], root.level) == (before[0], level)
    assert (root.handlers, root.level) == before


def test_a_folder_of_logs_that_cannot_be_made_is_named_with_what_to_do() -> None:
    Path("log").write_text("a file")
    with (
        pytest.raises(UsageError, match=r"log/LISASoft' cannot be written .*start it from another one"),
        run_log(CONFIG),
    ):
        pass


def test_the_reason_of_a_stop_is_logged() -> None:
    with pytest.raises(ValueError, match="reason"), run_log(CONFIG) as log:
        raise ValueError("the reason")
    assert "the run stopped: ValueError: the reason" in log.path.read_text()


WANDB = """
from types import SimpleNamespace
calls, run = [], None
def init(**arguments):
    global run
    run = SimpleNamespace(summary={})
    calls.append(("init", arguments["project"], arguments["config"]["epochs"]))
def log(metrics, commit=True): calls.append(("log", metrics))
def define_metric(*names, **more): calls.append(("metric", *names))
"""


def test_wandb_gets_every_epoch_and_the_test_metrics(isolated_run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("wandb.py").write_text(WANDB, encoding="utf-8")
    monkeypatch.syspath_prepend(str(isolated_run_dir))
    settings = {"hidden_size": 8, "n_codewords": 4, "show_progress": False, "epochs": 2, "log_wandb": True}
    result = run("LISABase", "tiny", config_dict=tiny_settings(isolated_run_dir, **settings, wandb_project="shop"))
    wandb = sys.modules.pop("wandb")
    assert wandb.calls[0] == ("init", "shop", 2)
    logged = [call[1] for call in wandb.calls if call[0] == "log"]
    assert [entry["train/train_loss"] for entry in logged if "train_step" in entry] == result["loss"]
    valid = [{name.removeprefix("valid/"): value for name, value in e.items()} for e in logged if "valid_step" in e]
    assert valid == [{"valid_step": point.pop("epoch") - 1, **point} for point in map(dict, result["valid_curve"])]
    assert {f"eval/{name}": value for name, value in result["test"].items()}.items() <= wandb.run.summary.items()
