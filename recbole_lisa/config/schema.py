"""The settings that exist, read from the comments of the yaml files, and the check of a value against them.

A line `key: value  # (type) meaning` declares a key. The end of the meaning may restrict the value: `: a | b` lists the
allowed strings; `, >= 1`, `, > 0` or `, in [0, 1)` is the range of a number and of the numbers in a list.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from recbole_lisa.errors import UsageError, did_you_mean, shown
from recbole_lisa.files import readable

_DECLARATION = re.compile(r"^(?P<name>[A-Za-z_]\w*):.*?#\s*\((?P<types>[a-zA-Z ]+)\)\s*(?P<meaning>.*)$")
_CHOICES = re.compile(r":\s*(\w+(?:\s*\|\s*\w+)+)\s*$")
_BOUND = re.compile(r",\s*(?:(?P<relation>>=|>)\s*(?P<low>[\d.]+(?:e-?\d+)?)|in (?P<interval>[\[(]\S+,\s*\S+[\])]))")
_PYTHON_TYPES = {kind.__name__: kind for kind in (int, float, bool, str, list, dict)}
_NUMBERS = ("nan", "inf", "+inf", "-inf")
_MOST_VALUES = 1_000_000
NULLS = ("~", "null", "Null", "NULL", "None")


class YamlLoader(yaml.SafeLoader):
    """YAML as RecBole's users write it: `1e-3` is a number, `010` is ten and `None` is null; no Python object is made.

    A key that is given twice is a mistake.
    """

    # YAML 1.1 reads 010 as eight and 1:30 as ninety.
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:int"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse a mapping with a repeated key."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, key in enumerate(keys):
            if key.value in (earlier.value for earlier in keys[:place]):
                raise yaml.composer.ComposerError(None, None, f"'{key.value}' is given twice", key.start_mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """As yaml's, with the line of a date such as 2020-99-99."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


def _decimal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


YamlLoader.add_constructor("tag:yaml.org,2002:int", _decimal)
YamlLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?\d[\d_]*$"), list("-+0123456789"))
YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
YamlLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^None$"), ["N"])


