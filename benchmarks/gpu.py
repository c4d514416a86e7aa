"""Everything that needs a GPU, within a budget of seconds: tests of the kernels, benchmarks, a short training.

Each part is its own process and writes into the output folder as it goes. A part that fails or runs out of its time is
noted, and the next part starts.
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

from benchmarks.options import add_number, set_up_device
from benchmarks.report import Report, Table, write_text

ROOT = Path(__file__).parents[1]
PARTS = ("tests", "attention", "memory", "step", "training")
COMMANDS = {
    "attention-float32": "attention",
    "attention-bfloat16": "attention --widths 128 1024 --dtype bfloat16",
    "attention-bfloat16-backward": "attention --dtype bfloat16 --backward",
    "memory": "memory --budget_mb 16384",
    "step": "step",
}
QUICK_COMMANDS = {
    "attention": "attention --lengths 8 16 --widths 8 --tokens 32 --items 20 --repeats 1 --rows LISA-128 LISA-256",
    "memory": "memory --lengths 8 --width 8 --budget_mb 2 --items 20 --rows LISA-128 LISA-256",
    "step": "step --models LISASoft --batch 2 --length 5 --items 20 --repeats 1",
}


class Part(NamedTuple):
    """A process: name of its log and files, arguments after `python -m`, and its time relative to the other parts."""

    name: str
    arguments: Sequence[str]
    weight: float = 1.0


class Outcome(NamedTuple):
    """How a part ended: "done", "failed (status N)", "stopped after N s" or "left out (why)"."""

    name: str
    status: str
    seconds: float = 0.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `gpu`."""
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda", help="default cuda; cpu tries the script")
    add("--output", required=True, help="folder for every table, plot and log")
    add("--overwrite", action="store_true", help="replace files that exist")
    add("--quick", action="store_true", help="tiny sizes, to try the script itself")
    add_number(parser, "budget_s", 540, "seconds for everything")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default all")
    add("--tests", default="tests", help="folder whose tests marked gpu are run, if it exists")
    add("--dataset", default="ml-1m", help="data set of the trainings (default ml-1m)")
    add("--data_path", default="dataset", help="folder that holds <dataset>/<dataset>.inter")
    add("--models", nargs="+", default=["LISASoft", "LISABase", "Transformer"], help="models to train")
    add_number(parser, "epochs", 5, "epochs of each training")
    parser.set_defaults(threads=None)


def run(options: argparse.Namespace) -> None:
    """Run `python -m benchmarks gpu`."""
    device, folder = set_up_device(options), Path(options.output).resolve()
    options.output = str(folder / "gpu")
    report = Report(options, device)
    end = time.monotonic() + options.budget_s
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    waiting, outcomes = parts_of(options, folder / "parts")
    while waiting:
        seconds = waiting[0].weight / sum(part.weight for part in waiting) * max(end - time.monotonic(), 0.0)
        outcomes.append(run_part(waiting.pop(0), folder / "parts", seconds))
        print(f"{outcomes[-1].name:28} {outcomes[-1].status:24} {outcomes[-1].seconds:.0f} s", flush=True)
        report.write({"parts": [outcome._asdict() for outcome in outcomes]}, tables(outcomes, folder / "parts"))
    collect(folder, outcomes)


def parts_of(options: argparse.Namespace, folder: Path) -> tuple[list[Part], list[Outcome]]:
    """The parts to run, and those that are left out because their files are missing."""
    parts, missing = [], []
    if "tests" in options.parts and Path(options.tests).is_dir():
        arguments = ["pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", str(Path(options.tests).resolve())]
        parts.append(Part("tests", arguments, 1.5))
    elif "tests" in options.parts:
        missing.append(Outcome("tests", f"left out (there is no folder {options.tests})"))
    more = [f"--device={options.device}", *(["--overwrite"] if options.overwrite else [])]
    for name, command in (QUICK_COMMANDS if options.quick else COMMANDS).items():
        if name.partition("-")[0] in options.parts:
            parts.append(Part(name, ["benchmarks", *command.split(), *more, f"--output={folder / name}"]))
    file = Path(options.data_path, options.dataset, f"{options.dataset}.inter")
    is_bundled = options.dataset == "ml-100k"  # comes with RecBole
    if "training" in options.parts and (is_bundled or file.is_file()):
        more = [f"--use_gpu={options.device == 'cuda'}", *(["--overwrite"] if options.overwrite else [])]
        more += [] if is_bundled else [f"--data_path={Path(options.data_path).resolve()}"]
        more += [f"--dataset={options.dataset}", "--protocol=paper", f"--epochs={options.epochs}"]
        more += ["--show_progress=False", "--checkpoint_dir=saved"]
        for model in options.models:
            result = f"--result_file={folder / f'training-{model}.json'}"
            parts.append(Part(f"training-{model}", ["recbole_lisa", "run", f"--model={model}", *more, result]))
    elif "training" in options.parts:
        missing.append(Outcome("training", f"left out (there is no {file})"))
    return parts, missing


def run_part(part: Part, folder: Path, seconds: float) -> Outcome:
    """Run a process in the folder, with its output in a log; after its time it is stopped with its children."""
    inherited = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *inherited]), "PYTHONUNBUFFERED": "1"}
    command, start = [sys.executable, "-m", *part.arguments], time.monotonic()
    with (folder / f"{part.name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True
        )
        try:
            status = process.wait(timeout=seconds)
            text = "done" if status == 0 else f"failed (status {status})"
        except subprocess.TimeoutExpired:
            text = f"stopped after {seconds:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Outcome(part.name, text, time.monotonic() - start)


def tables(outcomes: Sequence[Outcome], folder: Path) -> list[Table]:
    """How each part ended, and the metrics and seconds of the trainings that ended."""
    rows = [[outcome.name, outcome.status, f"{outcome.seconds:.0f}"] for outcome in outcomes]
    trainings = []
    for file in sorted(folder.glob("training-*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        metrics = [f"{run['test'][name]:.4f}" for name in ("hit@10", "ndcg@10")]
        seconds = [f"{run['seconds_per_epoch']:.2f}", f"{run['seconds']:.0f}"]
        trainings.append([file.stem.removeprefix("training-"), str(run["epochs_run"]), *metrics, *seconds])
    columns = ["model", "epochs", "HR@10", "NDCG@10", "s an epoch", "s in all"]
    parts = Table("Parts", ["part", "status", "s"], rows)
    return [parts, Table("Trainings", columns, trainings)] if trainings else [parts]


def collect(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Append to gpu.md the tables of the parts and the end of the logs of failed ones; print it and pack everything."""
    texts = [(folder / "gpu.md").read_text(encoding="utf-8")]
    for name, status, _ in outcomes:
        table, log = (folder / "parts" / f"{name}{ending}" for ending in (".md", ".log"))
        if table.is_file():
            lines = table.read_text(encoding="utf-8").splitlines()
            texts.append("\n".join([f"\n## {name}\n", *(x for x in lines if not x.startswith(("![", "# "))), ""]))
        if log.is_file() and (status != "done" or name == "tests"):
            end = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
            texts.append("\n".join([f"\n## {name}: end of the log\n\n```", *end, "```\n"]))
    write_text(folder / "gpu.md", "".join(texts))
    print("".join(texts))
    with tarfile.open(folder / "gpu.tar.gz", "w:gz") as archive:
        for file in [folder / "gpu.md", *(file for file in (folder / "parts").iterdir() if file.is_file())]:
            archive.add(file, arcname=str(file.relative_to(folder)))
