"""The schema of the configuration as data: walked key by key, and printed as the page docs/config.md.

Owns the wording of that page around the schema's own descriptions. Reads and writes no file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.config import Config
from gateway.config_launcher import PLACEHOLDERS
from gateway.config_section import HASH, NAME, VARIABLE

INTRO = """# Configuration

Made from the schema in `gateway/config.py`; a test keeps this page and the schema equal. `joulegate check FILE` tells
what is wrong in a file, with file, line and key; `joulegate check --schema` prints the JSON Schema for an editor.

A value comes from the last of these that gives it:

1. the default below,
2. the file,
3. the environment: `JOULEGATE__LISTEN__PORT=9000`. Levels are parted by two underscores, case does not matter, and `.`,
   `-` and the like are written `_`: `JOULEGATE__SERVICES__LLAMA_3_1_70B__CONTEXT_TOKENS=4096`,
4. the command line: `--set listen.port=9000`, `--set services.llama-3.1-70b.pools.short.tp=2`.

In 3 and 4 the value is YAML, an item of a list is named by its number (from 0) or its `name`, and a service must
already be in the file. In all of them YAML means mappings, lists, text, numbers, `true`, `false` and `null`: no
anchors, aliases or tags. Unknown keys are errors.
"""
TEXTS = {
    NAME: "text: letters, digits and `. _ : / -`, at most 128",
    HASH: "text: `sha256:` and 64 hex digits",
    VARIABLE: "text: a variable's name, or empty",
}
NOTES = {
    "services": f"""In `argv` and `env` of a launcher these are filled in for each instance:
{", ".join(f"`{{{word}}}`" for word in PLACEHOLDERS)}, which are its port, its pool's `tp`, the
service's `model`, its pool's `slots`, `step_tokens` and `clock_mhz`, the GPUs that are its own, and the seconds that
vLLM's `--shutdown-timeout` may have before `stop_timeout_s` is over. GPUs are UUIDs where the launcher names an `agent`
(and then CUDA_VISIBLE_DEVICES has them without being told), else indices, as in `0,1`. A size that no pool names in
`serves` goes to the last pool, and L must be named by one.
"""
}
Row = tuple[str, str, str, str]  # key, type, default, meaning


@dataclass(frozen=True, slots=True)
class Shape:
    """What the schema says of one place: a section, a list, a mapping or a value."""

    node: dict[str, Any]
    defs: dict[str, Any]

    @classmethod
    def root(cls) -> Shape:
        schema = Config.model_json_schema()
        return cls(schema, schema["$defs"])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.node.get("properties", ()))

    @property
    def items(self) -> Shape | None:
        """What every item of a list, or every value of a mapping with free names, looks like."""
        patterns = self.node.get("patternProperties", {})
        inner = self.node.get("items") or next(iter(patterns.values()), None) or self.node.get("additionalProperties")
        return self._inner(inner) if isinstance(inner, dict) else None

    def child(self, key: str | int) -> Shape:
        if key in self.names:
            return self._inner(self.node["properties"][key])
        return self.items or Shape({}, self.defs)

    def _inner(self, node: dict[str, Any]) -> Shape:
        if "anyOf" in node:  # here always: a type, or null
            node = {**node["anyOf"][0], **node, "nullable": True}
        if "$ref" in node:
            node = {**self.defs[node["$ref"].rpartition("/")[2]], **node}
        return Shape(node, self.defs)

    @property
    def type(self) -> str:
        return self._type() + (" or null" if self.node.get("nullable") else "")

    def _type(self) -> str:
        if "enum" in self.node:
            return " \\| ".join(f"`{value}`" for value in self.node["enum"])
        if self.node.get("pattern") in TEXTS:
            return TEXTS[self.node["pattern"]]
        kind = self.node["type"]
        if kind == "array" and self.items:
            return f"list of {self._size()}{self.items.type}"
        if kind == "object" and self.items:
            return f"mapping of names to {self.items.type}"
        return {"integer": "integer", "number": "number", "boolean": "true or false", "string": "text"}[
            kind
        ] + self._range()

    def _size(self) -> str:
        low, high = self.node.get("minItems"), self.node.get("maxItems")
        return f"{low} " if low is not None and low == high else ""

    def _range(self) -> str:
        low, above, high = (self.node.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
        floor = f"from {low}" if low is not None else f"above {above}" if above is not None else ""
        ceiling = f"up to {high}" if high is not None and high < 1 << 40 else ""
        return "".join(f", {part}" for part in (floor, ceiling) if part)


def config_reference() -> str:
    """The page docs/config.md."""
    root = Shape.root()
    return "\n".join([INTRO, *(_section(name, root.child(name)) for name in root.names)])


def _section(name: str, shape: Shape) -> str:
    lines = [f"## {name}", "", shape.node["description"], "", "| key | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(f"{name}.NAME" if name == "services" else name, shape)]
    return "\n".join([*lines, "", NOTES.get(name, "")]).rstrip() + "\n"


def _rows(path: str, shape: Shape) -> Iterator[Row]:
    section = shape if shape.names else shape.items
    assert section is not None, "only sections and collections of sections have rows"
    for name in section.names:
        child, key = section.child(name), f"{path}.{name}"
        if child.names:
            yield from _rows(key, child)
        elif child.items and child.items.names:
            yield f"`{key}`", "list of sections", _default(section, name), child.node["description"]
            yield from _rows(f"{key}[]", child)
        else:
            yield f"`{key}`", child.type, _default(section, name), child.node["description"]


def _default(section: Shape, name: str) -> str:
    if name in section.node.get("required", ()):
        return "required"
    return f"`{json.dumps(section.child(name).node['default'])}`"
