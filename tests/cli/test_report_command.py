"""The page about runs: its figures are those of the runs, and a browser draws it without network."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recbole_lisa.cli.compare_command import compare, read_per_user
from recbole_lisa.cli.main import main
from recbole_lisa.cli.report_command import mean_and_error
from recbole_lisa.quick_start import run
from tests.helpers import refusal
from tests.tiny import N_ITEMS, N_USERS, histories_of, tiny_settings

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


def data_of(page: Path) -> dict[str, Any]:
    """The data inside a page."""
    text = page.read_text(encoding="utf-8").rpartition("const data = ")[2]
    return dict(json.loads(text.partition(";\nconst runs")[0]))


@pytest.fixture
def runs(isolated_run_dir: Path) -> list[dict[str, Any]]:
    """The results of two short runs, a.json with metrics by user and b.json without; the items have titles."""
    settings = tiny_settings(
        isolated_run_dir,
        hidden_size=8,
        n_codebooks=2,
        n_codewords=4,
        show_progress=False,
        eval_seen="mask",
        eval_batch_size=30,
    )
    rows = [f"i{item}\tTitle {item} </script><b>" for item in range(N_ITEMS)]
    Path("tiny/tiny.item").write_text("\n".join(["item_id:token\tmovie_title:token_seq", *rows]), encoding="utf-8")
    files = ({"per_user_file": "a.csv", "epochs": 1}, {"epochs": 3})
    return [
        run("LISABase", "tiny", config_dict={**settings, "result_file": f"{name}.json", **more})
        for name, more in zip("ab", files, strict=True)
    ]


def test_figures_are_those_of_the_runs(runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a.json", "b.json", "--output=page.html"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "page.html: 2 runs, " in printed.out
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 2 and "default-src 'none'" in page
    shown = data_of(Path("page.html"))["runs"]
    table, histories = read_per_user(Path("a.csv")), histories_of(Path())
    for one, result in zip(shown, runs, strict=True):
        assert [point["epoch"] for point in one["valid_curve"]] == list(range(1, result["epochs_run"] + 1))
        assert one["valid_curve"][result["best_epoch"] - 1] == {"epoch": result["best_epoch"], **result["valid"]}
        assert one["metrics"].keys() == result["test"].keys()
        for name, value in result["test"].items():
            assert one["metrics"][name][0] == pytest.approx(value, abs=1e-4)
            for bins in one["by"].values():
                targets = [part["targets"] for part in bins]
                assert sum(targets) == N_USERS and 1 <= len(bins) <= 5
                mean = np.average([part[name][0] for part in bins], weights=targets)
                assert mean == pytest.approx(one["metrics"][name][0])
        for user in one["users"]:
            assert user["history"] == [f"Title {item[1:]} </script><b>" for item in histories[user["user"]][-11:-1]]
            assert len(user["best"]) == 5 and [hit for _, hit in user["best"]].count(True) == (user["rank"] <= 5)
    assert runs[0]["tied_targets"] > 0.5
    for user in shown[0]["users"]:
        assert user["rank"] == table.loc[(user["user"], user["item"]), "rank_masked"]
    assert [user["user"] for user in shown[0]["users"]] == [user["user"] for user in shown[1]["users"]]
    for name, (mean, _) in shown[1]["difference"].items():
        assert mean == pytest.approx(runs[1]["test"][name] - runs[0]["test"][name], abs=2e-4)


def test_an_old_result_has_a_page_with_notes(runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    old = {key: value for key, value in runs[1].items() if key not in ("valid_curve", "per_user_file", "tied_targets")}
    Path("old.json").write_text(json.dumps({**old, "checkpoint": "gone.pth"}))
    Path("unsaved.json").write_text(json.dumps({**old, "checkpoint": None}))
    Path("titles.csv").write_text("item_id,title\ni1,First\n")
    arguments = ["old.json", "a.json", "./a.json", "unsaved.json", "--titles=titles.csv", "--output=page.html"]
    assert main(["report", *arguments]) == 0
    warnings = capsys.readouterr().err
    assert "warning: 'old.json': there is no checkpoint 'gone.pth'" in warnings
    assert "'unsaved.json' names no checkpoint" in warnings
    assert "warning: 'a.json' is given twice: it is shown once" in warnings
    shown = data_of(Path("page.html"))["runs"]
    assert "metrics" not in shown[0] and shown[0]["users"] == [] and "difference" not in shown[1]
    texts = {title for user in shown[1]["users"] for title in user["history"]}
    assert texts <= {"First", *(f"i{item}" for item in range(N_ITEMS))}
    Path("titles.csv").write_text("item_id,title\nother,First\n")
    assert main(["report", "a.json", "--titles=titles.csv", "--output=page.html", "--overwrite"]) == 0
    assert "warning: 'a.json': --titles names none of its items" in capsys.readouterr().err


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_draws_the_page_without_an_error(runs: list[dict[str, Any]], isolated_run_dir: Path) -> None:
    assert main(["report", "a.json", "b.json", "--output=page.html"]) == 0
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=8000"]
    arguments = [str(BROWSER), *options, "--dump-dom", f"file://{isolated_run_dir / 'page.html'}"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "CONSOLE" not in done.stderr
    titles = ("Training loss", "Metric by epoch", "By length of the history", "By popularity of the target")
    assert [title for title in titles if f'data-title="{title}"' not in done.stdout] == []
    assert done.stdout.count('class="user"') == 6 and done.stdout.count("main-svg") >= 8
    assert "Title 1 &lt;/script&gt;&lt;b&gt;" in done.stdout


def test_the_interval_is_that_of_compare() -> None:
    rng = np.random.default_rng(1)
    users = [f"u{n}" for n in range(300) for _ in range(1 + n % 3)]
    ids = pd.MultiIndex.from_arrays([users, [f"i{n}" for n in range(len(users))]], names=["user_id", "item_id"])
    table = pd.DataFrame({"ndcg@10": rng.random(len(users))}, index=ids).sort_index()
    row, (mean, error) = compare(table * 0, table).loc["ndcg@10"], mean_and_error(table)["ndcg@10"]
    assert mean == pytest.approx(row["B"]) and error == pytest.approx((row["high"] - row["low"]) / 2, rel=0.03)


WHOLE = {"model": "m", "dataset": "d", "protocol": "p", "seed": 1, "test": None, "loss": [], "config": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "'x.json' cannot be read: No such file or directory"),
        ("a,b", "'x.json' is no JSON (Expecting value: line 1 column 1 (char 0)): name files of --result_file"),
        ("[1]", "'x.json' is no result_file of a run, it has no 'model': name files of --result_file"),
        ('{"model": 1}', "'x.json' is no result_file of a run, it has no 'dataset': name files of --result_file"),
        *(
            (
                json.dumps({**WHOLE, key: value}),
                f"'x.json' is damaged, its {key} is {value!r}: name files of --result_file",
            )
            for key, value in {
                "model": 1,
                "seed": "x",
                "test": [1],
                "loss": 5,
                "config": None,
                "checkpoint": 5,
                "log": 5,
                "per_user_file": [],
                "curve": {},
                "codebooks": "x",
                "valid_curve": 1,
            }.items()
        ),
    ],
)
def test_what_is_no_result_is_one_line(
    isolated_run_dir: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    if text is not None:
        Path("x.json").write_text(text)
    for page, line in (("page.txt", "'page.txt' must end in .html"), ("page.html", message)):
        assert refusal(capsys, main(["report", "x.json", f"--output={page}"])) == f"error: {line}\n"
        assert not Path(page).exists()


def test_missing_differences_are_noted(runs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    table = read_per_user(Path("a.csv")).reset_index()
    names = {name: f"{name}_other" for name in table if "@" in str(name)}
    for changed, protocol, message in (
        (table.iloc[1:], "full_ranking", "no differences to the first run: it has other users or targets"),
        (table.rename(columns=names), "full_ranking", "no differences to the first run: no metric is in both"),
        (table, "paper", "the differences are of two protocols: the first run has full_ranking, this paper"),
    ):
        changed.to_csv("c.csv", index=False)
        test = {name: changed[name].mean() for name in runs[0]["test"] if name in changed}
        result = runs[0] | {"per_user_file": "c.csv", "protocol": protocol, "test": test}
        Path("c.json").write_text(json.dumps(result))
        assert main(["report", "a.json", "c.json", "--output=page.html", "--overwrite"]) == 0
        assert f"warning: 'c.json': {message}" in capsys.readouterr().err
        shown = data_of(Path("page.html"))["runs"][1]
        assert message in shown["notes"][0] and bool(shown.get("difference")) == (protocol == "paper")
