"""Tables that administration statements return, such as those of SHOW DATABASES."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.aggregates import AGGREGATE_NAMES
from kgserve.cypher.interpreter.procedures import PROCEDURES
from kgserve.cypher.interpreter.scalar_function_table import FUNCTIONS
from kgserve.errors import Forbidden
from kgserve.platform.version import __version__
from kgserve.server.bolt.backend_interface import BoltBackend, ShowDatabasesRow, StatementRequest

SYSTEM_DATABASE = "system"
COMPATIBLE_VERSION = "5.22.0"
"""Version of Neo4j that clients take the server for: they choose forms of statements by it.

From 5.23 on, some create a vector index, which no store has, instead of comparing vectors.
"""

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


class AdminStatementTable(msgspec.Struct, frozen=True):
    """Rows of an administration statement; only the first ``shown`` columns are returned without YIELD."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    shown: int


class ParsedAdminStatement(msgspec.Struct, frozen=True):
    """Parsed administration statement: the table it reads, the database it names, and what follows."""

    subject: str
    database: str
    tail: str


class AdminTableProvider:
    """Provider of the tables that administration statements read, for one request."""

    def __init__(self, statement: ParsedAdminStatement, request: StatementRequest, backend: BoltBackend) -> None:
        self._statement = statement
        self._request = request
        self._backend = backend

    def find(self) -> AdminStatementTable:
        """Return the table of the statement."""
        tables: dict[str, Callable[[], AdminStatementTable]] = {
            "DATABASES": self._databases,
            "DEFAULT DATABASE": self._databases,
            "HOME DATABASE": self._databases,
            "CURRENT USER": self._current_user,
            "PROCEDURES": _list_procedures,
            "FUNCTIONS": _list_functions,
            "INDEXES": lambda: AdminStatementTable(_INDEX_COLUMNS, [], 12),
            "CONSTRAINTS": lambda: AdminStatementTable(_CONSTRAINT_COLUMNS, [], 8),
            "dbms.clientconfig": lambda: AdminStatementTable(
                ("name", "description", "value", "dynamic"), _CLIENT_SETTINGS, 4
            ),
            "dbms.components": lambda: AdminStatementTable(("name", "versions", "edition"), _COMPONENTS, 3),
            "dbms.showcurrentuser": self._called_current_user,
            "dbms.routing.getroutingtable": _refuse_routing,
            "dbms.cluster.routing.getroutingtable": _refuse_routing,
        }
        return tables[self._statement.subject]()

    def _databases(self) -> AdminStatementTable:
        wanted = self._statement.database
        if wanted.startswith("$"):
            wanted = self._request.parameters.get(wanted[1:], "")
        entries = [
            *self._backend.databases(self._request.caller),
            ShowDatabasesRow(name=SYSTEM_DATABASE, is_writable=False),
        ]
        home = self._find_home()
        if self._statement.subject != "DATABASES":
            wanted = home
        rows = [_describe_database(each, home) for each in entries if wanted in ("", each.name)]
        return AdminStatementTable(_DATABASE_COLUMNS, rows, len(_DATABASE_COLUMNS))

    def _find_home(self) -> str:
        return self._backend.home_database(self._request.caller)

    def _current_user(self) -> AdminStatementTable:
        caller = self._request.caller
        home = self._find_home()
        return AdminStatementTable(
            _USER_COLUMNS, [[caller.name, list(caller.roles), False, False, home]], len(_USER_COLUMNS)
        )

    def _called_current_user(self) -> AdminStatementTable:
        caller = self._request.caller
        return AdminStatementTable(("username", "roles", "flags"), [[caller.name, list(caller.roles), []]], 3)


_CLIENT_SETTINGS: list[list[Any]] = [
    ["browser.allow_outgoing_connections", "", "false", False],
    ["browser.retain_connection_credentials", "", "false", False],
    ["client.allow_telemetry", "", "false", False],
]


_COMPONENTS: list[list[Any]] = [
    ["Neo4j Kernel", [COMPATIBLE_VERSION], "community"],
    ["kgserve", [__version__], "community"],
]


def _describe_database(entry: ShowDatabasesRow, home: str) -> list[Any]:
    kind = "system" if entry.name == SYSTEM_DATABASE else "standard"
    access = "read-write" if entry.is_writable or kind == "system" else "read-only"
    is_home = entry.name == home
    state = ["primary", entry.is_writable, "online", "online", ""]
    return [entry.name, kind, [], access, entry.address, *state, is_home, is_home, []]


def _refuse_routing() -> AdminStatementTable:
    raise Forbidden(
        "routing tables are not available by procedure; drivers since 4.3 ask with the message ROUTE, and bolt:// "
        "addresses need no routing"
    )


def _list_procedures() -> AdminStatementTable:
    rows: list[list[Any]] = []
    for each in PROCEDURES.values():
        description = f"Yields {', '.join(each.outputs)}." if each.outputs else "Yields nothing."
        mode = "WRITE" if each.is_updating else "READ"
        rows.append([each.name, description, mode, each.name.startswith("dbms."), each.signature, False, False])
    return AdminStatementTable(_PROCEDURE_COLUMNS, sorted(rows), 4)


def _list_functions() -> AdminStatementTable:
    categories = dict.fromkeys(AGGREGATE_NAMES, "Aggregating") | dict.fromkeys(temporal_functions.FUNCTIONS, "Temporal")
    categories |= {function.name: "Scalar" for function in FUNCTIONS.values()}
    categories |= {"coalesce": "Scalar", "timestamp": "Temporal"}
    rows: list[list[Any]] = [
        [name, category, "", f"{name}()", True, category == "Aggregating", False]
        for name, category in sorted(categories.items())
    ]
    return AdminStatementTable(_FUNCTION_COLUMNS, rows, 3)
