"""From a YAML file, the environment and the command line to a Config, or to a list of what is wrong and where.

Owns places: every problem names its file, line and dotted path, and for an unknown key the nearest known one.
Later sources win over earlier ones, key by key:

1. the file;
2. the environment: JOULEGATE__LISTEN__PORT=9000; case does not matter and any character that no shell takes is "_", so
   JOULEGATE__SERVICES__LLAMA_3_1_70B__CONTEXT_TOKENS reaches the service llama-3.1-70b of the file;
3. the command line: --set services.llama-3.1-70b.pools.short.tp=2 (items of a list by number or by their `name`).

Values of 2 and 3 are YAML. Of YAML this takes what a configuration needs, with the plain words of YAML 1.2 ("no" is
text, 010 is ten): no anchors, aliases, tags or further documents. Reads one file and writes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config import Config
from gateway.config_docs import Shape
from gateway.config_section import HASH, NAME, VARIABLE

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
PREFIX = "JOULEGATE__"
TAG = "tag:yaml.org,2002:"
PLAIN: dict[str, tuple[re.Pattern[str], Callable[[str], object]]] = {
    "null": (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    "int": (re.compile(r"[-+]?[0-9]{1,40}"), int),
    "float": (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    "str": (re.compile(r"[^\ud800-\udfff]*", re.DOTALL), str),  # half a surrogate pair is no text
}
WANTED = {  # pydantic's error types in a user's words
    "model_type": "must be a mapping of keys",
    "mapping_type": "must be a mapping of keys",
    "dict_type": "must be a mapping of keys",
    "tuple_type": "must be a list",
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_too_short": "must not be empty",
}
PATTERNS = {
    NAME: "must be 1 to 128 letters, digits or . _ : / -",
    HASH: 'must be "sha256:" and 64 hex digits, not the key itself',
    VARIABLE: "must be the name of an environment variable, not its value",
}
SECRET = {"auth", "env", "engine_api_key_env"}  # below these a value is never repeated in a message

KeyPath = tuple[str | int, ...]
Origin = tuple[str, int | None]  # file, variable or option; line
Place = Callable[[yaml.Mark], Origin]


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong. `file` may also name a variable or an option; then there is no line."""

    file: str
    line: int | None
    path: str
    message: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(part for part in (where, self.path, self.message) if part)


