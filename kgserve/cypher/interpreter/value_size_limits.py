"""Size limits of values: a short statement could build nested lists of any size by sharing elements."""

from __future__ import annotations

from typing import Any

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.arithmetic import MAX_INTEGER, MAX_LIST_ELEMENTS, MIN_INTEGER
from kgserve.cypher.interpreter.graph_view_interface import (
    ExecutionLimits,
    NodeReference,
    PathValue,
    RelationshipReference,
)
from kgserve.errors import InvalidInput, TooLarge

MAX_VALUE_DEPTH = 100
_SMALL_TEXT_CHARACTERS = 4096
_CHARACTERS_PER_ELEMENT = 256
_ELEMENTS_PER_STEP = 16
_OTHER_PARAMETERS = frozenset({bool, float, NodeReference, RelationshipReference, PathValue})


def is_list_map_or_long_string(value: Any) -> bool:
    """Return whether a value may be large: a list, a map or a long string."""
    kind = type(value)
    return kind is list or kind is dict or (kind is str and len(value) > _SMALL_TEXT_CHARACTERS)


def count_large_value_work(value: Any, limits: ExecutionLimits) -> None:
    """Count the work of reading or writing a large value. Raises TimedOut."""
    limits.step(len(value) // (_CHARACTERS_PER_ELEMENT if type(value) is str else _ELEMENTS_PER_STEP))


def count_nested_elements(value: Any) -> int:
    """Count the elements of a value at all depths. Raises TooLarge if they are too many or too deep.

    Long strings count as one element for each 256 characters.
    """
    level, depth, weight = [value], 0, 0
    while level:
        depth += 1
        below: list[Any] = []
        for each in level:
            weight += len(each) // _CHARACTERS_PER_ELEMENT if type(each) is str else len(each)
            require_value_within_element_limit(weight)
            if type(each) is not str:
                below.extend(filter(is_list_map_or_long_string, each.values() if type(each) is dict else each))
        level = below
        if depth > MAX_VALUE_DEPTH:
            raise TooLarge(f"lists and maps may be nested at most {MAX_VALUE_DEPTH} deep")
    return weight


def require_value_within_element_limit(weight: int) -> None:
    """Raise TooLarge if the number of elements of a value exceeds the limit."""
    if weight > MAX_LIST_ELEMENTS:
        raise TooLarge(f"a value has more than {MAX_LIST_ELEMENTS} elements; filter earlier, or use UNWIND")


def check_cypher_parameter(name: str, value: Any) -> Any:
    """Return the value of a parameter. Raises InvalidInput for types that openCypher lacks."""
    stack = [value]
    while stack:
        each = stack.pop()
        kind = type(each)
        if kind is list:
            stack.extend(each)
        elif kind is dict:
            stack.extend(each.values())
            if any(type(key) is not str for key in each):
                raise InvalidInput(f"parameter ${name} has a map whose keys are not strings")
        elif kind is int:
            if not MIN_INTEGER <= each <= MAX_INTEGER:
                raise InvalidInput(f"parameter ${name} has an integer that does not fit into 64 bits")
        elif (
            each is not None
            and kind is not str
            and kind not in _OTHER_PARAMETERS
            and not temporal_functions.is_temporal_value(each)
        ):
            raise InvalidInput(f"parameter ${name} has a value of the unsupported type {kind.__name__}")
    return value
