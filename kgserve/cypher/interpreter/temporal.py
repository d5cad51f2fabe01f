"""Temporal values and functions of openCypher: the interface for the rest of the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from kgserve.errors import InvalidInput


class TemporalFunction(NamedTuple):
    """Function of a temporal type; call it with evaluated arguments and the statement's time."""

    implementation: Callable[..., Any]
    min_arguments: int
    max_arguments: int

    def __call__(self, *arguments: Any, now: datetime) -> Any:
        """Return the function's value; null if an argument is null. Raises InvalidInput."""
        if None in arguments:
            return None
        return self.implementation(*arguments, now=now)


FUNCTIONS: dict[str, TemporalFunction] = {}
"""Functions by lower-case name with namespace, such as ``datetime.truncate``."""


def is_temporal(value: Any) -> bool:
    """Return whether a value is a date, time or duration."""
    return False


def get_component(value: Any, name: str) -> Any:
    """Return a component of a temporal value, such as ``year``. Raises InvalidInput for an unknown name."""
    raise InvalidInput(f"unknown component {name}")


def compare(left: Any, right: Any) -> int | None:
    """Return -1, 0 or 1; None if ``<`` does not apply: to different types, and to durations."""
    return None


def add(left: Any, right: Any) -> Any:
    """Add a duration to a temporal value, in either order. Raises InvalidInput."""
    raise InvalidInput("not implemented")


def subtract(left: Any, right: Any) -> Any:
    """Subtract a duration from a temporal value. Raises InvalidInput."""
    raise InvalidInput("not implemented")


def multiply(left: Any, right: Any) -> Any:
    """Multiply a duration by a number, in either order. Raises InvalidInput."""
    raise InvalidInput("not implemented")


def divide(left: Any, right: Any) -> Any:
    """Divide a duration by a number. Raises InvalidInput."""
    raise InvalidInput("not implemented")


def sort_rank(value: Any) -> int:
    """Return the position of a value's type among the temporal types in ORDER BY: 0 for datetime to 5 for duration."""
    return 0


def sort_key(value: Any) -> tuple[Any, ...]:
    """Return a key that orders values of one temporal type; durations by their average length."""
    return ()


def type_name(value: Any) -> str:
    """Return the name of a temporal type in results: ``DATE``, ``ZONED DATETIME`` and so on."""
    return ""
