"""The command line: what reaches `quick_start.run`, and one line for every mistake."""

import contextlib
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from pytest import CaptureFixture, MonkeyPatch

from recbole_lisa import __version__
from recbole_lisa.cli.arguments import parse_settings
from recbole_lisa.cli.main import COMMANDS, main, print_any_text, report_errors
from recbole_lisa.errors import UsageError, install_extra, shortened
from recbole_lisa.files import advise_after_interruption
from tests.helpers import ROOT, refusal, run_python

NAMES = ["-m", "LISASoft", "-d", "ml-100k"]


@pytest.fixture
def calls(monkeypatch: MonkeyPatch) -> list[dict[str, Any]]:
    """Replace `quick_start` by a recorder of its calls."""
    recorded: list[dict[str, Any]] = []
    stand_in = ModuleType("recbole_lisa.quick_start")

    def run(model: str, dataset: str, **arguments: Any) -> dict[str, Any]:
        recorded.append({"model": model, "dataset": dataset, **arguments})
        return {}

    stand_in.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "recbole_lisa.quick_start", stand_in)
    return recorded


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model=LISASoft", "--dataset=ml-100k", "--epochs=7"],
        ["run", "--model", "LISASoft", "--dataset", "ml-100k", "--epochs", "7"],
        ["--epochs", "7", "-m", "LISASoft", "-d", "ml-100k"],
        ["-mLISASoft", "-dml-100k", "--epochs=7", "--model=LISASoft"],
    ],
)
def test_the_ways_to_write_one_run_are_the_same(calls: list[dict[str, Any]], arguments: list[str]) -> None:
    assert main(arguments) == 0
    names = {"model": "LISASoft", "dataset": "ml-100k"}
    assert calls == [{**names, "protocol": None, "config_files": [], "command_line": {"epochs": "7"}}]


@pytest.mark.parametrize(
    "arguments",
    [["--config_files", "a.yaml", "b.yaml"], ["--config_files", "a.yaml b.yaml"], ["--config_files=a.yaml b.yaml"]],
)
def test_config_files_are_apart_or_in_one_argument(calls: list[dict[str, Any]], arguments: list[str]) -> None:
    assert main([*NAMES, *arguments, "--protocol=paper", "--epochs", "7"]) == 0
    assert calls[0]["config_files"] == ["a.yaml", "b.yaml"]
    assert (calls[0]["protocol"], calls[0]["command_line"]) == ("paper", {"epochs": "7"})


