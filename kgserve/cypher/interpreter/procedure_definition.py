"""Definition of a procedure: its name, its arguments, its columns and its implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits, Row, StatementGraphView
from kgserve.cypher.interpreter.scalar_function_definition import (
    LIST,
    MAP,
    NODE,
    NUMBER,
    RELATIONSHIP,
    STRING,
    ArgumentKind,
    describe_accepted_argument_types,
)
from kgserve.cypher.interpreter.value_comparison import describe_value
from kgserve.errors import InvalidInput

_KIND_NAMES: dict[ArgumentKind, str] = {
    LIST: "LIST OF ANY",
    LIST | NODE: "ANY",
    MAP: "MAP",
    NODE: "NODE",
    NUMBER: "NUMBER",
    RELATIONSHIP: "RELATIONSHIP",
    STRING: "STRING",
}


class ProcedureCallContext(msgspec.Struct, frozen=True):
    """Context of a procedure call: its graph and limits.

    ``run_statement`` runs clauses on a row of variables, and yields the resulting rows.
    """

    graph: StatementGraphView
    limits: ExecutionLimits
    run_statement: Callable[[str, Row], Iterator[Row]]


class ProcedureParameter(msgspec.Struct, frozen=True):
    """Parameter of a procedure: its name and accepted types; null is accepted if it is optional."""

    name: str
    kind: ArgumentKind
    is_optional: bool = False


class ProcedureDefinition(msgspec.Struct, frozen=True):
    """Definition of a procedure: its name, its output columns, and the function that yields its rows.

    A procedure without columns yields one empty row; in a longer statement it is called without YIELD.
    """

    name: str
    outputs: tuple[str, ...]
    run: Callable[..., Iterator[Row]]
    parameters: tuple[ProcedureParameter, ...] = ()
    is_updating: bool = False

    @property
    def signature(self) -> str:
        """The call with its arguments and columns, as drivers show it."""
        arguments = ", ".join(f"{each.name} :: {_KIND_NAMES[each.kind]}" for each in self.parameters)
        return f"{self.name}({arguments}) :: ({', '.join(self.outputs)})"

    def check_count(self, count: int) -> None:
        """Raise InvalidInput for a wrong number of arguments."""
        least = sum(not each.is_optional for each in self.parameters)
        if least <= count <= len(self.parameters):
            return
        if not self.parameters:
            raise InvalidInput(f"procedure {self.name} takes no arguments")
        names = ", ".join(f"{each.name}?" if each.is_optional else each.name for each in self.parameters)
        raise InvalidInput(f"procedure {self.name} takes the arguments ({names}), not {count}")

    def check_arguments(self, values: list[Any]) -> None:
        """Raise InvalidInput for an argument of a wrong type."""
        for parameter, value in zip(self.parameters, values, strict=False):
            if value is None and parameter.is_optional:
                continue
            if type(value) not in parameter.kind:
                expected = describe_accepted_argument_types(parameter.kind)
                raise InvalidInput(f"{parameter.name} of {self.name}() must be {expected}, not {describe_value(value)}")
