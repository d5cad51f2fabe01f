"""Statements that concern the server instead of a graph, as browsers and drivers send them.

Each has a table of rows. What follows YIELD or WHERE is run by the interpreter over this table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from typing_extensions import override

from kgserve.errors import Forbidden, InvalidInput
from kgserve.server.bolt.backend import (
    BoltBackend,
    BoltResult,
    BoltTransaction,
    DatabaseEntry,
    PlanRequest,
    StatementRequest,
    StatementSummary,
)

SYSTEM_DATABASE = "system"

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_PREFIX = re.compile(r"\s*(EXPLAIN|PROFILE)\b", re.IGNORECASE)
_CYPHER_OPTION = re.compile(r"\s*CYPHER(?:\s+(?:\d+|\d+\.\d+|\w+\s*=\s*\w+))*\s+", re.IGNORECASE)
_SHOW = re.compile(
    r"\s*SHOW\s+(?P<what>"
    r"DATABASES?|(?:DEFAULT|HOME)\s+DATABASE|CURRENT\s+USER"
    r"|PROCEDURES?|(?:(?:ALL|BUILT\s+IN|USER\s+DEFINED)\s+)?FUNCTIONS?"
    r"|(?:ALL\s+)?INDEX(?:ES)?|(?:ALL\s+)?CONSTRAINTS?)"
    r"(?:\s+EXECUTABLE(?:\s+BY\s+CURRENT\s+USER)?)?(?P<rest>(?:\s.*)?)$",
    re.IGNORECASE | re.DOTALL,
)
_CALL = re.compile(
    r"\s*CALL\s+(?P<name>dbms\.clientConfig|dbms\.showCurrentUser|dbms\.(?:cluster\.)?routing\.getRoutingTable)"
    r"(?:\s*\([^)]*\))?(?P<rest>(?:\s.*)?)$",
    re.IGNORECASE | re.DOTALL,
)
_DATABASE_NAME = re.compile(r"\s+(?!YIELD\b|WHERE\b)(?:`(?P<quoted>[^`]+)`|(?P<plain>[\w.-]+|\$\w+))", re.IGNORECASE)
_TAIL = re.compile(r"\s*(?P<keyword>YIELD|WHERE)\b(?P<rest>.*)$", re.IGNORECASE | re.DOTALL)
_COLUMN_LIST = re.compile(r"\s*\w+(?:\s+AS\s+\w+)?(?:\s*,\s*\w+(?:\s+AS\s+\w+)?)*\s*$", re.IGNORECASE)

_DATABASE_COLUMNS = (
    "name", "type", "aliases", "access", "address", "role", "writer", "requestedStatus", "currentStatus",
    "statusMessage", "default", "home", "constituents",
)  # fmt: skip
_USER_COLUMNS = ("user", "roles", "passwordChangeRequired", "suspended", "home")
_PROCEDURE_COLUMNS = ("name", "description", "mode", "worksOnSystem", "signature", "admin", "isDeprecated")
_FUNCTION_COLUMNS = ("name", "category", "description", "signature", "isBuiltIn", "aggregating", "isDeprecated")
_INDEX_COLUMNS = (
    "id", "name", "state", "populationPercent", "type", "entityType", "labelsOrTypes", "properties", "indexProvider",
    "owningConstraint", "lastRead", "readCount", "trackedSince", "options", "failureMessage", "createStatement",
)  # fmt: skip
_CONSTRAINT_COLUMNS = (
    "id", "name", "type", "entityType", "labelsOrTypes", "properties", "ownedIndex", "propertyType", "options",
    "createStatement",
)  # fmt: skip


class SystemTable(msgspec.Struct, frozen=True):
    """Rows of a statement; only the first ``shown`` columns are returned without YIELD."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    shown: int


class SystemStatement(msgspec.Struct, frozen=True):
    """Recognized statement: the table it reads, the database it names, and what follows."""

    subject: str
    database: str
    tail: str


