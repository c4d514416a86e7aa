"""Every run has its own log file and leaves the logging of the program as it was."""

import logging
from pathlib import Path

import pytest
from recbole.utils import get_tensorboard, set_color

from recbole_lisa.training.logging import run_log

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


def test_the_reason_of_a_stop_is_logged() -> None:
    with pytest.raises(ValueError, match="reason"), run_log(CONFIG) as log:
        raise ValueError("the reason")
    assert "the run stopped: ValueError: the reason" in log.path.read_text()
