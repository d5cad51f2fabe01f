"""Rows of the tables of requirements, which tests/conformance registers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import tests.conformance
from tests.conformance.requirement import REQUIREMENTS, SPECIFICATIONS, Requirement


def registered_requirements() -> list[Requirement]:
    """Return all requirements in the order of their numbers."""
    for module in iter_modules(tests.conformance.__path__):
        if module.name.startswith("test_"):
            import_module(f"tests.conformance.{module.name}")
    return sorted(REQUIREMENTS.values(), key=_order)


def summary_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each specification: prefix, title, requirements, deliberate differences."""
    for prefix, title in SPECIFICATIONS.items():
        own = [each for each in registered_requirements() if each.number.startswith(f"{prefix}-")]
        yield f"`{prefix}`", title, str(len(own)), str(sum(bool(each.difference) for each in own))


def difference_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each requirement that kgserve meets differently on purpose."""
    for each in registered_requirements():
        if each.difference:
            yield each.number, each.text, each.difference


def requirement_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each requirement that kgserve meets as specified."""
    for each in registered_requirements():
        if not each.difference:
            yield each.number, each.text


def _order(requirement: Requirement) -> tuple[int, list[int]]:
    prefix, _, section = requirement.number.partition("-")
    return list(SPECIFICATIONS).index(prefix), [int(part) for part in section.split(".")]