class FixedResult(BoltResult):
    """Result whose rows are there already."""

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


class SystemTransaction(BoltTransaction):
    """Transaction on the system database, which has nothing to change."""

    def __init__(self, backend: BoltBackend) -> None:
        self._backend = backend

    @override
    def run(self, request: StatementRequest) -> BoltResult:
        return run_on_system(request, self._backend)

    @override
    def commit(self) -> str:
        return ""

    @override
    def rollback(self) -> None:
        return


def split_plan_prefix(statement: str) -> tuple[PlanRequest, str]:
    """Return the prefix EXPLAIN or PROFILE in capitals, or nothing, and the statement with spaces in its place."""
    option = _CYPHER_OPTION.match(statement)
    if option is not None:
        statement = " " * option.end() + statement[option.end() :]
    match = _PREFIX.match(statement)
    if match is None:
        return "", statement
    plan: PlanRequest = "EXPLAIN" if match[1].upper() == "EXPLAIN" else "PROFILE"
    return plan, " " * match.end() + statement[match.end() :]


def parse_system_statement(statement: str) -> SystemStatement | None:
    """Return a statement of this module; None for any other."""
    if not re.match(r"\s*(SHOW|CALL)\b", statement := _COMMENT.sub(" ", statement), re.IGNORECASE):
        return None
    statement = statement.strip().rstrip(";").rstrip()
    if show := _SHOW.match(statement):
        subject = re.sub(r"\s+", " ", show["what"].upper())
        subject = re.sub(r"^(ALL|BUILT IN|USER DEFINED) ", "", subject)
        rest, database = show["rest"], ""
        if subject in ("DATABASE", "DATABASES") and (name := _DATABASE_NAME.match(rest)):
            database, rest = name["quoted"] or name["plain"], rest[name.end() :]
        return SystemStatement(_PLURALS.get(subject, subject), database, rest)
    if call := _CALL.match(statement):
        return SystemStatement(call["name"].lower(), "", call["rest"])
    return None


_PLURALS = {
    "DATABASE": "DATABASES",
    "PROCEDURE": "PROCEDURES",
    "FUNCTION": "FUNCTIONS",
    "INDEX": "INDEXES",
    "CONSTRAINT": "CONSTRAINTS",
}


def run_on_system(request: StatementRequest, backend: BoltBackend) -> BoltResult:
    """Answer a statement that was sent to the system database. Raises InvalidInput for other statements."""
    statement = parse_system_statement(request.statement)
    if statement is None:
        raise InvalidInput(
            f"the database `{SYSTEM_DATABASE}` only answers SHOW statements; send this statement to the database of a "
            "store. Create and drop stores with REST, MCP or the command line"
        )
    return answer_statement(statement, request, backend)


def answer_statement(statement: SystemStatement, request: StatementRequest, backend: BoltBackend) -> BoltResult:
    """Return the result of a statement. Raises InvalidInput and what the backend raises."""
    table = SystemTables(statement, request, backend).find()
    if not statement.tail.strip():
        return FixedResult(table.columns[: table.shown], [row[: table.shown] for row in table.rows])
    tail = _TAIL.match(statement.tail)
    if tail is None:
        raise InvalidInput(f"unexpected {statement.tail.strip()[:40]!r}: write YIELD or WHERE, or end the statement")
    if tail["keyword"].upper() == "YIELD":
        if tail["rest"].strip() == "*":
            return FixedResult(table.columns, table.rows)
        if _COLUMN_LIST.match(tail["rest"]):
            return _select_columns(table, tail["rest"])
    raise InvalidInput("only YIELD with a list of columns can follow")


def _select_columns(table: SystemTable, text: str) -> FixedResult:
    names: list[str] = []
    places: list[int] = []
    for item in text.split(","):
        name, *alias = item.split()
        if name not in table.columns:
            raise InvalidInput(f"there is no column `{name}`; the columns are {', '.join(table.columns)}")
        names.append(alias[-1] if alias else name)
        places.append(table.columns.index(name))
    return FixedResult(names, [[row[place] for place in places] for row in table.rows])


