"""Definition of a scalar function: its name, the types of its arguments and its implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from kgserve.cypher.interpreter.graph_view_interface import (
    CompiledExpression,
    NodeReference,
    PathValue,
    RelationshipReference,
    Row,
)
from kgserve.cypher.interpreter.value_comparison import describe_value, describe_value_type
from kgserve.errors import InvalidInput

ArgumentKind: TypeAlias = frozenset[type]
"""Types that an argument may have; empty if all types are allowed."""

ANY: ArgumentKind = frozenset()
STRING: ArgumentKind = frozenset({str})
INTEGER: ArgumentKind = frozenset({int})
BOOLEAN: ArgumentKind = frozenset({bool})
NUMBER: ArgumentKind = frozenset({int, float})
LIST: ArgumentKind = frozenset({list})
MAP: ArgumentKind = frozenset({dict})
NODE: ArgumentKind = frozenset({NodeReference})
RELATIONSHIP: ArgumentKind = frozenset({RelationshipReference})
PATH: ArgumentKind = frozenset({PathValue})
_EXAMPLES = {str: "", int: 0, bool: True, float: 0.0, list: [], dict: {}}
_NAMES = {NodeReference: "a node", RelationshipReference: "a relationship", PathValue: "a path"}


class ScalarFunction(NamedTuple):
    """Scalar function of Cypher: its name, argument types and implementation.

    ``kinds`` has the types of each argument, of which ``least`` are required; the last may repeat if ``is_variadic``.
    A null argument makes the result null, unless the function ``takes_null``; then its arguments may also be null.
    ``is_volatile``: the value differs from call to call.
    """

    name: str
    run: Callable[..., Any]
    kinds: tuple[ArgumentKind, ...] = ()
    least: int = 0
    takes_null: bool = False
    is_volatile: bool = False
    is_variadic: bool = False

    def check_count(self, count: int) -> None:
        """Raise InvalidInput for a wrong number of arguments."""
        most = len(self.kinds)
        if self.least <= count and (count <= most or self.is_variadic):
            return
        if self.is_variadic:
            expected = f"at least {self.least}"
        else:
            expected = str(most) if self.least == most else f"{self.least} to {most}"
        plural = "" if expected == "1" else "s"
        raise InvalidInput(f"{self.name}() takes {expected} argument{plural}, not {count}")

    def bind(self, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
        """Return the call with some arguments as an expression. Raises InvalidInput for a wrong number of them."""
        self.check_count(len(arguments))
        if len(arguments) == 1 and not self.takes_null:
            return self._bind_one(arguments[0])
        return self._bind_many(arguments)

    def _bind_one(self, argument: CompiledExpression) -> CompiledExpression:
        run, kind = self.run, self.kinds[0]

        def call(row: Row) -> Any:
            value = argument(row)
            if value is None:
                return None
            if kind and type(value) not in kind:
                raise self._wrong_type(0, value)
            return run(value)

        return call

    def _bind_many(self, arguments: Sequence[CompiledExpression]) -> CompiledExpression:
        run, takes_null = self.run, self.takes_null
        kinds = [self.kinds[min(index, len(self.kinds) - 1)] for index in range(len(arguments))]

        def call(row: Row) -> Any:
            values = [argument(row) for argument in arguments]
            has_null = False
            for index, value in enumerate(values):
                if value is None:
                    has_null = True
                elif kinds[index] and type(value) not in kinds[index]:
                    raise self._wrong_type(index, value)
            return None if has_null and not takes_null else run(*values)

        return call

    def _wrong_type(self, index: int, value: Any) -> InvalidInput:
        place = f"argument {index + 1} of {self.name}()" if len(self.kinds) > 1 else f"the argument of {self.name}()"
        return InvalidInput(
            f"{place} must be {describe_accepted_argument_types(self.kinds[min(index, len(self.kinds) - 1)])}, "
            f"not {describe_value(value)}"
        )


def describe_accepted_argument_types(kind: ArgumentKind) -> str:
    """Describe the types that an argument may have: ``a list or a string``."""
    names = {_NAMES.get(each) or describe_value_type(_EXAMPLES[each]) for each in kind}
    if names >= {"an integer", "a float"}:
        names = names - {"an integer", "a float"} | {"a number"}
    return " or ".join(sorted(names))


def index_functions_by_name(functions: Sequence[ScalarFunction]) -> dict[str, ScalarFunction]:
    """Return a dict of functions by their lower-case names."""
    return {function.name.lower(): function for function in functions}