class ConfigError(Exception):
    """The configuration cannot be used. Carries every problem found, in the order of the file."""

    def __init__(self, errors: tuple[ConfigProblem, ...]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = errors


def load_config(path: str | Path, env: Mapping[str, str], overrides: Sequence[str] = ()) -> Config:
    """Reads, merges and checks. Raises ConfigError and nothing else, whatever the input."""
    draft = _Draft(str(path))
    draft.value = draft.parse(_text(path), (), str(path), lambda mark: (str(path), mark.line + 1))
    draft.stop_if_wrong()
    if not isinstance(draft.value, dict):
        draft.report((), "the file must hold keys and values, e.g. listen: {port: 8080}")
        draft.stop_if_wrong()
    for name in sorted(env):  # a prefix sorts first: JOULEGATE__LISTEN, then JOULEGATE__LISTEN__PORT
        if name.startswith(PREFIX):
            draft.override(name, name.removeprefix(PREFIX), "__", _fold, env[name])
    for option in overrides:
        key, equals, value = option.partition("=")
        if equals:
            draft.override(f"--set {key}", key, ".", str, value)
        else:
            draft.report((), "must be KEY=VALUE", (f"--set {key}", None))
    draft.stop_if_wrong()
    try:
        return Config.model_validate(draft.value)
    except ValidationError as error:
        draft.explain(error)
        raise ConfigError(tuple(draft.problems)) from None


def config_schema() -> dict[str, Any]:
    """JSON Schema of a configuration file, for editors and for docs/config.md."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}


def _text(path: str | Path) -> str:
    def refused(message: str) -> ConfigError:
        return ConfigError((ConfigProblem(str(path), None, "", message),))

    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise refused(f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise refused(f"is not a text file (byte {error.start} is not UTF-8)") from None
    except ValueError as error:
        raise refused(f"cannot be read: {error}") from None
    if len(data) > MAX_BYTES:
        raise refused(f"is longer than {MAX_BYTES // 1024} KiB")
    if not text.strip():
        raise refused("is empty")
    return text


class _Refused(yaml.MarkedYAMLError):
    """Right YAML, but nothing that a configuration needs."""


class _Loader(yaml.SafeLoader):
    """Composes nodes only. Refuses what can grow (aliases) or nest without end."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if event.anchor is not None:
            reason = "anchors (&) and aliases (*) are not taken; write the value out, or quote the text"
            raise _Refused(problem=reason, problem_mark=event.start_mark)
        if self.depth >= MAX_DEPTH:
            raise _Refused(problem=f"nested deeper than {MAX_DEPTH}", problem_mark=event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            plain = PLAIN if implicit[0] else {}
            return TAG + next((name for name, (form, _) in plain.items() if form.fullmatch(value)), "str")
        return TAG + ("seq" if kind is yaml.SequenceNode else "map")


class _Draft:
    """A configuration in the making: plain values, where each came from, and what is wrong so far."""

    def __init__(self, file: str) -> None:
        self.value: Any = None
        self.problems: list[ConfigProblem] = []
        self._origins: dict[KeyPath, Origin] = {(): (file, None)}

    def stop_if_wrong(self) -> None:
        if self.problems:
            raise ConfigError(tuple(self.problems))

    def report(self, path: KeyPath, message: str, origin: Origin | None = None) -> None:
        """Blames the nearest place known: what is missing is blamed on the mapping that lacks it."""
        known = (path[:size] for size in range(len(path), -1, -1) if path[:size] in self._origins)
        file, line = origin or self._origins[next(known)]
        self.problems.append(ConfigProblem(file, line, ".".join(map(str, path)), message))

    def parse(self, text: str, path: KeyPath, file: str, place: Place) -> Any:
        """The value of a YAML text that belongs at `path`; what stood there before is forgotten with its places."""
        for old in [known for known in self._origins if known[: len(path)] == path]:
            del self._origins[old]
        self._origins[path] = (file, None)
        try:
            return self._read(_Loader(text).get_single_node(), path, place)
        except yaml.MarkedYAMLError as error:
            mark: Any = error.problem_mark or error.context_mark
            self.report(path, _yaml_message(error), place(mark) if mark else None)
        except (yaml.YAMLError, ValueError, OverflowError):  # control characters, escapes beyond Unicode
            self.report(path, "holds a character or a number that no text file has")
        return None

    def _read(self, node: yaml.Node | None, path: KeyPath, place: Place) -> Any:
        if node is None:
            return None
        kind = node.tag.removeprefix(TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._read_mapping(node, path, place)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            self._origins |= {(*path, index): place(item.start_mark) for index, item in enumerate(node.value)}
            return [self._read(item, (*path, index), place) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and kind in PLAIN:
            form, convert = PLAIN[kind]
            if form.fullmatch(node.value):
                return convert(node.value)
        message = f"is no {kind}" if kind in PLAIN else f"the YAML tag {node.tag} is not taken"
        self.report(path, message, place(node.start_mark))
        return None

    def _read_mapping(self, node: yaml.MappingNode, path: KeyPath, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or not PLAIN["str"][0].fullmatch(key.value):
                self.report(path, "a key must be a plain word", place(key.start_mark))
                continue
            here = (*path, key.value)
            if key.value in found:
                self.report(
                    here, f"the key is here twice; first in line {self._origins[here][1]}", place(key.start_mark)
                )
                continue
            self._origins[here] = place(key.start_mark)
            found[key.value] = self._read(value, here, place)
        return found

    def override(self, source: str, keys: str, separator: str, fold: Callable[[str], str], text: str) -> None:
        """Sets one value from a variable or an option; a path that leads nowhere is a problem, not a new key."""
        try:
            path = _find(keys, separator, fold, self.value)
        except LookupError as error:
            self.report((), str(error.args[0]), (source, None))
            return
        value = self.parse(text, path, source, lambda mark: (source, None))
        parent = self.value
        for key in path[:-1]:
            if isinstance(parent, dict) and parent.get(key) is None:
                parent[key] = {}
            parent = parent[key]
            if not isinstance(parent, dict | list):
                return  # the file has a plain value where a mapping belongs; the schema says so
        parent[path[-1]] = value

    def explain(self, error: ValidationError) -> None:
        """Turns pydantic's findings into problems in the order of the file. What follows from another one is left out:
        the missing key that a misspelt one was meant to be, the list too short for its own wrong items."""
        found = [(tuple(part for part in each["loc"] if part != "[key]"), each) for each in error.errors()]
        meant = {(*path[:-1], _nearest(path)) for path, each in found if each["type"] == "extra_forbidden"}
        for path, each in found:
            short = each["type"] == "too_short" and any(path == other[: len(path)] != other for other, _ in found)
            if not short and not (each["type"] == "missing" and path in meant):
                self.report(path, _sentence(path, each))
        self.problems.sort(key=lambda problem: (problem.line is None, problem.line or 0))


def _yaml_message(error: yaml.MarkedYAMLError) -> str:
    if isinstance(error, _Refused):
        return str(error.problem)
    if "'\\t'" in str(error.problem):
        return "a tab; YAML indents with spaces"
    return "is no YAML: " + " ".join(part for part in (error.context, error.problem) if part)


def _sentence(path: KeyPath, error: ErrorDetails) -> str:
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(str(path[-1]), _shape(path[:-1]).names)
    if kind == "missing":
        return f"is missing: {_shape(path).node['description']}"
    if kind == "check":
        return str(context["reason"])
    if given is None:
        return "is empty; give it a value or remove it"
    wanted = PATTERNS.get(str(context.get("pattern"))) or WANTED.get(kind)
    if wanted is None:
        wanted = re.sub("^[A-Z][a-z]+ should", "must", error["msg"]).replace(" after validation", "")
    shown = isinstance(given, str | int | float) and not SECRET & {*path} and len(str(given)) <= 60
    return f"{wanted}, not {json.dumps(given)}" if shown else wanted


def _unknown(key: str, known: Iterable[str]) -> str:
    near = _near(key, known)
    return f'unknown key; did you mean "{near}"?' if near else f"unknown key; known here: {', '.join(known)}"


def _near(key: str, known: Iterable[str]) -> str | None:
    lower = {name.lower(): name for name in known}
    close = get_close_matches(key, lower.values(), n=1, cutoff=0.5)  # "sM" is M rather than S
    close += [lower[name] for name in get_close_matches(key.lower(), lower, n=1, cutoff=0.5)]
    return close[0] if close else None


def _nearest(path: KeyPath) -> str | None:
    return _near(str(path[-1]), _shape(path[:-1]).names)


def _shape(path: KeyPath) -> Shape:
    shape = Shape.root()
    for key in path:
        shape = shape.child(key)
    return shape


def _fold(text: str) -> str:
    return "".join(char.lower() if char.isascii() and char.isalnum() else "_" for char in text)


def _find(keys: str, separator: str, fold: Callable[[str], str], data: Any) -> KeyPath:
    """The path that `keys` spells: at each level the longest name that fits, of those in the file and in the schema.
    Raises LookupError with a sentence where there is none, or more than one."""
    path: list[str | int] = []
    shape, rest = Shape.root(), keys + separator
    while rest:
        names = _names(shape, data)
        fits = [name for name in names if fold(rest).startswith(fold(name) + separator)]
        longest = [name for name in fits if len(name) == max(map(len, fits))]
        if len(longest) > 1:
            raise LookupError(f"{' and '.join(longest)} both fit; use --set")
        name = longest[0] if longest else rest.partition(separator)[0]
        if not longest and (shape.names or shape.items is None or shape.items.names or not name):
            raise LookupError(f'{".".join(map(str, path)) or "here"} has no "{name}": {_unknown(name, names)}')
        path.append(names.get(name, name))
        shape, rest = shape.child(path[-1]), rest[len(name) + len(separator) :]
        data = _at(data, path[-1])
    return tuple(path)


def _names(shape: Shape, data: Any) -> dict[str, str | int]:
    """What may come next: the keys of the schema and of the file; of a list the numbers and the items' names."""
    if isinstance(data, list):
        numbers: dict[str, str | int] = {str(at): at for at in range(len(data))}
        return {str(_at(item, "name")): at for at, item in enumerate(data)} | numbers
    return {name: name for name in (*shape.names, *(data if isinstance(data, dict) else ()))}


def _at(data: Any, key: str | int) -> Any:
    if isinstance(data, dict):
        return data.get(key)
    return data[key] if isinstance(data, list) and isinstance(key, int) else None
