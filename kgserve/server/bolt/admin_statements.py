"""Statements that concern the server instead of a graph, as browsers and drivers send them.

Each has a table of rows. What follows YIELD or WHERE is run by the interpreter over this table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from typing_extensions import override

from kgserve.cypher.interpreter.empty_graph import EmptyGraph
from kgserve.cypher.interpreter.execution import execute_cypher_statement
from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits
from kgserve.cypher.interpreter.opencypher_parser import parse_cypher_query
from kgserve.cypher.interpreter.semantic_checks import check_query_semantics
from kgserve.errors import InvalidInput
from kgserve.server.bolt.admin_statement_tables import (
    SYSTEM_DATABASE,
    AdminStatementTable,
    AdminTableProvider,
    ParsedAdminStatement,
)
from kgserve.server.bolt.backend_interface import (
    BoltBackend,
    BoltResult,
    BoltTransaction,
    StatementNotification,
    StatementRequest,
    StatementSummary,
)

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SHOW = re.compile(
    r"\s*SHOW\s+(?P<what>"
    r"DATABASES?|(?:DEFAULT|HOME)\s+DATABASE|CURRENT\s+USER"
    r"|PROCEDURES?|(?:(?:ALL|BUILT\s+IN|USER\s+DEFINED)\s+)?FUNCTIONS?"
    r"|(?:ALL\s+)?INDEX(?:ES)?|(?:ALL\s+)?CONSTRAINTS?)"
    r"(?:\s+EXECUTABLE(?:\s+BY\s+CURRENT\s+USER)?)?(?P<rest>(?:\s.*)?)$",
    re.IGNORECASE | re.DOTALL,
)
_CALL = re.compile(
    r"\s*CALL\s+(?P<name>dbms\.(?:clientConfig|components|showCurrentUser|(?:cluster\.)?routing\.getRoutingTable))"
    r"(?:\s*\([^)]*\))?(?P<rest>(?:\s.*)?)$",
    re.IGNORECASE | re.DOTALL,
)
_SCHEMA = re.compile(
    r"\s*CREATE\s+(?:CONSTRAINT|(?:RANGE\s+|TEXT\s+|LOOKUP\s+)?INDEX)\b(?P<name>(?:\s+(?!IF\b|FOR\b)(?:\w+|`[^`]*`|\$\w+))?)"
    r"(?:\s+IF\s+NOT\s+EXISTS)?\s+FOR\s*\(\s*(?P<variable>\w+)\s*(?::\s*(?:\w+|`[^`]*`))?\s*\)\s*"
    r"(?P<what>.*?)\s*;?\s*$",
    re.IGNORECASE | re.DOTALL,
)
_ID_CONSTRAINT = re.compile(
    r"REQUIRE\s*\(?\s*(?P<variable>\w+)\.(?:id|`id`)\s*\)?\s*IS\s+(?:(?:NODE\s+)?(?:UNIQUE|KEY)|NOT\s+NULL)$",
    re.IGNORECASE,
)
_ATTRIBUTE_INDEX = re.compile(r"ON\s*\(\s*(?P<variable>\w+)\.(?:\w+|`[^`]*`)\s*\)$", re.IGNORECASE)
_DATABASE_NAME = re.compile(r"\s+(?!YIELD\b|WHERE\b)(?:`(?P<quoted>[^`]+)`|(?P<plain>[\w.-]+|\$\w+))", re.IGNORECASE)
_TAIL = re.compile(r"\s*(?P<keyword>YIELD|WHERE)\b(?P<rest>.*)$", re.IGNORECASE | re.DOTALL)
_COLUMNS = re.compile(r"\s*(?:\*|\w+(?:\s+AS\s+\w+)?(?:\s*,\s*\w+(?:\s+AS\s+\w+)?)*)", re.IGNORECASE)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`")
_RETURN = re.compile(r"\bRETURN\b", re.IGNORECASE)
_PLACE = re.compile(r",? at line \d+, column \d+")
_ROWS = "kgserve_rows"
NO_CHANGE = "no change"
"""Subject of statements that declare what every store has."""


class PrecomputedBoltResult(BoltResult):
    """Result whose rows are already computed."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self.columns = tuple(columns)
        self._rows = rows

    @override
    def rows(self) -> Iterator[Sequence[Any]]:
        return iter(self._rows)

    @override
    def summary(self) -> StatementSummary:
        return StatementSummary(type="r")

    @override
    def close(self) -> None:
        return


class SchemaAlreadyExistsResult(PrecomputedBoltResult):
    """Result of CREATE INDEX or CONSTRAINT for what every store already has: no rows, and a notification."""

    def __init__(self) -> None:
        super().__init__((), ())

    @override
    def summary(self) -> StatementSummary:
        note = StatementNotification(
            code="Neo.ClientNotification.Schema.IndexOrConstraintAlreadyExists",
            title="Nothing to create",
            description="Ids are unique in every store, and attributes of nodes are indexed; nothing was changed.",
            severity="INFORMATION",
            category="SCHEMA",
            gql_status="00NA0",
        )
        return StatementSummary(type="s", notifications=(note,))


