"""The table of a running search."""

import io
from pathlib import Path

from recbole_lisa.tuning.live import LiveTable, live_rows
from recbole_lisa.tuning.record import Record
from tests.tuning.test_record import filled, told


def test_rows_show_counts_progress_and_settings(tmp_path: Path) -> None:
    lines = live_rows(filled(tmp_path).trials.values(), 5)
    assert lines[0] == "2 of 4 trials ended (1 early), 1 running, best 0.4000"
    assert [line.split() for line in lines[2:]] == [
        ["0", "finished", "2/5", "0.3000", "0.3000", "n_codewords=16"],
        ["1", "stopped", "1/5", "0.3000", "0.3000", "n_codewords=8"],
        ["2", "running", "1/5", "0.4000", "0.4000", "n_codewords=32"],
    ]


def test_only_the_newest_rows_of_many_are_shown(tmp_path: Path) -> None:
    record = Record.create(tmp_path, {})
    record.add_trials([{"n_codewords": 8}] * 40)
    for number in range(40):
        record.take(number, told(0.1))
    lines = live_rows(record.trials.values(), 5)
    assert len(lines) == 32
    assert lines[-1].split()[0] == "39"


def test_a_log_gets_a_table_only_when_time_has_passed_and_something_has_changed(tmp_path: Path) -> None:
    moments = iter([0.0, 0.0, 10.0, 70.0, 70.0, 200.0, 200.0])
    stream, record = io.StringIO(), filled(tmp_path)
    table = LiveTable(stream, 5, clock=lambda: next(moments))
    table.show(record)
    first = stream.getvalue()
    assert first.count("trials ended") == 1
    record.take(2, told(0.5, epoch=2))
    table.show(record)  # after 10 seconds
    assert stream.getvalue() == first
    table.show(record)  # after 70
    assert stream.getvalue().count("trials ended") == 2
    table.show(record)  # after 200, unchanged
    assert stream.getvalue().count("trials ended") == 2
    assert "\x1b" not in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_drawn_over_by_rows_that_do_not_wrap(tmp_path: Path) -> None:
    stream, record = Terminal(), filled(tmp_path)
    record.trials[2].settings = {"n_codewords": "x" * 500}
    table = LiveTable(stream, 5, every=0)
    table.show(record)
    record.take(2, told(0.5, epoch=2))
    table.show(record)
    text = stream.getvalue()
    assert text.count("\x1b[5A\x1b[J") == 1
    assert max(map(len, text.splitlines())) < 200