class SystemTables:
    """Tables that the statements read, for one request."""

    def __init__(self, statement: SystemStatement, request: StatementRequest, backend: BoltBackend) -> None:
        self._statement = statement
        self._request = request
        self._backend = backend

    def find(self) -> SystemTable:
        """Return the table of the statement."""
        tables: dict[str, Callable[[], SystemTable]] = {
            "DATABASES": self._databases,
            "DEFAULT DATABASE": self._databases,
            "HOME DATABASE": self._databases,
            "CURRENT USER": self._current_user,
            "PROCEDURES": self._procedures,
            "FUNCTIONS": self._functions,
            "INDEXES": lambda: SystemTable(_INDEX_COLUMNS, [], 12),
            "CONSTRAINTS": lambda: SystemTable(_CONSTRAINT_COLUMNS, [], 8),
            "dbms.clientconfig": lambda: SystemTable(("name", "description", "value", "dynamic"), _CLIENT_SETTINGS, 4),
            "dbms.showcurrentuser": self._called_current_user,
            "dbms.routing.getroutingtable": _refuse_routing,
            "dbms.cluster.routing.getroutingtable": _refuse_routing,
        }
        return tables[self._statement.subject]()

    def _databases(self) -> SystemTable:
        wanted = self._statement.database
        if wanted.startswith("$"):
            wanted = self._request.parameters.get(wanted[1:], "")
        entries = [
            *self._backend.databases(self._request.caller),
            DatabaseEntry(name=SYSTEM_DATABASE, is_writable=False),
        ]
        if self._statement.subject != "DATABASES":
            entries = [each for each in entries if each.is_home]
        rows = [_describe_database(each) for each in entries if not wanted or each.name == wanted]
        return SystemTable(_DATABASE_COLUMNS, rows, len(_DATABASE_COLUMNS))

    def _current_user(self) -> SystemTable:
        caller = self._request.caller
        home = next((each.name for each in self._backend.databases(caller) if each.is_home), None)
        return SystemTable(_USER_COLUMNS, [[caller.name, list(caller.roles), False, False, home]], len(_USER_COLUMNS))

    def _called_current_user(self) -> SystemTable:
        caller = self._request.caller
        return SystemTable(("username", "roles", "flags"), [[caller.name, list(caller.roles), []]], 3)

    def _procedures(self) -> SystemTable:
        rows: list[list[Any]] = [
            [each.name, each.description, each.mode, each.mode == "DBMS", each.signature, False, False]
            for each in self._backend.procedures()
        ]
        return SystemTable(_PROCEDURE_COLUMNS, rows, 4)

    def _functions(self) -> SystemTable:
        rows: list[list[Any]] = [
            [each.name, each.category, each.description, each.signature, True, each.category == "Aggregating", False]
            for each in self._backend.functions()
        ]
        return SystemTable(_FUNCTION_COLUMNS, rows, 3)


_CLIENT_SETTINGS: list[list[Any]] = [
    ["browser.allow_outgoing_connections", "", "false", False],
    ["browser.retain_connection_credentials", "", "false", False],
    ["client.allow_telemetry", "", "false", False],
]


def _describe_database(entry: DatabaseEntry) -> list[Any]:
    kind = "system" if entry.name == SYSTEM_DATABASE else "standard"
    access = "read-write" if entry.is_writable or kind == "system" else "read-only"
    state = ["primary", entry.is_writable, "online", "online", ""]
    return [entry.name, kind, [], access, entry.address, *state, entry.is_home, entry.is_home, []]


def _refuse_routing() -> SystemTable:
    raise Forbidden(
        "routing tables are not available by procedure; drivers since 4.3 ask with the message ROUTE, and bolt:// "
        "addresses need no routing"
    )
