"""The reader of the yaml comments, and the check of one value against one key."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from recbole_lisa.config.schema import Key, check_value, declared_keys, read_yaml
from recbole_lisa.errors import UsageError

ORIGIN = "command line"
FINITE = "it must be a finite number"
MANY = "values of it, at most 1,000,000 are allowed"


def write(folder: Path, text: str) -> Path:
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_declared_keys_reads_types_choices_and_bounds(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "width: 8            # (int) how wide, >= 1\n"
        "rate: 1e-3          # (float) how fast, > 0\n"
        "dropout: 0.1        # (float) share, in [0, 1)\n"
        "decay: 0.1          # (float or str) a rate, >= 0, or learnt: learnable | time\n"
        "file: ~             # (str) where to write\n"
        "plain: [1]\n",
    )
    assert declared_keys(file) == {
        "width": Key("width", ("int",), nullable=False, bound=">= 1"),
        "rate": Key("rate", ("float",), nullable=False, bound="> 0"),
        "dropout": Key("dropout", ("float",), nullable=False, bound="in [0, 1)"),
        "decay": Key("decay", ("float", "str"), nullable=False, choices=("learnable", "time"), bound=">= 0"),
        "file": Key("file", ("str",)),
        "plain": Key("plain"),
    }


def test_declared_keys_leaves_parts_of_a_dict_out_and_null_is_the_default_or_declared(tmp_path: Path) -> None:
    text = "outer:   # (dict) parts\n  inner: 1   # (int) a part, >= 1\n"
    file = write(tmp_path, text + "file: ~   # (str) where\ncols: [a]   # (list or None) which\n")
    nullable = {name: key.nullable for name, key in declared_keys(file).items()}
    assert nullable == {"outer": False, "file": True, "cols": True}


@pytest.mark.parametrize(
    ("types", "written", "value"),
    [
        (("int",), "7", 7),
        (("int",), "010", 10),
        (("int", "str"), "1:30", "1:30"),
        (("float",), "1e-3", 0.001),
        (("float",), "1", 1.0),
        (("float",), 1, 1.0),
        (("float",), 0.0, 0.0),
        (("bool",), "False", False),
        (("bool",), "true", True),
        (("list",), "[5, 10]", [5, 10]),
        (("list",), (0.9, 0.98), [0.9, 0.98]),
        (("dict",), "{mode: uni100}", {"mode": "uni100"}),
        (("dict",), "{'split':{'LS':'RS'}, 'a': None, 'b': True}", {"split": {"LS": "RS"}, "a": None, "b": True}),
        (("dict",), "{TS: [1998-03-01, 5]}", {"TS": ["1998-03-01", 5]}),
        (("str",), "[5,inf)", "[5,inf)"),
        (("str",), "[5,10]", "[5,10]"),
        (("str",), "007", "007"),
        (("str",), 0, "0"),
        (("str",), "", ""),
        (("str",), "None", None),
        (("dict",), "~", None),
        (("float", "str"), "0.5", 0.5),
        (("float", "str"), "time", "time"),
        ((), "__import__('os').getcwd()", "__import__('os').getcwd()"),
        ((), "1 + 1", "1 + 1"),
        ((), "[unclosed", "[unclosed"),
    ],
)
def test_check_value_reads_text_by_type(types: tuple[str, ...], written: Any, value: Any) -> None:
    read = check_value(Key("key", types), written, ORIGIN)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("key", "written", "message"),
    [
        (Key("epochs", ("int",)), "many", "epochs (command line) is 'many', it must be int or ~"),
        (Key("epochs", ("int",)), "1.5", "epochs (command line) is 1.5, it must be int or ~"),
        (Key("epochs", ("int",)), True, "epochs (command line) is True, it must be int or ~"),
        (Key("rate", ("float",), nullable=False), "~", "rate (command line) is None, it must be float"),
        (Key("topk", ("list", "int")), "{}", "topk (command line) is {}, it must be list or int or ~"),
        (Key("width", ("int",), bound=">= 1"), "0", "width (command line) is 0, it must be >= 1"),
        (Key("rate", ("float",), bound="> 0"), "0", "rate (command line) is 0.0, it must be > 0"),
        (Key("rate", ("float",), bound="> 0"), ".inf", f"rate (command line) is inf, {FINITE}"),
        (Key("rate", ("float",)), ".nan", f"rate (command line) is nan, {FINITE}"),
        (Key("rates", ("list",)), "[1, -.inf]", f"rates (command line) is [1, -inf], {FINITE}"),
        (Key("p", ("float",), bound="in [0, 1)"), "1", "p (command line) is 1.0, it must be in [0, 1)"),
        (Key("p", ("list",), bound="> 0"), "[0.9, -1]", "p (command line) is [0.9, -1], it must be > 0"),
        (
            Key("decay", ("float", "str"), choices=("learnable", "time"), bound=">= 0"),
            "tme",
            "unknown decay 'tme' (command line): known are learnable, time or a number >= 0. Did you mean 'time'?",
        ),
    ],
)
def test_check_value_names_the_value_and_what_is_right(key: Key, written: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_value(key, written, ORIGIN)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is not valid yaml"),
        ("- a\n- b\n", "must hold 'key: value' lines"),
        ("1: a\n", "must hold 'key: value' lines"),
        ("a: 1\nb: 2\na: 3\n", "not valid yaml: line 3: 'a' is given twice"),
        ("a: {b: 1, b: 1}\n", "not valid yaml: line 1: 'b' is given twice"),
        ("a: !!python/object/apply:os.getcwd []\n", "is not valid yaml"),
        ("a: 1\n---\na: 2\n", "not valid yaml: line 2: a second document begins here: write one, without ---"),
        ("a:\n\tb: 1\n", "not valid yaml: line 2: found a tab: write spaces"),
        ("a: 1\nb: 2020-99-99\n", "not valid yaml: line 2: month must be in"),
        (f"a: 1\nb: {'9' * 5000}\n", "not valid yaml: line 2: Exceeds the limit"),
        ("a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in pairwise("abcdefghijklmno")), MANY),
        ("a: &x [*x]\n", "not valid yaml: its lists are nested without end"),
        ("a: 1\nb\0: 2\n", r"not valid yaml: line 2: character U\+0000 is not allowed; save it as UTF-8 text"),
        ("a: 1\n".encode("utf-16"), "not valid yaml: line 1: byte 0xff is not UTF-8; save it as UTF-8 text"),
        ("a: 1\nb: é\n".encode("latin1"), "not valid yaml: line 2: byte 0xe9 is not UTF-8"),
    ],
)
def test_read_yaml_refuses_what_is_no_list_of_settings(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UsageError, match=message):
        read_yaml(path)


def test_read_yaml_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*absent\.yaml.*No such file"):
        read_yaml(tmp_path / "absent.yaml")


def test_read_yaml_takes_an_empty_file_as_no_settings(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "# nothing yet\n")) == {}
    assert read_yaml(write(tmp_path, "\ufeffa: 1\n")) == {"a": 1}
