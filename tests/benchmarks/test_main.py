"""The command line of the benchmarks: its help, and one line for every mistake."""

import contextlib

import pytest
import torch

from benchmarks import BENCHMARKS, main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("stop", "known are attention, step, memory, serving, service, packages, data, interactions, gpu, paper."),
        ("step --models Transformer", "invalid choice: 'Transformer'"),
        ("step --batch few", "argument --batch: must be a whole number from 1 to 2147483647, got few"),
        ("attention --rows LISA128", "argument --rows: invalid choice: 'LISA128'"),
        ("attention --tokens 48 --lengths 100", "length 100 is more than --tokens=48"),
        ("attention --parts heart", "invalid choice: 'heart'"),
        ("attention --dtype int8", "invalid choice: 'int8'"),
        ("attention --outptu x", "unrecognized arguments: --outptu x"),
        ("attention --device tpu", "invalid choice: 'tpu'"),
        pytest.param(
            "attention --device cuda", "torch sees no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
        ("data --dataset nothing", "there is no file dataset/nothing/nothing.inter"),
        ("attention --threads 2000", "argument --threads: must be a whole number from 1 to 1024, got 2000"),
        ("data --lengths 0", "must be a whole number from 1 to 2147483647, got 0"),
        ("gpu --device cpu", "the following arguments are required: --output"),
        ("gpu --device cpu --output out --parts heart", "invalid choice: 'heart'"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("isolated_run_dir")
def test_mistakes_are_one_line_and_status_2(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize("arguments", ["", "--help", *(f"{name} --help" for name in BENCHMARKS)])
def test_help_is_printed(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert main(arguments.split()) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: python -m benchmarks")
    assert "--output" in printed or not arguments.partition(" ")[2] or "paper" in arguments
