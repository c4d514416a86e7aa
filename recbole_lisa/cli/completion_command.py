"""The command `recbole-lisa completion`: a script for bash or zsh that completes commands, options and values.

The script is ours: shtab and argcomplete complete what argparse knows, and settings (`--key=value`) are not among it.
"""

import contextlib
import io
import re
from collections.abc import Sequence
from importlib import import_module

from recbole_lisa.cli.arguments import UsageParser
from recbole_lisa.config.properties import properties_path
from recbole_lisa.config.registry import MODELS, OPTIONAL_MODELS
from recbole_lisa.config.schema import declared_keys

_WITH_SETTINGS = ("run", "tune", "migrate")
_ZSH = "autoload -Uz +X compinit bashcompinit && compinit && bashcompinit\n"
# bash splits `--model=LI` at the `=`, zsh does not; where nothing fits, the shell completes names of files.
_SCRIPT = """\
_recbole_lisa() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" prefix="" words=""
    case "$word" in
        =) word="" ;;
        --*=*) before="${{word%%=*}}" prefix="${{word%%=*}}=" word="${{word#*=}}" ;;
        *) [ "$before" = "=" ] && before="${{COMP_WORDS[COMP_CWORD-2]}}" ;;
    esac
    case "$before" in
{values}
        *) case "$word" in -*) case "${{COMP_WORDS[1]}}" in
{options}
        esac ;; esac ;;
    esac
    [ "$COMP_CWORD" = 1 ] && words="$words {commands}"
    COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$word"))
}}
complete -o default -F _recbole_lisa recbole-lisa
"""


def main(arguments: Sequence[str]) -> int:
    """Print the script, with the arguments after `completion`; return 0."""
    epilog = '  eval "$(recbole-lisa completion bash)"      in ~/.bashrc, or with zsh in ~/.zshrc'
    parser = UsageParser("recbole-lisa completion", "Print a script that completes command lines.", epilog)
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(arguments).shell
    commands = import_module("recbole_lisa.cli.main").COMMANDS
    folders = ("dataset", "protocol", "recipe")
    values = {f"--{name}": sorted(file.stem for file in (properties_path() / name).iterdir()) for name in folders}
    values["--model"] = [*MODELS, *OPTIONAL_MODELS]
    rules = [rule for file in properties_path().rglob("*.yaml") for rule in declared_keys(file).values()]
    values |= {f"--{rule.name}": list(rule.choices) for rule in rules if rule.choices}
    settings = {f"--{rule.name}" for rule in rules}
    short = {"--model": "-m|--model", "--dataset": "-d|--dataset"}
    cases = {short.get(name, name): words for name, words in values.items()}
    options = {name: _options(name) | (settings if name in _WITH_SETTINGS else set()) for name in commands}
    options["*"] = options.pop("run")  # the command may be left out
    texts = [
        "\n".join(
            f'        {name}) words="{" ".join(sorted(words))}" ;;'
            for name, words in sorted(each.items(), reverse=True)
        )
        for each in (cases, options)
    ]
    script = _SCRIPT.format(values=texts[0], options=texts[1], commands=" ".join(commands))
    print(_ZSH + script if shell == "zsh" else script, end="")
    return 0


def _options(command: str) -> set[str]:
    """The long options in the help of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        import_module(f"recbole_lisa.cli.{command.replace('-', '_')}_command").main(["--help"])
    return set(re.findall(r"--[a-z][\w-]*", text.getvalue())) - {"--key"}  # the placeholder
