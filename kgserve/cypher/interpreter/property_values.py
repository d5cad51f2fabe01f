"""Checks of values that statements store as properties and labels."""

from __future__ import annotations

import math
from typing import Any, NoReturn, cast

from kgserve.cypher.interpreter.graph_view import NO_LABEL
from kgserve.cypher.interpreter.marker_labels import is_marker
from kgserve.cypher.interpreter.stored_temporals import read_tagged
from kgserve.cypher.interpreter.temporal import is_temporal
from kgserve.cypher.interpreter.values import describe_type, describe_value
from kgserve.errors import InvalidInput


def check_property_value(name: str, value: Any) -> None:
    """Raise InvalidInput unless a value can be stored as a property: JSON or temporal, but no list with maps."""
    if isinstance(value, list):
        for each in cast("list[Any]", value):
            if isinstance(each, dict):
                _refuse_value(name, "a list of maps")
            check_property_value(name, each)
    elif isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        if read_tagged(entries) is not None:
            [(tag, text)] = entries.items()
            raise InvalidInput(
                f"property {name!r} cannot be this map, which stands for {tag[1:]}({text!r}): write that"
            )
        for each in entries.values():
            check_property_value(name, each)
    elif isinstance(value, float) and not math.isfinite(value):
        _refuse_value(name, "NaN or an infinite number")
    elif value is not None and not isinstance(value, bool | int | float | str) and not is_temporal(value):
        _refuse_value(name, describe_type(value))


def _refuse_value(name: str, found: str) -> NoReturn:
    raise InvalidInput(f"property {name!r} cannot be {found}")


def merge_label(label: str, value: Any) -> str:
    """Return the label of a new node, which its property ``type`` may give. Raises InvalidInput if they differ."""
    if value is None:
        return label
    as_property = check_label(value)
    if label not in {NO_LABEL, as_property}:
        raise InvalidInput(f"a node has one label, which is its property type: {label!r} and {as_property!r} differ")
    return as_property


def check_label(value: Any) -> str:
    """Return a label that is set as a property. Raises InvalidInput if it is none."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"the property type of a node is its label: a string, not {describe_value(value)}")
    if value == NO_LABEL:
        raise InvalidInput(
            f"the label {NO_LABEL!r} is reserved for nodes without a label; set the type to null instead"
        )
    if is_marker(value):
        raise InvalidInput(f"{value} is a marker, which stands next to the type of a node: write n:{value}")
    return value