def test_values_keep_their_equal_signs_minus_signs_and_spaces() -> None:
    arguments = ["--eval_args={mode: uni100}", "--result_file=a=b.json", "--offset", "-1", "--empty="]
    settings = {"eval_args": "{mode: uni100}", "result_file": "a=b.json", "offset": "-1", "empty": ""}
    assert parse_settings(arguments) == settings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["7"], "unexpected argument '7': settings are written --key=value"),
        (["-x", "7"], "unexpected argument '-x': settings are written --key=value"),
        (["--=7"], "unexpected argument '--=7': settings are written --key=value"),
        (["--epochs"], "'--epochs' has no value: write --epochs=value"),
        (["--epochs", "--seed=1"], "'--epochs' has no value: write --epochs=value"),
        (["--seed=1", "--seed=2"], "'--seed' is given twice, as '1' and as '2': keep one"),
    ],
)
def test_parse_settings_names_the_argument_that_is_wrong(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_settings(arguments)
    assert str(caught.value) == message


def test_a_config_file_with_a_space_in_its_name_is_one(isolated_run_dir: Path, calls: list[dict[str, Any]]) -> None:
    Path("my run.yaml").write_text("epochs: 3\n", encoding="utf-8")
    assert main([*NAMES, "--config_files", "my run.yaml", "a.yaml b.yaml"]) == 0
    assert calls[0]["config_files"] == ["my run.yaml", "a.yaml", "b.yaml"]


def test_help_lists_the_commands(capsys: CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "recbole-lisa [run] -m MODEL -d DATASET" in printed
    assert [name for name in COMMANDS[1:] if f"  recbole-lisa {name} " not in printed] == []
    for entry in (["-m", "recbole_lisa"], [str(ROOT / "run_recbole_lisa.py")]):
        arguments, environment = [sys.executable, *entry, "--help"], {**os.environ, "PYTHONPATH": str(ROOT)}
        assert subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout == printed


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_completion_of_bash(isolated_run_dir: Path, capsys: CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    first, _, script = capsys.readouterr().out.partition("\n")
    assert main(["completion", "bash"]) == 0
    assert script == capsys.readouterr().out and "bashcompinit" in first
    lines = {
        "re": "report recommend", "report --ov": "--overwrite", "-m LISAS": "LISASoft", "--model = LISAM": "LISAMini",
        "--loss_type =": "BCE BPR CE SSM gBCE", "--loss_type=g": "--loss_type=gBCE", "tune --d ml-1": "",
        "tune --max_ite": "", "migrate --learning_rate_d": "--learning_rate_decay", "export --checkpoint s": "",
        "recommend --on_unknown =": "raise skip warn", "evaluate --phase=v": "--phase=valid",
        "tune --search r": "random",
    }  # fmt: skip
    asked = "".join(
        f'COMP_WORDS=(recbole-lisa {line}); COMP_CWORD={len(line.split())}; _recbole_lisa; echo "${{COMPREPLY[*]}}"\n'
        for line in lines
    )
    Path("completion.sh").write_text(f"{script}{asked}", encoding="utf-8")
    done = subprocess.run(["bash", "completion.sh"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == list(lines.values())


def test_info_names_versions_devices_and_folders(isolated_run_dir: Path, capsys: CaptureFixture[str]) -> None:
    Path("saved").mkdir()
    Path("saved", "x.pth").write_bytes(bytes(2**20))
    assert main(["info"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["recbole-lisa"] == f"{__version__} in {ROOT / 'recbole_lisa'}"
    assert lines["recbole"] == "1.2.1" and lines["torch"].startswith("2.") and "torch threads: " in lines["cpu"]
    assert lines["checkpoints"] == f"{isolated_run_dir / 'saved'}: files: 1, 1.0 MiB"


@pytest.mark.parametrize("arguments", [NAMES, ["tune", *NAMES], ["info"]])
def test_a_missing_recbole_is_one_line_with_the_command_that_installs_it(tmp_path: Path, arguments: list[str]) -> None:
    program = (
        "import sys; from importlib import metadata; sys.modules['recbole'] = None; find = metadata.version\n"
        "metadata.version = lambda name: find('nowhere' if name == 'recbole' else name)\n"
        f"from recbole_lisa.cli.main import main; sys.exit(main({arguments!r}))"
    )
    if arguments == ["info"]:
        output, _ = run_python(program, cwd=tmp_path)
        assert "recbole         not installed: pip install --no-deps recbole==1.2.1\n" in output
    else:
        line = "error: RecBole 1.2.1 is not installed: pip install --no-deps recbole==1.2.1\n"
        assert run_python(program, cwd=tmp_path, status=2) == ("", line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rum", *NAMES], f"unknown command 'rum': known are {', '.join(COMMANDS)}. Did you mean 'run'?\n"),
        (["-m", "LISASoft"], "error: the following arguments are required: -d/--dataset\n"),
        ([*NAMES, "-m", "LISAMini"], "error: '--model' is given twice, as 'LISASoft' and as 'LISAMini': keep one\n"),
        (["recommend", "--k=10", "--k=5"], "error: '--k' is given twice, as 10 and as 5: keep one\n"),
        (["recommend", "--at=2", "--at", "1970-01-02"], "'--at' is given twice, as 2.0 and as 86400.0: keep one\n"),
        (["serve", "--export", "a", "--export=b"], "error: '--export' is given twice, as 'a' and as 'b': keep one\n"),
        (["tune", *NAMES, "--name=a", "--name=b"], "error: '--name' is given twice, as 'a' and as 'b': keep one\n"),
        (["-m", "LISASft", "-d", "ml-100k"], "Did you mean 'LISASoft'?"),
        (["-m", "LISASoft", "-d", "ml-1m", "--download=False"], "recbole-lisa convert ml-1m ml-1m.zip --output"),
        ([*NAMES, "--protocol=papre"], "Did you mean 'paper'?"),
    ],
)
def test_a_mistake_is_one_line(
    isolated_run_dir: Path, capsys: CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in refusal(capsys, main(arguments))
    assert list(isolated_run_dir.iterdir()) == []


def test_the_script_ends_with_the_status_of_the_command(tmp_path: Path) -> None:
    arguments = [sys.executable, ROOT / "run_recbole_lisa.py", *NAMES, "--epocs=3"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unknown key 'epocs' (command line). Did you mean 'epochs'?\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file", "x.pth"), OSError(28, "Disk is full", "x.pth")])
def test_an_error_of_a_file_is_one_line_with_its_path(error: OSError, capsys: CaptureFixture[str]) -> None:
    assert report_errors(Mock(side_effect=error)) == 1
    assert capsys.readouterr() == ("", f"error: 'x.pth': {error.strerror}\n")


def test_long_values_are_cut_in_every_message(capsys: CaptureFixture[str]) -> None:
    assert main(["compare", f"{'x' * 20_000}.csv", "b.csv"]) == 2
    cut = "x" * 79 + "..." + "x" * 15
    assert capsys.readouterr().err == f"error: '{cut}.csv' cannot be read: File name too long\n"
    for text, shown in (
        (f"it is {'x' * 299} in line 3", f"it is {'x' * 299} in line 3"),
        (f"it is '{'x' * 20_000}' in line 3", f"it is '{cut}xxxx' in line 3"),
        ("a word " * 1000, f"{('a word ' * 1000)[:1500]} ... {('a word ' * 1000)[-400:]}"),
    ):
        assert str(UsageError(text)) == shortened(text) == shortened(shown) == shown
        assert str(pickle.loads(pickle.dumps(UsageError(text)))) == shown


def test_an_error_without_a_path_is_one_line(capsys: CaptureFixture[str]) -> None:
    assert report_errors(Mock(side_effect=ConnectionRefusedError(111, "Connection refused"))) == 1
    assert capsys.readouterr() == ("", "error: ConnectionRefusedError: [Errno 111] Connection refused\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
@pytest.mark.parametrize("work", ["print('metrics') or 0", "print('x' * 9999) or 0", "main(['--help'])"])
def test_a_full_disk_under_stdout_is_one_line(work: str) -> None:
    program = (
        "import sys; from recbole_lisa.cli.main import main; from recbole_lisa.cli.main import report_errors\n"
        f"sys.exit(report_errors(lambda: {work}))"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "error: 'standard output': No space left on device\n")
    piped = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert piped.stdout is not None and piped.stderr is not None
    piped.stdout.close()
    assert (piped.stderr.read(), piped.wait()) == (b"", 141)


def test_a_character_that_the_terminal_lacks_is_escaped(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="cp1252", write_through=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    print_any_text()
    print("日本 é")
    assert terminal.buffer.getvalue() == b"\\u65e5\\u672c \xe9\n"  # type: ignore[attr-defined]
    assert os.environ["PYTHONIOENCODING"] == "cp1252:backslashreplace"


def test_an_error_of_the_program_is_not_hidden(monkeypatch: MonkeyPatch, calls: list[dict[str, Any]]) -> None:
    monkeypatch.setattr(sys.modules["recbole_lisa.quick_start"], "run", Mock(side_effect=ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        main(NAMES)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("sent", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 143)])
@pytest.mark.parametrize("advice", ["", "continue from 'x-last.pth'"])
def test_an_interruption_is_one_line_with_the_advice_of_the_command(
    monkeypatch: MonkeyPatch, calls: list[dict[str, Any]], capsys: CaptureFixture[str],
    sent: str, status: int, advice: str,
) -> None:  # fmt: skip
    def run(*_: Any, **__: Any) -> None:
        with advise_after_interruption(lambda: advice) if advice else contextlib.nullcontext():
            signal.raise_signal(getattr(signal, sent))

    monkeypatch.setattr(sys.modules["recbole_lisa.quick_start"], "run", run)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the shell has it ignored
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert main(NAMES) == status
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr() == ("", f"interrupted: {advice}\n" if advice else "interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("entry", ["run_path('run_recbole_lisa.py'", "run_module('recbole_lisa'", ""])
@pytest.mark.parametrize("module", ["recbole_lisa.errors", "recbole_lisa.cli.run_command", "datetime", "torch"])
def test_an_interruption_of_an_import_is_one_line(entry: str, module: str) -> None:
    """C code of numpy turns an exception of `datetime` into an ImportError with pages of advice."""
    started = f"runpy.{entry}, run_name='__main__')" if entry else "from recbole_lisa.__main__ import start; start()"
    for number in (signal.SIGINT, signal.SIGTERM):
        program = (
            "import runpy, signal, sys\nclass Finder:\n  def find_spec(self, name, *_):\n"
            f"    if name == {module!r}: signal.raise_signal({int(number)})\n"
            f"sys.meta_path.insert(0, Finder()); sys.argv = ['x', '-m', 'LISABase', '-d', 'ml-100k']\n{started}"
        )
        assert run_python(program, cwd=ROOT, status=128 + number) == ("", "interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_output(tmp_path: Path, closed: str) -> None:
    """As some daemons start programs."""
    program = (
        "import sys; from pathlib import Path; from recbole_lisa.cli.main import print_any_text, report_errors\n"
        "print_any_text()\n"
        "def work():\n    print('out'); print('err', file=sys.stderr); Path('done').touch(); return 0\n"
        "sys.exit(report_errors(work))"
    )
    command = f'"{sys.executable}" -c "$PROGRAM" {closed}'
    environment = {**os.environ, "PROGRAM": program, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=False).returncode == 0
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("extra", ["tune", "serve", "redis", "parquet", "bench"])
def test_the_advice_for_an_extra_works_here(tmp_path: Path, monkeypatch: MonkeyPatch, extra: str) -> None:
    assert install_extra(extra, ROOT) == f"pip install -e '{ROOT}[{extra}]'"
    requirements = [
        "torch>=2",
        f'first>=1,<2 ; extra == "{extra}"',
        f"second[x]; extra == '{extra}'",
        'z; extra == "y"',
        f'old<1; python_version < "3.4" and extra == "{extra}"',
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: requirements)
    assert install_extra(extra, tmp_path) == "pip install 'first>=1,<2' 'second[x]'"
    monkeypatch.setattr("importlib.metadata.requires", lambda _: [])
    assert install_extra(extra, tmp_path) == f"install the packages of {extra}"
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "recbole_lisa").rglob("*.py"))
    assert "recbole-lisa[" not in sources, "the package is on no index"


@pytest.mark.parametrize("threads", ["0", "-1"])
def test_a_number_of_threads_that_numba_refuses_is_one_line(
    threads: str, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == (
        f"error: the variable NUMBA_NUM_THREADS is {threads}, it must be at least 1: unset it\n"
    )
