"""The commands: `recbole-lisa [run]` trains and tests a model, the other words do their own job."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from recbole_lisa import __version__
from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS
from recbole_lisa.errors import ProcessFailedError, TrainingDivergedError, UsageError, did_you_mean
from recbole_lisa.files import Termination, tidy_termination

_FAILED_STATUS = 1
_USAGE_STATUS = 2
_COMMANDS = {
    "run": "recbole_lisa.cli.main:run_command",
    "download": "recbole_lisa.cli.download_command:main",
    "convert": "recbole_lisa.cli.convert_command:main",
    "tune": "recbole_lisa.cli.tune_command:main",
    "export": "recbole_lisa.cli.export_command:main",
    "recommend": "recbole_lisa.cli.recommend_command:main",
    "serve": "recbole_lisa.cli.serve_command:main",
    "migrate": "recbole_lisa.cli.migrate_command:main",
}
_GOING_ON = {
    "run": ": go on from the last checkpoint by the same words and --resume=auto",
    "migrate": ": go on from the last checkpoint by the same words and --resume=auto",
    "tune": ": go on by the same words and --resume",
}
_EPILOG = """\
Every setting of RecBole, the model, the data set or the protocol is an option: --epochs=10 or --epochs 10.
Values are yaml: --topk='[5, 10]', --eval_args='{mode: uni100}', --train_neg_sample_args=~

commands:
  recbole-lisa [run] -m MODEL -d DATASET ...   train a model on a data set and print its metrics
  recbole-lisa download DATASET ...            fetch a public data set and write its file
  recbole-lisa convert FORMAT INPUT ...        write the file of a data set from a public archive or any table
  recbole-lisa tune -m MODEL -d DATASET ...    search hyperparameters with Ray Tune
  recbole-lisa export --checkpoint FILE ...    write what serving a model needs: packed codes, no RecBole, no data
  recbole-lisa recommend --export DIR ...      write the best items for the users of a table or of the data set
  recbole-lisa serve --export DIR ...          answer requests for recommendations over HTTP
  recbole-lisa migrate --checkpoint FILE ...   make a LISABase from the codebooks of a Transformer
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word names; without one, `run`.

    Args:
        argv: The words after the program's name; by default those of the process.

    Returns:
        The exit status: 0, or after one line on stderr 2 (a mistake of the user) or 1 (the training diverged,
            or one of several processes ended before its time), 130 (Ctrl+C) or 143 (SIGTERM).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words and not words[0].startswith("-") else "run"
    return report_errors(lambda: _command(name)(words), going_on=_GOING_ON.get(name, ""))


def report_errors(command: Callable[[], int], *, going_on: str = "") -> int:
    """Run a command; an expected error is one line on stderr and an exit status.

    Args:
        command: Returns its exit status.
        going_on: What to add to the line of an interruption: how to continue.

    Returns:
        The exit status, see `main`.
    """
    try:
        with tidy_termination():
            return command()
    except UsageError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return _USAGE_STATUS
    except TrainingDivergedError as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAILED_STATUS
    except ProcessFailedError as error:
        print(f"{error.details}error: {' '.join(str(error).split())}", file=sys.stderr)
        return _FAILED_STATUS
    except (KeyboardInterrupt, Termination) as stop:
        print(f"interrupted{going_on}", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(stop, Termination) else signal.SIGINT)


def run_command(words: Sequence[str]) -> int:
    """Train and test one model: parse the words and hand them to `quick_start.run`.

    Args:
        words: The words of the command line after `run`.

    Returns:
        0.

    Raises:
        UsageError: The words are not options, or a setting is wrong.
    """
    parser = UsageParser("recbole-lisa [run]", "Train a model on a data set and print its metrics.", _EPILOG)
    parser.register("action", None, _Once)
    parser.add_argument("-m", "--model", required=True, help=", ".join([*MODELS, *OPTIONAL_MODELS]))
    parser.add_argument("-d", "--dataset", required=True, help="a data set with settings, or your own")
    parser.add_argument("--protocol", help="full_ranking (default) or paper")
    parser.add_argument("--config_files", nargs="+", default=[], metavar="FILE", help="yaml files; a later one wins")
    parser.add_argument("--overwrite", nargs="?", const="True", help="replace the result_file and codebook_plot")
    parser.add_argument("--version", action="version", version=f"recbole-lisa {__version__}")
    options, settings = parser.parse_known_args(words)
    # Several names in one word, as RecBole has them, unless the word itself is a name.
    config_files = [
        file for word in options.config_files for file in ([word] if Path(word).is_file() else word.split())
    ]
    command_line = parse_settings(settings)
    if options.overwrite is not None:
        command_line["overwrite"] = options.overwrite
    # Imported late: a mistake on the command line should not wait for torch.
    quick_start = import_module("recbole_lisa.quick_start")
    import_module("recbole_lisa.environment").keep_freed_memory()
    quick_start.run(
        options.model,
        options.dataset,
        protocol=options.protocol,
        config_files=config_files,
        command_line=command_line,
    )
    return 0


def parse_settings(words: Sequence[str]) -> dict[str, str]:
    """Read `--key=value` and `--key value`.

    Args:
        words: The options that the program does not know by name.

    Returns:
        Key -> text of the value.

    Raises:
        UsageError: A word is no option, an option has no value, or a key has two different values.
    """
    settings: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, has_value, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not key:
            raise UsageError(f"unexpected word '{word}': settings are written --key=value")
        if not has_value:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"'{word}' has no value: write {word}=value")
            value = rest.pop(0)
        if settings.get(key, value) != value:
            raise UsageError(f"'--{key}' is given twice, as '{settings[key]}' and as '{value}': keep one")
        settings[key] = value
    return settings


class _Once(argparse.Action):
    """Stores a value, and refuses a second one that differs."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Take the value."""
        earlier = getattr(namespace, self.dest)
        if earlier not in (self.default, values):
            raise UsageError(f"'--{self.dest}' is given twice, as {earlier!r} and as {values!r}: keep one")
        setattr(namespace, self.dest, values)


def _command(name: str) -> Callable[[Sequence[str]], int]:
    if name not in _COMMANDS:
        raise UsageError(f"unknown command '{name}': known are {', '.join(_COMMANDS)}.{did_you_mean(name, _COMMANDS)}")
    module, _, attribute = _COMMANDS[name].partition(":")
    command: Callable[[Sequence[str]], int] = getattr(import_module(module), attribute)
    return command