class SystemDatabaseTransaction(BoltTransaction):
    """Transaction on the system database, which has nothing to change."""

    def __init__(self, backend: BoltBackend) -> None:
        self._backend = backend

    @override
    def run(self, request: StatementRequest) -> BoltResult:
        return run_system_database_statement(request, self._backend)

    @override
    def commit(self) -> str:
        return ""

    @override
    def rollback(self) -> None:
        return


def parse_cypher_admin_statement(statement: str) -> ParsedAdminStatement | None:
    """Return a parsed administration statement such as SHOW DATABASES; None for any other."""
    if not re.match(r"\s*(SHOW|CALL|CREATE)\b", statement := _COMMENT.sub(" ", statement), re.IGNORECASE):
        return None
    statement = statement.strip().rstrip(";").rstrip()
    if is_redundant_schema_statement(statement):
        return ParsedAdminStatement(NO_CHANGE, "", "")
    if show := _SHOW.match(statement):
        subject = re.sub(r"\s+", " ", show["what"].upper())
        subject = re.sub(r"^(ALL|BUILT IN|USER DEFINED) ", "", subject)
        rest, database = show["rest"], ""
        if subject in ("DATABASE", "DATABASES") and (name := _DATABASE_NAME.match(rest)):
            database, rest = name["quoted"] or name["plain"], rest[name.end() :]
        return ParsedAdminStatement(_PLURALS.get(subject, subject), database, rest)
    if call := _CALL.match(statement):
        return ParsedAdminStatement(call["name"].lower(), "", call["rest"])
    return None


def is_redundant_schema_statement(statement: str) -> bool:
    """Return whether a statement declares what every store has: unique ids, or an index of one attribute of nodes."""
    schema = _SCHEMA.match(statement)
    if schema is None:
        return False
    found = _ID_CONSTRAINT.match(schema["what"]) or _ATTRIBUTE_INDEX.match(schema["what"])
    return found is not None and found["variable"] == schema["variable"]


_PLURALS = {
    "DATABASE": "DATABASES",
    "PROCEDURE": "PROCEDURES",
    "FUNCTION": "FUNCTIONS",
    "INDEX": "INDEXES",
    "CONSTRAINT": "CONSTRAINTS",
}


def run_system_database_statement(request: StatementRequest, backend: BoltBackend) -> BoltResult:
    """Answer a statement that was sent to the system database. Raises InvalidInput for other statements."""
    statement = parse_cypher_admin_statement(request.statement)
    if statement is None:
        raise InvalidInput(
            f"the database `{SYSTEM_DATABASE}` only answers SHOW statements; send this statement to the database of a "
            "store. Create and drop stores with REST, MCP or the command line"
        )
    return answer_admin_statement(statement, request, backend)


def answer_admin_statement(
    statement: ParsedAdminStatement, request: StatementRequest, backend: BoltBackend
) -> BoltResult:
    """Return the result of an administration statement. Raises InvalidInput and what the backend raises."""
    if statement.subject == NO_CHANGE:
        return SchemaAlreadyExistsResult()
    table = AdminTableProvider(statement, request, backend).find()
    shown = table.columns[: table.shown]
    if request.plan == "EXPLAIN":
        return PrecomputedBoltResult(shown, [])
    if not statement.tail.strip():
        return PrecomputedBoltResult(shown, [row[: table.shown] for row in table.rows])
    tail = _TAIL.match(statement.tail)
    if tail is None:
        raise InvalidInput(f"unexpected {statement.tail.strip()[:40]!r}: write YIELD or WHERE, or end the statement")
    if tail["keyword"].upper() == "WHERE":
        names = ", ".join(shown)
        return _query_table(table, f"{names} WHERE{tail['rest']} RETURN {names}", request)
    columns = _COLUMNS.match(tail["rest"])
    if columns is None:
        raise InvalidInput(f"YIELD must be followed by * or columns; the columns are {', '.join(table.columns)}")
    chosen = ", ".join(table.columns) if columns[0].strip() == "*" else columns[0]
    rest = tail["rest"][columns.end() :]
    if not _RETURN.search(_QUOTED.sub("", rest)):
        rest += " RETURN " + ", ".join(item.split()[-1] for item in chosen.split(","))
    return _query_table(table, f"{chosen}{rest}", request)


def _query_table(table: AdminStatementTable, text: str, request: StatementRequest) -> PrecomputedBoltResult:
    """Return what a query that continues after WITH says about a table."""
    names = ", ".join(f"row[{number}] AS {name}" for number, name in enumerate(table.columns))
    query_text = f"UNWIND ${_ROWS} AS row WITH {names} WITH {text}"
    try:
        query = parse_cypher_query(query_text)
        info = check_query_semantics(query, query_text)
        if info.is_updating or info.procedures:
            raise InvalidInput("only clauses that read can follow")
        parameters = {**request.parameters, _ROWS: table.rows}
        limits = ExecutionLimits(request.interruption.check)
        result = execute_cypher_statement(query, info, EmptyGraph(), parameters, limits, datetime.now(UTC), query_text)
        return PrecomputedBoltResult(result.columns, list(result.rows))
    except InvalidInput as error:
        # Its place is that in a text that the client has not written.
        error.reword(_PLACE.sub("", error.message))
        raise
