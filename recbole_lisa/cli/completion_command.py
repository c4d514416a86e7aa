"""The command `recbole-lisa completion`: a script for bash or zsh that completes commands, options and values.

The script is ours: shtab and argcomplete complete what argparse knows, and settings (`--key=value`) are not among it.
"""

import contextlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from recbole_lisa.cli import imported
from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS
from recbole_lisa.config.schema import declared_keys

_WITH_SETTINGS = ("run", "tune", "migrate")
_EPILOG = '  eval "$(recbole-lisa completion bash)"      in ~/.bashrc, or with zsh in ~/.zshrc'
_ZSH = "autoload -Uz +X compinit bashcompinit && compinit && bashcompinit\n"


def main(arguments: Sequence[str]) -> int:
    """Print the script, with the arguments after `completion`; return 0."""
    parser = UsageParser("recbole-lisa completion", "Print a script that completes command lines.", _EPILOG)
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(arguments).shell
    commands = imported("cli.main").COMMANDS
    rules = [rule for file in properties_path().rglob("*.yaml") for rule in declared_keys(file).values()]
    values: dict[str, Iterable[str]] = {f"--{rule.name}": rule.choices for rule in rules if rule.choices}
    for option, name in (("-d|--dataset", "dataset"), ("--protocol", "protocol"), ("--recipe", "recipe")):
        values[option] = [file.stem for file in (properties_path() / name).iterdir()]
    values["-m|--model"] = [*MODELS, *OPTIONAL_MODELS]
    settings = {f"--{rule.name}" for rule in rules}
    helps = {name: _help(name) for name in commands}
    choices = (found for text in helps.values() for found in re.findall(r"(--[a-z]\w*) \{([^}\s]+)\}", text))
    values |= {option: words.split(",") for option, words in choices}
    # --key is a placeholder.
    options = {name: set(re.findall(r"--[a-z][\w-]*", text)) - {"--key"} for name, text in helps.items()}
    for name in _WITH_SETTINGS:
        options[name] |= settings
    options["*"] = options.pop("run")  # the last case: `run` may be left out
    script = Path(__file__).with_name("completion.sh").read_text(encoding="utf-8")
    script = script.replace("# values", _cases(values)).replace("# options", _cases(options))
    print(_ZSH * (shell == "zsh") + script.replace("# commands", " ".join(commands)), end="")
    return 0


def _help(command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        imported(f"cli.{command.replace('-', '_')}_command").main(["--help"])
    return text.getvalue()


def _cases(words: Mapping[str, Iterable[str]]) -> str:
    return "\n        ".join(f'{name}) words="{" ".join(sorted(words[name]))}" ;;' for name in words)
