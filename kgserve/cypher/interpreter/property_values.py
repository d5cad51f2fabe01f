"""Checks of values that statements store as properties and labels."""

from __future__ import annotations

import math
from typing import Any, NoReturn, cast

from kgserve.cypher.interpreter.graph_view_interface import NO_LABEL
from kgserve.cypher.interpreter.marker_labels import is_marker_label
from kgserve.cypher.interpreter.stored_temporal_values import decode_tagged_temporal_value
from kgserve.cypher.interpreter.temporal_functions import is_temporal_value
from kgserve.cypher.interpreter.value_comparison import describe_value, describe_value_type
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
        if decode_tagged_temporal_value(entries) is not None:
            [(tag, text)] = entries.items()
            raise InvalidInput(
                f"property {name!r} cannot be this map, which stands for {tag[1:]}({text!r}): write that"
            )
        for each in entries.values():
            check_property_value(name, each)
    elif isinstance(value, float) and not math.isfinite(value):
        _refuse_value(name, "NaN or an infinite number")
    elif value is not None and not isinstance(value, bool | int | float | str) and not is_temporal_value(value):
        _refuse_value(name, describe_value_type(value))


def _refuse_value(name: str, found: str) -> NoReturn:
    raise InvalidInput(f"property {name!r} cannot be {found}")


def resolve_new_node_label(label: str, value: Any) -> str:
    """Resolve the label of a new node from its pattern and its property ``type``. Raises InvalidInput on conflict."""
    if value is None:
        return label
    as_property = get_label_from_type_property(value)
    if label not in {NO_LABEL, as_property}:
        raise InvalidInput(f"a node has one label, which is its property type: {label!r} and {as_property!r} differ")
    return as_property


def get_label_from_type_property(value: Any) -> str:
    """Return the label that a property ``type`` sets. Raises InvalidInput unless it is a valid label."""
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"the property type of a node is its label: a string, not {describe_value(value)}")
    if value == NO_LABEL:
        raise InvalidInput(
            f"the label {NO_LABEL!r} is reserved for nodes without a label; set the type to null instead"
        )
    if is_marker_label(value):
        raise InvalidInput(f"{value} is a marker, which stands next to the type of a node: write n:{value}")
    return value
