"""Everything that needs a GPU, in one go and within a budget: tests of the kernels, benchmarks, a short training.

Each part is a process of its own that writes into the output folder as it goes; one that fails or runs out of its
time is noted, and the next begins.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import set_up_device
from benchmarks.report import Output, Table, heading
from recbole_lisa.errors import UsageError

ROOT = Path(__file__).parents[1]
PROGRAM = (sys.executable, "-m", "recbole_lisa")
QUICK_ROWS = ("--rows", "LISA-128", "Transformer SDPA", "Transformer naive")


class Part(NamedTuple):
    """One process.

    Attributes:
        name: Of its log and files.
        words: The command.
        weight: Its share of the time that is left, against the weights of the parts still to come.
    """

    name: str
    words: Sequence[str]
    weight: float


class Outcome(NamedTuple):
    """How a part ended: "done", "failed (status N)", "stopped after N s" or "left out (why)"; and its seconds."""

    part: Part
    status: str
    seconds: float


def benchmark_parts(options: argparse.Namespace, folder: Path) -> list[Part]:
    """The benchmarks, with their sizes."""
    device = ("--device", options.device)
    sizes: dict[str, tuple[str, ...]] = {"attention": (), "memory": ("--budget_mb", "16384"), "online": (), "step": ()}
    variants: dict[str, tuple[str, ...]] = {
        "attention-float32": ("--widths", "128"),
        "attention-bfloat16": ("--widths", "128", "1024", "--dtype", "bfloat16"),
        "attention-bfloat16-graph": ("--widths", "128", "1024", "--dtype", "bfloat16", "--cuda_graph"),
        "attention-bfloat16-backward": ("--widths", "128", "--dtype", "bfloat16", "--backward"),
    }
    if options.device != "cuda":
        del variants["attention-bfloat16-graph"]
    if options.quick:
        sizes = {
            "attention": ("--lengths", "8", "16", "--tokens", "32", "--items", "20", *QUICK_ROWS),
            "memory": ("--lengths", "8", "--width", "8", "--budget_mb", "2", "--items", "20", *QUICK_ROWS),
            "online": ("--lengths", "8", "--width", "8", "--repeats", "1"),
            "step": ("--models", "LISASoft", "--batch", "2", "--length", "5", "--items", "20", "--repeats", "1"),
        }
        variants = {"attention": ("--widths", "8", "--repeats", "1")}
    parts = []
    for verb in ("attention", "memory", "online", "step"):
        for name, words in (variants if verb == "attention" else {verb: ()}).items():
            output = ("--output", str(folder / name), *(["--overwrite"] if options.overwrite else []))
            parts.append(
                Part(name, (sys.executable, "-m", "benchmarks", verb, *sizes[verb], *words, *device, *output), 1.0)
            )
    return [part for part in parts if part.name.partition("-")[0] in options.parts]


def other_parts(options: argparse.Namespace, folder: Path) -> tuple[list[Part], list[Part]]:
    """The tests, and the trainings; none of what is not asked for or not there."""
    tests: list[Part] = []
    if "tests" in options.parts and Path(options.tests).is_dir():
        words = (
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            str(Path(options.tests).resolve()),
        )
        tests.append(Part("tests", words, 1.5))
    trainings: list[Part] = []
    if "training" in options.parts and has_data(options.dataset, options.data_path):
        for model in options.models:
            settings = {
                "model": model,
                "dataset": options.dataset,
                "protocol": "paper",
                "epochs": options.epochs,
                "use_gpu": options.device == "cuda",
                "show_progress": False,
                "result_file": folder / f"training-{model}.json",
                "checkpoint_dir": folder / "saved",
            }
            if options.dataset != "ml-100k":
                settings["data_path"] = Path(options.data_path).resolve()
            words = (*PROGRAM, "run", *(f"--{key}={value}" for key, value in settings.items()))
            trainings.append(Part(f"training-{model}", words, 1.0))
    return tests, trainings


def has_data(dataset: str, data_path: str) -> bool:
    """Whether the interactions are there; ml-100k comes with RecBole."""
    return dataset == "ml-100k" or Path(data_path, dataset, f"{dataset}.inter").is_file()


def run(options: argparse.Namespace) -> None:
    """`python -m benchmarks gpu`: see its --help."""
    device = set_up_device(options.device, None)
    folder = Path(options.output)
    if folder.is_file() or options.output.endswith(".json"):
        raise UsageError(f"--output={options.output} must be a folder")
    output = Output(f"{options.output}/", "gpu", overwrite=options.overwrite)
    deadline = time.monotonic() + options.budget_s
    parts = folder.resolve() / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    tests, trainings = other_parts(options, parts)
    waiting = [*tests, *benchmark_parts(options, parts), *trainings]
    left_out = []
    if "tests" in options.parts and not tests:
        left_out.append(Outcome(Part("tests", (), 0), f"left out (there is no folder {options.tests})", 0.0))
    if "training" in options.parts and not trainings:
        missing = Path(options.data_path, options.dataset, f"{options.dataset}.inter")
        left_out.append(Outcome(Part("training", (), 0), f"left out (there is no {missing})", 0.0))
    title = heading(options.command, device)
    print(title)
    outcomes: list[Outcome] = []
    while waiting:
        share = waiting[0].weight / sum(part.weight for part in waiting)
        outcomes.append(run_part(waiting.pop(0), parts, share * max(deadline - time.monotonic(), 0.0)))
        print(f"{outcomes[-1].part.name:28} {outcomes[-1].status:24} {outcomes[-1].seconds:.0f} s", flush=True)
        found = [outcome_table([*outcomes, *left_out]), *training_table(parts)]
        document = {"parts": [outcome._asdict() for outcome in (*outcomes, *left_out)]}
        files = output.write(title, document, found)
    collect(folder, outcomes)
    for table in found:
        print("\n" + table.markdown(), end="")
    output.tell([*files, folder / "gpu.tar.gz"])


def run_part(part: Part, folder: Path, seconds: float) -> Outcome:
    """Run one process in the folder, its output in a log; past its time it is stopped with its children."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(ROOT), *(os.path.abspath(path) for path in inherited if path)]  # the part runs in another folder
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    begun = time.monotonic()
    with (folder / f"{part.name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            part.words, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True
        )
        try:
            status = process.wait(timeout=seconds)
            text = "done" if status == 0 else f"failed (status {status})"
        except subprocess.TimeoutExpired:
            text = f"stopped after {seconds:.0f} s"
        finally:
            _stop(process)
    return Outcome(part, text, time.monotonic() - begun)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process and the group that it leads."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    """One line a part."""
    rows = [[o.part.name, o.status, f"{o.seconds:.0f}"] for o in outcomes]
    return Table("Parts", ("part", "how it ended", "s"), rows)


def training_table(folder: Path) -> list[Table]:
    """Metrics and seconds of the trainings that came to an end; no table without any."""
    rows = []
    for file in sorted(folder.glob("training-*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        metrics = [f"{result['test'][name]:.4f}" for name in ("hit@10", "ndcg@10")]
        seconds = (f"{result['seconds_per_epoch']:.2f}", f"{result['seconds']:.0f}")
        rows.append([file.stem.removeprefix("training-"), str(result["epochs_run"]), *metrics, *seconds])
    columns = ("model", "epochs", "HR@10", "NDCG@10", "s an epoch", "s in all")
    return [Table("Trainings", columns, rows)] if rows else []


def collect(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Append the parts' tables to gpu.md, and the end of the logs of those that failed; pack everything."""
    texts = []
    for outcome in outcomes:
        table, log = (folder / "parts" / f"{outcome.part.name}{ending}" for ending in (".md", ".log"))
        if table.is_file():
            text = "\n".join(x for x in table.read_text(encoding="utf-8").splitlines() if not x.startswith("!["))
            texts.append(f"\n## {outcome.part.name}\n\n{text}\n")
        if outcome.status != "done" or outcome.part.name == "tests":
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
            texts.append(f"\n## {outcome.part.name}: end of the log\n\n```\n" + "\n".join(lines) + "\n```\n")
    with (folder / "gpu.md").open("a", encoding="utf-8") as stream:
        stream.writelines(texts)
    with tarfile.open(folder / "gpu.tar.gz", "w:gz") as archive:
        for file in sorted(file for file in (folder / "parts").iterdir() if file.is_file()):
            archive.add(file, arcname=f"parts/{file.name}")
        archive.add(folder / "gpu.md", arcname="gpu.md")
