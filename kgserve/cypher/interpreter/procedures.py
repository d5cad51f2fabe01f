"""Table of the procedures that Cypher statements can call."""

from __future__ import annotations

from kgserve.cypher.interpreter.apoc_write_procedures import UPDATE_PROCEDURES
from kgserve.cypher.interpreter.procedure_definition import ProcedureDefinition
from kgserve.cypher.interpreter.schema_procedures import SCHEMA_PROCEDURES
from kgserve.errors import InvalidInput

PROCEDURES: dict[str, ProcedureDefinition] = {
    each.name.lower(): each for each in (*SCHEMA_PROCEDURES, *UPDATE_PROCEDURES)
}


def find_procedure(name: str) -> ProcedureDefinition:
    """Return a procedure by name; upper and lower case do not matter. Raises InvalidInput with the list of names."""
    found = PROCEDURES.get(name.lower())
    if found is None:
        known = ", ".join(sorted((each.name for each in PROCEDURES.values()), key=_rank_name))
        raise InvalidInput(f"there is no procedure {name}; available are {known}")
    return found


def _rank_name(name: str) -> tuple[bool, bool, str]:
    """Return the key by which procedures are listed: reading ones of Neo4j first."""
    return name.startswith("apoc."), is_updating_procedure(name), name


def is_updating_procedure(name: str) -> bool:
    """Return whether a procedure exists and writes."""
    found = PROCEDURES.get(name.lower())
    return found is not None and found.is_updating


def is_void_procedure(name: str) -> bool:
    """Return whether a procedure exists and returns no columns."""
    found = PROCEDURES.get(name.lower())
    return found is not None and not found.outputs
