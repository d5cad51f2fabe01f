"""Aggregates of openCypher, computed row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from kgserve.cypher.interpreter.query_tree import (
    CountStar,
    FunctionInvocation,
    QueryNode,
    SubqueryValue,
)

AGGREGATE_NAMES = frozenset(
    {"count", "sum", "avg", "min", "max", "collect", "stdev", "stdevp", "percentilecont", "percentiledisc"}
)


class ValueAccumulator(Protocol):
    """State of one aggregate over the rows of one group."""

    def add(self, values: Sequence[Any]) -> None:
        """Take the values of the arguments for one row; ``count(*)`` has none. Raises InvalidInput."""
        ...

    def result(self) -> Any:
        """Return the aggregate of the rows so far. Raises InvalidInput."""
        ...


def find_aggregates(tree: object) -> Iterator[FunctionInvocation | CountStar]:
    """Yield the outermost aggregates of an expression, without those of its subqueries."""
    if isinstance(tree, tuple):
        for each in tree:
            yield from find_aggregates(each)
    elif isinstance(tree, CountStar) or (isinstance(tree, FunctionInvocation) and tree.name in AGGREGATE_NAMES):
        yield tree
    elif isinstance(tree, QueryNode) and not isinstance(tree, SubqueryValue):
        for name in tree.__struct_fields__:
            yield from find_aggregates(getattr(tree, name))


def new_accumulator(name: str, *, is_distinct: bool = False) -> ValueAccumulator:
    """Create the state of an aggregate; ``count(*)`` is ``count`` whose values are empty."""
    raise NotImplementedError
