"""Numbered requirements of the four specifications, each attached to the test that checks it.

This folder's `README.md` lists them, and is a page of the documentation; `make docs` writes its tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

SPECIFICATIONS = {
    "ME": "Memory engine: a generic knowledge graph",
    "LG": "Layered knowledge graph: memories in a hierarchy",
    "EM": "Entity memory layer with vector search",
    "VG": "Versioned graph store",
}
REQUIREMENTS: dict[str, Requirement] = {}

_Test = TypeVar("_Test", bound=Callable[..., Any])


class Requirement(msgspec.Struct, frozen=True):
    """One requirement; ``difference`` says what kgserve does instead, on purpose."""

    number: str
    text: str
    difference: str
    test: str


def requirement(number: str, text: str, difference: str = "") -> Callable[[_Test], _Test]:
    """Register the decorated test as the check of a requirement.

    number: prefix of the specification, then its section and a running number, such as ``EM-4.3.1``.
    difference: what kgserve does instead; the test then checks that.
    """
    if number in REQUIREMENTS:
        message = f"requirement {number} is registered twice"
        raise ValueError(message)
    if number.partition("-")[0] not in SPECIFICATIONS:
        message = f"requirement {number} names no specification"
        raise ValueError(message)

    def register(test: _Test) -> _Test:
        REQUIREMENTS[number] = Requirement(number, text, difference, f"{test.__module__}.{test.__name__}")
        return test

    return register
