"""Every run has its own log file and leaves the logging of the program as it was."""

import logging
from pathlib import Path

import pytest
from recbole.utils import get_tensorboard, set_color

from recbole_lisa.training.logging import run_log

pytestmark = pytest.mark.usefixtures("isolated_run_dir")
CONFIG = {"model": "LISASoft", "dataset": "ml-100k", "state": "INFO"}


def test_runs_of_one_process_log_to_their_own_files() -> None:
    paths = []
    for number in range(2):
        with run_log(CONFIG) as log:
            logging.getLogger().info("message %d", number)
        paths.append(log.path)
    assert paths[0] != paths[1]
    for number, path in enumerate(paths):
        assert path.parent == Path.cwd() / "log" / "LISASoft"
        assert [line.split("  ")[-1] for line in path.read_text().splitlines()] == [f"message {number}"]


def test_log_file_has_no_colours_and_takes_notes_that_the_terminal_does_not_show(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with run_log(CONFIG) as log:
        logging.getLogger().info(set_color("coloured", "blue"))
        log.note("only here")
    text = log.path.read_text()
    assert "INFO  coloured\n" in text
    assert "only here" in text
    shown = capsys.readouterr().err
    assert "coloured" in shown
    assert "only here" not in shown


def test_logging_of_the_program_is_left_as_it_was() -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    with run_log({**CONFIG, "state": "ERROR"}):
        assert root.level == logging.ERROR
        assert root.handlers[2:] == before
    assert (root.handlers, root.level) == (before, level)


@pytest.mark.parametrize(
    ("state", "level"),
    [("debug", logging.DEBUG), ("WARNING", logging.WARNING), (None, logging.INFO), ("odd", 20)],
)
def test_state_sets_the_level(state: str | None, level: int) -> None:
    with run_log({**CONFIG, "state": state}):
        assert logging.getLogger().level == level


def test_the_reason_of_a_stop_is_logged() -> None:
    with pytest.raises(ValueError, match="reason"), run_log(CONFIG) as log:
        raise ValueError("the reason")
    assert "the run stopped: ValueError: the reason" in log.path.read_text()


def test_tensorboard_folder_carries_the_name_of_the_run() -> None:
    with run_log({**CONFIG, "dataset": "shop.v2"}) as log:
        writer = get_tensorboard(logging.getLogger())
        writer.close()
    assert Path(writer.log_dir) == Path("log_tensorboard") / log.name