@dataclass(frozen=True)
class Key:
    """One declared setting; empty types, choices or an empty bound allow any."""

    name: str
    types: tuple[str, ...] = ()  # names of the types that a value may have
    nullable: bool = True  # whether `~` is a value
    choices: tuple[str, ...] = ()  # strings
    bound: str = ""  # range of a number as written, such as `>= 1` or `in [0, 1)`


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a yaml file of settings; a UsageError if it cannot be read, or has no `key: value` lines."""
    try:
        settings = _load(readable(path).read_text(encoding="utf-8-sig")) or {}
    except OSError as error:
        raise UsageError(f"cannot read the configuration file '{path}': {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"'{path}' is not valid yaml: {_mistake(error, path.read_bytes())}") from error
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise UsageError(f"'{path}' must hold 'key: value' lines, its top level is {settings!r}")
    return settings


def _load(text: str) -> Any:
    """The value of a yaml text; a YAMLError for a list that holds itself, too."""
    try:
        value = yaml.load(text, Loader=YamlLoader)
        if (n_values := _count(value, {})) > _MOST_VALUES:
            raise yaml.YAMLError(f"its aliases make {n_values:,} values of it, at most {_MOST_VALUES:,} are allowed")
    except RecursionError as error:
        raise yaml.YAMLError("its lists are nested without end") from error
    return value


def _count(value: Any, counts: dict[int, int]) -> int:
    """The number of values in a value, where one that aliases repeat counts each time."""
    if id(value) not in counts:
        parts = (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
        counts[id(value)] = 1 + sum(_count(part, counts) for part in parts)
    return counts[id(value)]


def _mistake(error: Exception, content: bytes) -> str:
    """The line and the mistake."""
    if isinstance(error, UnicodeDecodeError):
        before, mistake = content[: error.start], f"byte 0x{content[error.start]:02x} is not UTF-8"
    elif isinstance(error, yaml.reader.ReaderError):
        before = content.decode("utf-8-sig")[: error.position].encode()
        mistake = f"character U+{error.character:04X} is not allowed"
    elif isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mistake = str(error.problem).replace("character '\\t' that cannot start any token", "a tab: write spaces")
        mistake = mistake.replace("but found another document", "a second document begins here: write one, without ---")
        return f"line {error.problem_mark.line + 1}: {mistake}"
    else:
        return str(error)
    return f"line {before.count(10) + 1}: {mistake}; save it as UTF-8 text"


def declared_keys(path: Path) -> dict[str, Key]:
    """The keys of a yaml file of ours or of RecBole; a key without a comment accepts any value."""
    settings = read_yaml(path)
    keys = {name: Key(name) for name in settings}
    for declaration in filter(None, map(_DECLARATION.match, path.read_text(encoding="utf-8").splitlines())):
        name, types = declaration["name"], tuple(declaration["types"].split(" or "))
        choices, bound = _CHOICES.search(declaration["meaning"]), _BOUND.search(declaration["meaning"])
        keys[name] = Key(
            name,
            types=tuple(kind for kind in types if kind in _PYTHON_TYPES),
            nullable="None" in types or settings.get(name) is None,
            choices=tuple(re.split(r"\s*\|\s*", choices[1])) if choices else (),
            bound=bound[0].lstrip(", ") if bound else "",
        )
    return keys


def check_value(key: Key, value: Any, origin: str) -> Any:
    """Convert a setting of the user to a type of its key, and check it.

    Text is read as yaml, unless the key takes text only. An int becomes a float, and a number becomes text, where only
    that type is allowed. Numbers of numpy, paths and tuples become numbers, text and lists. A value of another type or
    outside its range is a UsageError, in which `origin` is where the setting is from.
    """
    value = _convert(key, as_plain(value), origin)
    has_type = not key.types or type(value) in [_PYTHON_TYPES[kind] for kind in key.types]
    if not (key.nullable if value is None else has_type):
        types = " or ".join(key.types) + (" or ~" if key.nullable else "")
        raise UsageError(f"{key.name} ({origin}) is {shown(value)}, it must be {types}")
    if isinstance(value, str) and key.choices and value not in key.choices:
        known = ", ".join(key.choices) + (f" or a number {key.bound}" if "float" in key.types else "")
        hint = did_you_mean(value, key.choices)
        raise UsageError(f"unknown {key.name} '{value}' ({origin}): known are {known}.{hint}")
    for number in filter(is_number, value if isinstance(value, list) else [value]):
        if limit := _limit(number, key.bound):
            raise UsageError(f"{key.name} ({origin}) is {value!r}, it must be {limit}")
    return value


def as_plain(value: Any) -> Any:
    """Copy a value as None, bool, int, float, str, or lists and string-keyed dicts of these."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set):
        return [as_plain(part) for part in value]
    return value.name if isinstance(value, Enum) else os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float, but not a bool."""
    return type(value) in (int, float)


def _convert(key: Key, value: Any, origin: str) -> Any:
    if isinstance(value, str):
        if value in NULLS:
            return None
        if key.types != ("str",):
            try:
                value = as_plain(_load(value))  # a date becomes text
            except yaml.YAMLError as error:
                if {"dict", "list"} & {*key.types} and value.lstrip()[:1] in ("{", "["):
                    raise UsageError(f"{key.name} ({origin}) is not valid yaml: {_mistake(error, b'')}") from error
        if {*key.types} == {"float"} and value in _NUMBERS:
            value = float(value)
    if value is False and "no" in key.choices:  # as yaml reads an unquoted no
        return "no"
    if not is_number(value) or not key.types:
        return value
    if "float" in key.types and "int" not in key.types:
        return value if isinstance(value, int) and abs(value) > 2**63 else float(value)
    return str(value) if key.types == ("str",) else value


def _limit(number: float, bound: str) -> str:
    """What the number must be and is not, or nothing."""
    if isinstance(number, int) and abs(number) >= 2**63:
        return "a whole number below 2^63"
    if math.isnan(number) or (math.isinf(number) and "inf" not in bound):
        return "a finite number"
    if 1e30 < abs(number) < math.inf:  # a step of Adam must stay below the largest float32
        return "at most 1e30" if number > 0 else "at least -1e30"
    return bound if bound and not _within(number, bound) else ""


def _within(number: float, bound: str) -> bool:
    if bound.startswith(">"):
        relation, least = bound.split()
        bound = f"in {'[' if relation == '>=' else '('}{least}, inf]"
    low, high = (float(end) for end in bound[4:-1].split(","))
    return low < number < high or (number == low and bound[3] == "[") or (number == high and bound[-1] == "]")
