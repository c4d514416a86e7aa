"""Bars are on a terminal, in the first process, where `show_progress` is set; elsewhere nothing is written."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from pytest import MonkeyPatch

from recbole_lisa.cli.main import main
from recbole_lisa.progress import progress_bar
from recbole_lisa.quick_start import run
from tests.tiny import tiny_settings

SMALL = {"epochs": 1, "hidden_size": 16, "inner_size": 16, "n_codebooks": 2, "n_codewords": 8, "state": "ERROR"}
OF_RUN = {"tiny.inter", "filtering", "sorting", "hash of tiny.inter", "k-means", "Train     1", "Evaluate   "}
OF_COMMANDS = {"in.csv", "histories", "recommend", "neighbours", "vectors", "resample"}


def terminal_in(monkeypatch: MonkeyPatch, *, is_terminal: bool = True, delay: float = 0) -> io.StringIO:
    """A terminal in place of stderr; no fixture, as pytest replaces stderr after the fixtures."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("recbole_lisa.progress._DELAY_S", delay)
    return stream


def descriptions(stream: io.StringIO) -> set[str]:
    """The descriptions of the bars that were written."""
    return {name.strip("\n") for name in re.findall(r"\r([^\r]+?): +\d+%\|", stream.getvalue())}


def train(folder: Path, model: str, **settings: Any) -> dict[str, Any]:
    settings |= {"per_user_file": str(folder / f"{model}.csv"), "overwrite": True}
    return run(model, "tiny", config_dict=tiny_settings(folder, **SMALL, **settings))


def test_long_steps_have_bars(isolated_run_dir: Path, monkeypatch: MonkeyPatch) -> None:
    folder, terminal = isolated_run_dir, terminal_in(monkeypatch)
    train(folder, "LISABase", memory_map=True, show_progress=False)
    assert terminal.getvalue() == ""
    first = train(folder, "LISASoft", memory_map=True, checkpoint_dir="other")["checkpoint"]
    checkpoint = train(folder, "LISABase", item_codes="kmeans", item_codes_checkpoint=first)["checkpoint"]
    assert descriptions(terminal) == OF_RUN
    Path("in.csv").write_text("user_id,item_id,timestamp\nu,i1,1\nu,new,2\n")
    Path("vectors.csv").write_text("item_id,x\ni1,1\ni2,2\nnew,3\n")
    main(["convert", "csv", "in.csv", "--output=tiny-2"])
    main(["recommend", f"--checkpoint={checkpoint}", "--output=top.csv"])
    main(["export", f"--checkpoint={checkpoint}", "--output=export"])
    for n, option in enumerate(("--input=in.csv", "--vectors=vectors.csv")):
        assert main(["add-items", "--export=export", option, f"--output=more-{n}"]) == 0
    main(["compare", "LISABase.csv", "LISASoft.csv"])
    assert descriptions(terminal) >= OF_RUN | OF_COMMANDS


@pytest.mark.parametrize(
    ("is_terminal", "show_progress", "rank"), [(True, False, "0"), (True, True, "1"), (False, True, "0")]
)
def test_elsewhere_nothing_is_there(
    monkeypatch: MonkeyPatch, is_terminal: bool, show_progress: bool, rank: str
) -> None:
    terminal = terminal_in(monkeypatch, is_terminal=is_terminal)
    monkeypatch.setenv("RANK", rank)
    options = {"show_progress": show_progress, "keep": True}
    assert list(progress_bar(range(3), **options)) == [0, 1, 2]
    with progress_bar(total=2, unit="B", **options) as bar:
        bar.update(2)
    assert terminal.getvalue() == ""


def test_a_step_of_less_than_a_second_has_no_bar(monkeypatch: MonkeyPatch) -> None:
    terminal = terminal_in(monkeypatch, delay=1.0)
    assert list(progress_bar(range(3))) == [0, 1, 2]
    assert terminal.getvalue() == ""
