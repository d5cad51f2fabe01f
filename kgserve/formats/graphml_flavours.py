"""What the data of a GraphML element come to: by our own keys, or by the customs of NetworkX, yEd, Gephi and Neo4j."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kgserve.formats.columns import BadCell, parsed
from kgserve.formats.graphml_write import EDGE_FIELDS, NODE_FIELDS, Key
from kgserve.formats.xml_text import original

GRAPHICS = "graphics"
"""The type of keys whose data are drawings, of which only labels are taken."""


class Element(msgspec.Struct):
    """A node or an edge while it is read: line, id or ends, and the texts of its data by key."""

    line: int
    edge: bool
    attributes: dict[str, str]
    data: list[tuple[Key, str]] = []
    label: str = ""
    directed: bool = True
    parent: str | None = None
    size: int = 0
    fault: str = ""


Flavour = Callable[[Element], dict[str, Any]]
"""An element as the fields of a line. Raises BadCell."""

NODE_TYPE = "node"
RELATION_TYPE = "RELATED_TO"
"""What nodes and edges are when the file does not say."""

_TYPES = ("type", "kind", "labels")
_CONTENTS = ("content", "label", "name", "title", "description", "text")
_RELATIONS = ("relation_type", "label", "edge label", "type", "relationship", "interaction")
_INTEGERS = frozenset({"int", "long", "integer"})
_REALS = frozenset({"float", "double"})
_NO_TEXTS = _INTEGERS | _REALS | {"boolean"}
_OURS_TOO = frozenset({"created_by", "valid_from", "valid_to", "summary"})


def ours(element: Element) -> dict[str, Any]:
    """As `write_graphml` wrote it."""
    fields = _ends(element, original)
    attributes: dict[str, Any] = {}
    known = EDGE_FIELDS if element.edge else NODE_FIELDS
    for key, text in element.data:
        if key.name not in known:
            attributes[original(key.name)] = typed(key, original(text))
        elif key.name == "attributes":
            attributes |= parsed("attributes", original(text), dict)
        elif key.name == "tags":
            fields["tags"] = parsed("tags", original(text), list)
        else:
            fields[key.name] = typed(key, original(text))
    fields["attributes"] = attributes
    return fields


def foreign(element: Element) -> dict[str, Any]:
    """As others write it: what has no place of its own becomes an attribute of the key's type."""
    fields = _ends(element, str)
    # A number or a flag without text is how some programs write that there is none.
    named = {key.name: (key, text) for key, text in element.data if text.strip() or key.type not in _NO_TEXTS}
    if element.edge:
        fields["relation_type"] = _taken(named, _RELATIONS) or _own(element, "label") or element.label or RELATION_TYPE
        _take_weight(named, fields)
    else:
        _take_type(named, fields, _own(element, "labels"))
        fields["content"] = _taken(named, _CONTENTS) or element.label
    attributes = _attributes(named, fields)
    if not element.directed and element.edge:
        attributes["directed"] = False
    if element.parent is not None:
        attributes["parent"] = element.parent
    fields["attributes"] = attributes
    return fields


def typed(key: Key, text: str) -> Any:
    """A text as its key's type says. Raises BadCell; what JSON has no number for stays text."""
    try:
        if key.type in _INTEGERS:
            return int(text)
        if key.type in _REALS:
            number = float(text)
            return number if number - number == 0 else text
    except ValueError:
        raise BadCell(f"{key.name} is {text[:80]!r}, which is no {key.type}") from None
    if key.type == "boolean":
        return _flag(key, text)
    return text


def _flag(key: Key, text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false", "1", "0"}:
        raise BadCell(f"{key.name} is {text[:80]!r}, which is no boolean")
    return word in {"true", "1"}


def _ends(element: Element, read: Callable[[str], str]) -> dict[str, Any]:
    wanted = {"source": "from", "target": "to"} if element.edge else {"id": "id"}
    for name in wanted:
        if name not in element.attributes:
            raise BadCell(f"has no {name}")
    return {field: read(element.attributes[name]) for name, field in wanted.items()}


def _own(element: Element, name: str) -> str:
    """An attribute of the element itself, as Neo4j writes labels: ``:Person:Actor``."""
    return element.attributes.get(name, "").strip(":")


def _taken(named: dict[str, tuple[Key, str]], names: tuple[str, ...]) -> str:
    """The first of these that has a text, which is then no attribute any more; nor are empty ones before it."""
    lower = {name.lower(): name for name in named}
    for name in names:
        found = lower.get(name)
        if found is not None and (text := named.pop(found)[1]).strip():
            return text
    return ""


def _take_type(named: dict[str, tuple[Key, str]], fields: dict[str, Any], labels: str) -> None:
    found = labels or _taken(named, _TYPES)
    names = [name for name in found.split(":") if name] if found.startswith(":") or labels else [found]
    if labels:
        named.pop("labels", None)
    fields["type"] = (names[0] if names else "") or NODE_TYPE
    if len(names) > 1:
        fields["tags"] = names[1:]


def _take_weight(named: dict[str, tuple[Key, str]], fields: dict[str, Any]) -> None:
    for name in ("weight", "Weight"):
        if name in named:
            weight = typed(named[name][0]._replace(type="double"), named[name][1])
            if isinstance(weight, float):
                fields["weight"] = weight
                del named[name]
                return


def _attributes(named: dict[str, tuple[Key, str]], fields: dict[str, Any]) -> dict[str, Any]:
    """What is left; ``tags`` and ``attributes`` may be JSON: files of ours that went through another program."""
    attributes: dict[str, Any] = {}
    for name, (key, text) in named.items():
        if name in _OURS_TOO and text:
            fields[name] = text
            continue
        value = typed(key, text)
        try:
            if name == "tags" and isinstance(value, str):
                fields["tags"] = parsed(name, value, list)
                continue
            if name == "attributes" and isinstance(value, str):
                attributes |= parsed(name, value, dict)
                continue
        except BadCell:
            pass
        attributes[name] = value
    return attributes
