"""One table: its options, the checks before a training, its runs, and its page."""

import shlex
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.options import add_list, add_number
from benchmarks.paper.runs import METRICS, Results, Row, Run, run_missing
from benchmarks.report import check_plots, write_text
from recbole_lisa.cli.arguments import UsageParser, parse_settings
from recbole_lisa.config.config import LISAConfig
from recbole_lisa.datasets.obtain import check_data, known_datasets
from recbole_lisa.errors import UsageError
from recbole_lisa.files import check_output

MARK = "<!-- Below this line the page is written by hand; above it `python -m benchmarks paper` writes. -->"
RESERVED = {"seed", "protocol", "result_file", "checkpoint_dir", "codebook_plot", "resume", "show_progress", "model"}


class Study:
    """The runs and the page of one table; `reserved` are settings that the table chooses itself."""

    def __init__(self, name: str, description: str, *reserved: str, protocol: str = "paper") -> None:
        self.name, self.reserved, self.protocol = name, {*RESERVED, *reserved}, protocol
        self.parser = UsageParser(f"python -m benchmarks paper {name}", description)
        self.settings: dict[str, str] = {}
        add = self.parser.add_argument
        add("-d", "--dataset", required=True, help="data set name")
        add_list(self.parser, "seeds", [1, 2, 3], "one run each")
        add("--runs", default="runs", help="folder of the runs, from which they continue (default runs)")
        add("--output", default="results", help="folder of the page (default results)")
        add_number(self.parser, "parallel", 1, "runs at a time")
        add_number(self.parser, "threads", 1, "CPU threads of each run")
        add("--overwrite", action="store_true", help="write an existing page again; the notes at its end stay")
        add("--only_page", action="store_true", help="train nothing, write the page of the finished runs")

    def parse(self, arguments: Sequence[str]) -> Any:
        """Read options and settings; raises UsageError."""
        self.options, settings = self.parser.parse_known_args(arguments)
        if len(set(self.options.seeds)) < len(self.options.seeds):
            raise UsageError(f"--seeds are {' '.join(map(str, self.options.seeds))}: name each one once")
        self.settings = parse_settings(settings)
        for key in self.reserved & self.settings.keys():
            raise UsageError(
                f"'--{key}' is chosen by the table: leave it out, and see --help for --seeds, --runs, --rows"
            )
        return self.options

    @property
    def page(self) -> Path:
        """The page: <dataset>.md for the ranking, <name>-<dataset>.md for the others."""
        prefix = "" if self.name == "ranking" else f"{self.name}-"
        return Path(self.options.output, f"{prefix}{self.options.dataset}.md")

    def shared(self) -> list[str]:
        """The settings of all runs as arguments for the shell, without the folders of this machine."""
        shown = {**self.settings, **({"data_path": "DATA"} if "data_path" in self.settings else {})}
        return [shlex.quote(f"--{key}={value}") for key, value in shown.items()]

    def runs_of(self, rows: Mapping[str, Row]) -> list[Run]:
        """Check settings, page and folders, and list the runs, seed by seed; raises UsageError."""
        options = self.options
        check_plots()
        check_output(self.page, overwrite=options.overwrite)
        if self._notes() is None:
            raise UsageError(f"'{self.page}' was not written by this command and would be lost: name another --output")
        for row in rows.values():
            settings = {**self.settings, **row.settings, "seed": options.seeds[0]}
            config = LISAConfig(row.model, options.dataset, protocol=self.protocol, command_line=settings)
        if options.dataset not in known_datasets():  # a run fetches those; the rows have the same data
            if not options.only_page:
                check_data(config)
            self.settings.setdefault("data_path", str(Path(config["data_path"]).parent))
        folder = Path(options.runs, "" if self.name == "ranking" else self.name, options.dataset).resolve()
        # A run starts in its own folder, so a relative path must not move with it.
        paths = {"data_path": str(Path(self.settings.get("data_path", "")).resolve())}
        shared = [f"--{key}={paths.get(key, value)}" for key, value in self.settings.items()]
        shared = [f"--dataset={options.dataset}", f"--protocol={self.protocol}", *shared]
        runs = [
            Run(name, seed, [*row.arguments(), *shared, f"--seed={seed}"], folder / f"{name}-{seed}")
            for seed in options.seeds
            for name, row in rows.items()
        ]
        for run in runs:
            run.check_folder()
        return runs

    def run(self, runs: Sequence[Run]) -> int:
        """Run what is missing unless only the page is to be written; the number of failed runs."""
        if self.options.only_page:
            return 0
        return len(run_missing(runs, parallel=self.options.parallel, threads=self.options.threads))

    def command(self, results: Results, rows: Collection[str] | None = None) -> str:
        """The command line of the page, with the seeds of the finished runs, and its rows if `rows` are more."""
        seeds = " ".join(map(str, sorted({run["seed"] for runs in results.values() for run in runs})))
        table = f"python -m benchmarks paper {self.name} --dataset={self.options.dataset} --seeds {seeds}"
        some = ["--rows", *results] if rows is not None and len(results) < len(rows) else []
        return " ".join([table, *some, *self.shared()])

    def write(self, title: str, body: Sequence[str]) -> None:
        """Write the page: title and body; what is written by hand below MARK stays."""
        title = f"# {self.options.dataset}, {title}"
        write_text(self.page, "\n".join([title, "", *body, "", MARK]) + (self._notes() or "\n"))
        print(self.page)

    def _notes(self) -> str | None:
        """What is written by hand below MARK; None for a page without it."""
        text = self.page.read_text(encoding="utf-8") if self.page.exists() else ""
        _, mark, notes = text.partition(MARK)
        return notes if mark or not text else None


def cells(tests: Sequence[Mapping[str, float]], metrics: Iterable[str] = METRICS) -> list[str]:
    """For each metric, the mean over the seeds, with the range if there are several."""
    texts = []
    for name in metrics:
        values = [test[name] for test in tests]
        spread = f" [{max(values) - min(values):.4f}]" if len(values) > 1 else ""
        texts.append(f"{statistics.mean(values):.4f}{spread}" if values else "not run")
    return texts


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write a table whose cells need no quotes."""
    write_text(path, "".join(",".join(map(str, row)) + "\n" for row in [columns, *rows]))


def paper_settings(results: Results) -> list[str]:
    """The settings that all runs of the paper's protocol share."""
    runs = [run for row in results.values() for run in row]
    if not runs:
        return ["No run has finished.", ""]
    config, negatives = runs[0]["config"], runs[0]["config"]["train_neg_sample_args"]
    versions = sorted({f"torch {run['versions']['torch']} on {run['device']}" for run in runs})
    return [
        "The last item of each user is ranked among 100 items that the user never met (drawn once a seed), everything "
        "before it trains, every position is supervised. "
        f"Windows of at most {config['MAX_ITEM_LIST_LENGTH']} items, {config['loss_type']} with "
        f"{negatives['sample_num']} {negatives['distribution']} negative, Adam {config['learning_rate']} with betas "
        f"{tuple(config['adam_betas'])}, batches of {config['train_batch_size']} windows, {config['epochs']} epochs, "
        "the last epoch is tested; everything else as in `properties/`. " + "; ".join(versions) + ".",
        "",
        "Mean over the seeds, the range (largest minus smallest) in brackets.",
        "",
    ]
