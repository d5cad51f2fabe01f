"""A backend whose statements are commands for tests of the protocol.

| statement | result |
|---|---|
| ``ECHO`` | one row with the parameters, in order |
| ``COUNT n`` | the numbers below n, one a row |
| ``SLEEP s`` | no rows, after s seconds unless interrupted |
| ``NOTE text`` | no rows; adds a text to the notes of the database at commit |
| ``NOTES`` | the notes, one a row |
| ``FAIL class`` / ``FAIL LATE class`` | an error of `kgserve.errors`, now or after one row |
| ``CRASH`` | a defect of the backend |
| ``WARN`` | a notification |
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from typing_extensions import override

import kgserve.errors
from kgserve.cypher.interpreter.empty_graph import EmptyGraph
from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits
from kgserve.errors import Conflict, Forbidden, InvalidInput, KgserveError, NoStore, Unauthenticated
from kgserve.graph.cypher.interpreted_statements import (
    describe_interpreted_statement_plan,
    parse_and_check_interpreted_statement,
)
from kgserve.server.bolt.backend_interface import (
    AuthenticatedBoltClient,
    AuthenticationRequest,
    BeginTransactionRequest,
    BoltBackend,
    BoltResult,
    BoltRoutingTable,
    BoltTransaction,
    ExecutionPlanOperator,
    ShowDatabasesRow,
    StatementExplanation,
    StatementNotification,
    StatementRequest,
    StatementSummary,
)
from kgserve.server.bolt.execution_plans import build_bolt_plan_tree, classify_statement_access
from kgserve.server.bolt.failures import InvalidBookmark

PASSWORD = "correct horse"
WARNING = StatementNotification(
    code="Neo.ClientNotification.Statement.Slow", title="Slow", description="it is slow", position=(0, 1, 1)
)
_STEP_SECONDS = 0.01


class ScriptedBackend(BoltBackend):
    """Notes by database, and counts of what was opened and closed."""

    def __init__(self) -> None:
        self.notes: defaultdict[str, list[str]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.requests: list[StatementRequest] = []
        self.threads: set[str] = set()
        self.conflicts = 0
        self.lock = threading.Lock()

    @property
    def open_count(self) -> int:
        """Results and transactions that were opened and not closed."""
        return self.counts["opened"] - self.counts["closed"]

    @override
    def authenticate(self, request: AuthenticationRequest) -> AuthenticatedBoltClient:
        if request.scheme == "bearer" and request.credentials == PASSWORD:
            return AuthenticatedBoltClient(name="bearer")
        if request.scheme == "basic" and request.credentials == PASSWORD:
            return AuthenticatedBoltClient(name=request.principal, roles=("admin",))
        raise Unauthenticated("the name or the password is wrong")

    @override
    def serving(self, caller: AuthenticatedBoltClient) -> AbstractContextManager[None]:
        return nullcontext()

    @override
    def home_database(self, caller: AuthenticatedBoltClient) -> str:
        return "home"

    @override
    def databases(self, caller: AuthenticatedBoltClient) -> Sequence[ShowDatabasesRow]:
        return [ShowDatabasesRow(name="home"), ShowDatabasesRow(name="other", is_writable=False)]

    @override
    def route(self, caller: AuthenticatedBoltClient, database: str, address: str) -> BoltRoutingTable:
        if database == "missing":
            raise NoStore(database)
        return BoltRoutingTable(readers=(address,), writers=(address,), routers=(address,))

    @override
    def run(self, request: StatementRequest) -> BoltResult:
        self._check(request)
        return ScriptedResult(self, request, self.notes[request.database], is_commit=True)

    @override
    def explain(self, request: StatementRequest) -> StatementExplanation:
        statement = parse_and_check_interpreted_statement(request.statement, request.parameters, request.plan)
        limits = ExecutionLimits(request.interruption.check)
        plan = build_bolt_plan_tree(describe_interpreted_statement_plan(statement, EmptyGraph(), limits))
        return StatementExplanation(
            columns=statement.info.columns, type=classify_statement_access(statement.info), plan=plan
        )

    @override
    def begin(self, request: BeginTransactionRequest) -> BoltTransaction:
        self._check(request)
        return ScriptedTransaction(self, request)

    def _check(self, request: StatementRequest | BeginTransactionRequest) -> None:
        self.threads.add(threading.current_thread().name)
        if request.database == "missing":
            raise NoStore(request.database)
        for bookmark in request.bookmarks:
            kind, _, rest = bookmark.partition(":")
            database, _, number = rest.partition(":")
            if kind != "note" or int(number) > len(self.notes[database]):
                raise InvalidBookmark(f"{bookmark!r} is no bookmark of this server")

    def bookmark(self, database: str) -> str:
        return f"note:{database}:{len(self.notes[database])}"


class ScriptedTransaction(BoltTransaction):
    """Notes are collected and added at commit."""

    def __init__(self, backend: ScriptedBackend, request: BeginTransactionRequest) -> None:
        self.backend, self.request = backend, request
        self.notes: list[str] = []
        backend.counts["opened"] += 1

    @override
    def run(self, request: StatementRequest) -> BoltResult:
        assert request.caller == self.request.caller
        return ScriptedResult(self.backend, request, self.notes, is_commit=False)

    @override
    def commit(self) -> str:
        self.backend.counts["closed"] += 1
        self.backend.counts["commits"] += 1
        if self.backend.conflicts:
            self.backend.conflicts -= 1
            raise Conflict("another transaction has changed the same node")
        self.backend.notes[self.request.database].extend(self.notes)
        return self.backend.bookmark(self.request.database)

    @override
    def rollback(self) -> None:
        self.backend.counts["closed"] += 1
        self.backend.counts["rollbacks"] += 1


class ScriptedResult(BoltResult):
    """Result of one command."""

    def __init__(
        self, backend: ScriptedBackend, request: StatementRequest, notes: list[str], *, is_commit: bool
    ) -> None:
        self.backend, self.request, self.notes = backend, request, notes
        self.is_commit = is_commit
        backend.requests.append(request)
        self.command, _, self.rest = request.statement.strip().partition(" ")
        if self.command == "FAIL" and not self.rest.startswith("LATE"):
            raise make_error(self.rest)
        if self.command == "CRASH":
            raise RuntimeError("secret detail")
        if self.command == "NOTE" and request.is_read_only:
            raise Forbidden("the session only reads")
        columns = {"ECHO": tuple(request.parameters), "COUNT": ("n",), "NOTES": ("note",), "FAIL": ("n",)}
        if self.command not in {*columns, "SLEEP", "NOTE", "WARN", "UNSENDABLE"}:
            raise InvalidInput(f"unknown command {self.command!r} at line 1, column 1")
        self.columns = columns.get(self.command, ("value",) if self.command == "UNSENDABLE" else ())
        self.is_write = self.command == "NOTE"
        with backend.lock:
            backend.counts["opened"] += 1

    @override
    def rows(self) -> Iterator[Sequence[Any]]:
        match self.command:
            case "ECHO":
                yield list(self.request.parameters.values())
            case "COUNT":
                for number in range(int(self.rest)):
                    self.backend.counts["rows"] += 1
                    yield [number]
            case "SLEEP":
                end = time.monotonic() + float(self.rest)
                while time.monotonic() < end:
                    self.request.interruption.check()
                    time.sleep(_STEP_SECONDS)
            case "NOTE":
                self.notes.append(self.rest)
            case "NOTES":
                committed = self.backend.notes[self.request.database]
                yield from ([note] for note in ([*committed] if self.is_commit else [*committed, *self.notes]))
            case "FAIL":
                yield [1]
                raise make_error(self.rest.removeprefix("LATE "))
            case "UNSENDABLE":
                yield [object()]
            case _:
                pass

    @override
    def summary(self) -> StatementSummary:
        plan = ExecutionPlanOperator(operator="Command", children=(ExecutionPlanOperator(operator="Child"),))
        return StatementSummary(
            type="w" if self.is_write else "r",
            counters={"nodes-created": 1} if self.is_write else {},
            bookmark=self.backend.bookmark(self.request.database) if self.is_commit else "",
            notifications=(WARNING,) if self.command == "WARN" else (),
            profile=plan if self.request.plan == "PROFILE" else None,
        )

    @override
    def close(self) -> None:
        with self.backend.lock:
            self.backend.counts["closed"] += 1


def make_error(text: str) -> KgserveError:
    """Create the error of a class and a message: ``NoStore x``."""
    name, _, message = text.partition(" ")
    return getattr(kgserve.errors, name)(message or "it failed")
