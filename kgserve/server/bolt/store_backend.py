"""Bolt backend over the stores of a server: databases are stores, and the interpreter runs all statements."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from typing_extensions import override

from kgserve.cypher.interpreter.empty_graph import EmptyGraph
from kgserve.cypher.interpreter.execution import QueryResult
from kgserve.cypher.interpreter.graph_change_overlay import GraphChangeOverlay, GraphUpdateCounts
from kgserve.cypher.interpreter.graph_view_interface import ExecutionLimits, StatementGraphView
from kgserve.cypher.interpreter.statement_profile import StatementProfile
from kgserve.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NoStore,
    RateLimited,
    TimedOut,
    Unauthenticated,
    Unavailable,
)
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher.detached_values import DetachedResultElements
from kgserve.graph.cypher.engine_read_statements import StatementCancellation
from kgserve.graph.cypher.interpreted_statements import (
    InterpretedStatement,
    InterpretedWrite,
    build_cancellation_and_timeout_limits,
    convert_graph_changes_to_row_changes,
    describe_interpreted_statement_plan,
    parse_and_check_interpreted_statement,
    start_interpreted_statement,
)
from kgserve.graph.cypher.optimistic_write import WriteConflict, has_write_overlap, read_commits_after
from kgserve.graph.cypher.row_changes import convert_row_changes_to_write_batch
from kgserve.graph.cypher.snapshot_graph_view import SnapshotGraphView, open_snapshot_graph_view
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle
from kgserve.platform.access.audit import AuditLog
from kgserve.platform.access.authentication import AuthenticatedCaller, Authenticator, InvalidCredentials
from kgserve.projections.cypher_engine.engine.fair_pool import current_caller
from kgserve.server.admission import ActiveRequestCounter
from kgserve.server.bolt.backend_interface import (
    AuthenticatedBoltClient,
    AuthenticationRequest,
    BeginTransactionRequest,
    BoltBackend,
    BoltResult,
    BoltRoutingTable,
    BoltTransaction,
    ExecutionPlanOperator,
    InterruptionSignal,
    ShowDatabasesRow,
    StatementExplanation,
    StatementRequest,
    StatementSummary,
)
from kgserve.server.bolt.execution_plans import build_bolt_plan_tree, classify_statement_access
from kgserve.server.bolt.failures import InvalidBookmark
from kgserve.server.http.rate_limits import RateLimiter, is_local
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

BOOKMARK_PREFIX = "kgserve"
HOME_DATABASES = ("default", "neo4j")
"""Names of the store that a client means who names none; the first existing one."""
HOME_CACHE_SECONDS = 2.0
"""Time for which the only store of a caller counts as its home database without another look."""
MAX_CACHED_CALLERS = 1_000
MAX_BOOKMARK_WAIT_SECONDS = 10.0
_BOOKMARK_POLL_SECONDS = 0.05
_ADMISSION_POLL_SECONDS = 0.02
_SEQUENCE_PATTERN = re.compile(r"[0-9]{1,18}")
_COUNTERS = {
    "nodes_created": "nodes-created",
    "nodes_deleted": "nodes-deleted",
    "relationships_created": "relationships-created",
    "relationships_deleted": "relationships-deleted",
    "properties_set": "properties-set",
    "labels_added": "labels-added",
    "labels_removed": "labels-removed",
}


class BoltStoreBackend(BoltBackend):
    """Bolt backend of one server, whose databases are the server's stores."""

    def __init__(
        self,
        graphs: CallerStoreHandles,
        authenticator: Authenticator,
        audit: AuditLog,
        rates: RateLimiter,
        use: ActiveRequestCounter,
    ) -> None:
        """Apply the limits and counts of the server's other interfaces."""
        self._graphs = graphs
        self._authenticator = authenticator
        self._audit = audit
        self._rates = rates
        self._use = use
        self._only_stores: dict[AuthenticatedCaller, tuple[str, float]] = {}

    @override
    def authenticate(self, request: AuthenticationRequest) -> AuthenticatedBoltClient:
        if request.scheme not in {"basic", "bearer", "none"}:
            raise InvalidInput(f"unknown authentication scheme {request.scheme!r}; use basic or bearer with an API key")
        given = [(b"authorization", b"Bearer " + request.credentials.encode())] if request.scheme != "none" else []
        try:
            caller = self._authenticator.authenticate("bolt", b"", given)
        except Unauthenticated as error:
            if isinstance(error, InvalidCredentials):
                self._rates.count_wrong_key(request.remote)
            self._audit.record_refusal("bolt.authenticate", "401", caller=None, address=request.remote)
            raise
        return AuthenticatedBoltClient(name=caller.name, roles=(caller.role,), identity=(caller, request.remote))

    @override
    @contextmanager
    def serving(self, caller: AuthenticatedBoltClient) -> Generator[None]:
        identity, _ = get_bolt_caller_identity(caller)
        if not self._authenticator.still_valid(identity):
            raise Unauthenticated("the key of this connection is no longer valid; connect again with another one")
        self._use.begin()
        try:
            yield
        finally:
            self._use.end()

    @override
    def home_database(self, caller: AuthenticatedBoltClient) -> str:
        identity, _ = get_bolt_caller_identity(caller)
        stores = self._graphs.for_caller(identity).pool
        for name in HOME_DATABASES:
            with suppress(NoStore):
                stores.require(name)
                return name
        # Listing the stores takes a look at each folder.
        known, until = self._only_stores.get(identity, ("", 0.0))
        if time.monotonic() < until:
            return known
        names = stores.names()
        found = names[0] if len(names) == 1 else HOME_DATABASES[0]
        if len(self._only_stores) >= MAX_CACHED_CALLERS:
            self._only_stores.clear()
        self._only_stores[identity] = (found, time.monotonic() + HOME_CACHE_SECONDS)
        return found

    @override
    def databases(self, caller: AuthenticatedBoltClient) -> Sequence[ShowDatabasesRow]:
        identity, _ = get_bolt_caller_identity(caller)
        names = self._graphs.for_caller(identity).pool.names()
        return [ShowDatabasesRow(name=name, is_writable=identity.has_role("write")) for name in names]

    @override
    def route(self, caller: AuthenticatedBoltClient, database: str, address: str) -> BoltRoutingTable:
        return BoltRoutingTable(readers=(address,), writers=(address,), routers=(address,))

    @override
    def run(self, request: StatementRequest) -> BoltResult:
        graph = self._open_graph(request)
        statement = parse_and_check_statement(request)
        seconds = clamp_query_timeout(graph, request.timeout)
        if statement.info.is_updating:
            return _WriteResult(graph, statement, request, seconds)
        return _ReadResult(graph, statement, request, seconds)

    @override
    def explain(self, request: StatementRequest) -> StatementExplanation:
        handle = self._open_graph(request)
        statement = parse_and_check_interpreted_statement(request.statement, request.parameters, request.plan)
        control = cancellation_from_client_signal(request.interruption)
        limits = build_cancellation_and_timeout_limits(control, clamp_query_timeout(handle, request.timeout))
        with ExitStack() as held:
            graph: StatementGraphView = EmptyGraph()
            # A statement that writes would create a missing store.
            with suppress(*([NoStore] if statement.info.is_updating else [])):
                store = held.enter_context(handle.lease())
                graph = open_snapshot_graph_view(store, held.enter_context(store.reading()))
            plan = build_bolt_plan_tree(describe_interpreted_statement_plan(statement, graph, limits))
        return StatementExplanation(
            columns=statement.info.columns, type=classify_statement_access(statement.info), plan=plan
        )

    @override
    def begin(self, request: BeginTransactionRequest) -> BoltTransaction:
        return BoltExplicitTransaction(self._open_graph(request), request, partial(self._admit, request.caller))

    def _admit(self, client: AuthenticatedBoltClient) -> None:
        """Count a transaction or a statement. Raises RateLimited."""
        caller, address = get_bolt_caller_identity(client)
        if caller.key_id is not None or not is_local(address):
            self._rates.admit(caller, address)

    def _open_graph(self, request: StatementRequest | BeginTransactionRequest) -> StoreHandle:
        self._admit(request.caller)
        caller, address = get_bolt_caller_identity(request.caller)
        name = caller.key_id or address
        self._use.callers.record_request(name)
        current_caller.set(name)
        return self._graphs.for_caller(caller).graph(request.database)


def get_bolt_caller_identity(caller: AuthenticatedBoltClient) -> tuple[AuthenticatedCaller, str]:
    """Return the caller and the address that `BoltStoreBackend.authenticate` has put into a Bolt caller."""
    return caller.identity


def parse_and_check_statement(request: StatementRequest) -> InterpretedStatement:
    """Parse and check a statement. Raises InvalidInput, and Forbidden for a write that the caller may not do."""
    statement = parse_and_check_interpreted_statement(request.statement, request.parameters, request.plan)
    if statement.info.is_updating:
        if request.is_read_only:
            raise Forbidden("the statement writes data, but the session or transaction only reads")
        get_bolt_caller_identity(request.caller)[0].require("write")
    return statement


def clamp_query_timeout(graph: StoreHandle, asked: float | None) -> float:
    """Return the time limit in seconds: the requested one, at most the server's."""
    longest = graph.graphs.settings.query_timeout
    return longest if asked is None else min(asked, longest)


def format_commit_bookmark(database: str, sequence: int) -> str:
    """Return the bookmark of a commit."""
    return f"{BOOKMARK_PREFIX}:{database}:{sequence}"


def wait_for_commit_bookmarks(store: OpenStore, bookmarks: Sequence[str], check: Callable[[], None]) -> None:
    """Wait until a store has the commits that bookmarks name; those of other stores are ignored.

    Raises InvalidBookmark for other texts, and Unavailable if a commit does not arrive in time.
    """
    wanted = 0
    for bookmark in bookmarks:
        prefix, _, rest = bookmark.partition(":")
        database, _, sequence = rest.rpartition(":")
        if prefix != BOOKMARK_PREFIX or not database or _SEQUENCE_PATTERN.fullmatch(sequence) is None:
            raise InvalidBookmark(f"{bookmark!r} is not a bookmark of this server")
        if database == store.name:
            wanted = max(wanted, int(sequence))
    until = time.monotonic() + MAX_BOOKMARK_WAIT_SECONDS
    while store.state.sequence < wanted:
        check()
        store.wait_for_replica(wanted)
        if time.monotonic() > until:
            raise Unavailable(
                f"the commit {wanted} of a bookmark has not arrived; this store has {store.state.sequence}"
            )
        time.sleep(_BOOKMARK_POLL_SECONDS)


def cancellation_from_client_signal(interruption: InterruptionSignal) -> StatementCancellation:
    """Return a cancellation that the signal of a client triggers."""
    control = StatementCancellation()
    interruption.on_request(control.interrupt)
    return control


def list_nonzero_bolt_counters(counts: GraphUpdateCounts) -> dict[str, int]:
    """Return the counts that are not zero, by their names in the protocol."""
    return {name: count for field, name in _COUNTERS.items() if (count := getattr(counts, field))}


class CypherProfileRecorder:
    """Profile of a statement that begins with PROFILE; nothing for any other."""

    def __init__(self) -> None:
        self._describe: Callable[[], ExecutionPlanOperator] | None = None

    def start(self, statement: InterpretedStatement, graph: StatementGraphView, limits: ExecutionLimits) -> QueryResult:
        """Start a statement, and count its rows if it asks for that."""
        if statement.plan != "PROFILE":
            return start_interpreted_statement(statement, graph, limits)
        profile = StatementProfile()
        result = start_interpreted_statement(statement, graph, limits, profile)
        self._describe = lambda: build_bolt_plan_tree(
            describe_interpreted_statement_plan(statement, graph, limits, profile)
        )
        return result

    def describe(self) -> ExecutionPlanOperator | None:
        """Return the plan with the rows counted so far."""
        return None if self._describe is None else self._describe()


class _ReadResult(BoltResult):
    """Result of a reading statement, which holds its snapshot until it is closed."""

    def __init__(
        self, graph: StoreHandle, statement: InterpretedStatement, request: StatementRequest, seconds: float
    ) -> None:
        self._held = ExitStack()
        self._plan = CypherProfileRecorder()
        try:
            store = self._held.enter_context(graph.lease())
            wait_for_commit_bookmarks(store, request.bookmarks, request.interruption.check)
            rows = self._held.enter_context(store.reading())
            limits = build_cancellation_and_timeout_limits(
                cancellation_from_client_signal(request.interruption), seconds
            )
            self._result = self._plan.start(statement, open_snapshot_graph_view(store, rows), limits)
            self._bookmark = format_commit_bookmark(store.name, rows.at)
            self.columns = self._result.columns
        except BaseException:
            self._held.close()
            raise

    @override
    def rows(self) -> Iterator[Sequence[Any]]:
        return self._result.rows

    @override
    def discard(self, rows: Iterator[Sequence[Any]]) -> None:
        pass

    @override
    def summary(self) -> StatementSummary:
        return StatementSummary(type="r", bookmark=self._bookmark, profile=self._plan.describe())

    @override
    def close(self) -> None:
        self._held.close()


class _BoltWrite(InterpretedWrite):
    """Writing statement whose rows stay values."""

    values: list[list[Any]]
    counts: GraphUpdateCounts
    profile: ExecutionPlanOperator | None = None

    @override
    def start(self, edits: GraphChangeOverlay, limits: ExecutionLimits) -> QueryResult:
        self._recorder = CypherProfileRecorder()
        return self._recorder.start(self._statement, edits, limits)

    @override
    def collect(self, result: QueryResult, edits: GraphChangeOverlay) -> CypherAnswer:
        detach = DetachedResultElements().detach
        self.values = [[detach(value) for value in row] for row in result.rows]
        self.counts = edits.counts
        self.profile = self._recorder.describe()
        return CypherAnswer(columns=[*result.columns], types=[], rows=[], row_count=0, truncated=False, took_ms=0.0)


class _WriteResult(BoltResult):
    """Result of a writing auto-commit statement, which is committed before its first row."""

    def __init__(
        self, graph: StoreHandle, statement: InterpretedStatement, request: StatementRequest, seconds: float
    ) -> None:
        self._graph = graph
        self._statement = statement
        self._request = request
        self._seconds = seconds
        self._bookmark = ""
        self._counts = GraphUpdateCounts()
        self._profile: ExecutionPlanOperator | None = None
        self.columns = statement.info.columns

    @override
    def rows(self) -> Iterator[Sequence[Any]]:
        request = self._request
        control = cancellation_from_client_signal(request.interruption)
        with self._graph.lease(create=True) as store:
            wait_for_commit_bookmarks(store, request.bookmarks, request.interruption.check)
            write = _BoltWrite(store, self._statement, 0, self._seconds, control)
            answer = write.run()
            self._counts = write.counts
            self._profile = write.profile
            sequence = store.state.sequence if answer.changes is None else answer.changes.sequence
            self._bookmark = format_commit_bookmark(store.name, sequence)
        return iter(write.values)

    @override
    def summary(self) -> StatementSummary:
        kind = classify_statement_access(self._statement.info)
        counters = list_nonzero_bolt_counters(self._counts)
        return StatementSummary(type=kind, counters=counters, bookmark=self._bookmark, profile=self._profile)

    @override
    def close(self) -> None:
        pass


class _TransactionSnapshot(NamedTuple):
    """Snapshot that a transaction reads, and its changes."""

    store: OpenStore
    rows: RowsSnapshot
    graph: SnapshotGraphView
    edits: GraphChangeOverlay


class BoltExplicitTransaction(BoltTransaction):
    """Explicit transaction: its statements change an overlay over one snapshot, which is committed at once.

    It conflicts if another commit has changed anything that its statements have read or written.
    """

    def __init__(self, graph: StoreHandle, request: BeginTransactionRequest, admit: Callable[[], None]) -> None:
        """Begin with the first statement, which creates a missing store only if it writes.

        admit: counts a statement against the caller's rate limit, and raises RateLimited.
        """
        self._handle = graph
        self._request = request
        self._admit = admit
        self._control = cancellation_from_client_signal(request.interruption)
        self._until = None if request.timeout is None else time.monotonic() + request.timeout
        self._held = ExitStack()
        self._snapshot: _TransactionSnapshot | None = None

    @override
    def run(self, request: StatementRequest) -> BoltResult:
        self._wait_for_admission(clamp_query_timeout(self._handle, request.timeout))
        self._check_time()
        statement = parse_and_check_statement(request)
        edits = self._open(create=statement.info.is_updating).edits
        before = _copy_counts(edits.counts)
        recorder = CypherProfileRecorder()
        limits = self._statement_limits(request)
        result = recorder.start(statement, edits, limits)
        # Later statements may change what rows that are not read yet would show.
        detach = DetachedResultElements().detach
        rows = limits.hold_all([detach(value) for value in row] for row in result.rows)
        summary = StatementSummary(
            type=classify_statement_access(statement.info),
            counters=_count_difference(before, edits.counts),
            profile=recorder.describe(),
        )
        return _TransactionResult(result.columns, rows, summary)

    @override
    def commit(self) -> str:
        if self._snapshot is None:
            return ""
        store, rows, graph, edits = self._snapshot
        try:
            self._check_time()
            changes = edits.changes()
            if changes.is_empty:
                return format_commit_bookmark(store.name, rows.at)
            batch = convert_row_changes_to_write_batch(convert_graph_changes_to_row_changes(changes, graph))
            report = store.submit_prepared(lambda: self._revalidate(batch)).result()
            return format_commit_bookmark(store.name, report.sequence)
        finally:
            self._held.close()

    @override
    def rollback(self) -> None:
        self._held.close()

    def _open(self, *, create: bool) -> _TransactionSnapshot:
        if self._snapshot is None:
            try:
                store = self._held.enter_context(self._handle.lease(create=create))
                wait_for_commit_bookmarks(store, self._request.bookmarks, self._control.check)
                rows = self._held.enter_context(store.reading())
                graph = open_snapshot_graph_view(store, rows)
                self._snapshot = _TransactionSnapshot(store, rows, graph, GraphChangeOverlay(graph))
            except BaseException:
                self._held.close()
                raise
        return self._snapshot

    def _wait_for_admission(self, seconds: float) -> None:
        """Wait until the rate limit admits a statement, because a refusal would end the transaction.

        Raises RateLimited after ``seconds`` or the transaction's time.
        """
        until = min(time.monotonic() + seconds, self._until or math.inf)
        while True:
            try:
                self._admit()
            except RateLimited:
                self._control.check()
                if time.monotonic() > until:
                    raise
                time.sleep(_ADMISSION_POLL_SECONDS)
            else:
                return

    def _check_time(self) -> None:
        """Raise TimedOut if the transaction's time is over."""
        if self._until is not None and time.monotonic() > self._until:
            raise TimedOut(f"the transaction took longer than {self._request.timeout:g} seconds; it is rolled back")

    def _statement_limits(self, request: StatementRequest) -> ExecutionLimits:
        """Return the limits of a statement: the server's, its own, and the rest of the transaction's time."""
        seconds = clamp_query_timeout(self._handle, request.timeout)
        if self._until is not None:
            seconds = min(seconds, max(self._until - time.monotonic(), 0.0))
        return build_cancellation_and_timeout_limits(self._control, seconds)

    def _revalidate(self, batch: WriteBatch) -> WriteBatch:
        """Return the batch if no other commit conflicts with it. Raises Conflict."""
        assert self._snapshot is not None  # noqa: S101 - `commit` has it
        store, rows, graph, _ = self._snapshot
        with suppress(WriteConflict):
            since = read_commits_after(store, rows.at)
            if not since or not (graph.reads.overlaps(since) or has_write_overlap(batch, since)):
                return batch
        raise Conflict("another transaction has changed what this one has read or written; run it again")


class _TransactionResult(BoltResult):
    """Rows of a statement in a transaction, which has already been carried out."""

    def __init__(self, columns: Sequence[str], rows: list[list[Any]], summary: StatementSummary) -> None:
        self.columns = tuple(columns)
        self._rows = rows
        self._summary = summary

    @override
    def rows(self) -> Iterator[Sequence[Any]]:
        return iter(self._rows)

    @override
    def summary(self) -> StatementSummary:
        return self._summary

    @override
    def close(self) -> None:
        pass


def _copy_counts(counts: GraphUpdateCounts) -> GraphUpdateCounts:
    return GraphUpdateCounts(**{name: getattr(counts, name) for name in counts.__struct_fields__})


def _count_difference(before: GraphUpdateCounts, after: GraphUpdateCounts) -> dict[str, int]:
    difference = {name: getattr(after, name) - getattr(before, name) for name in after.__struct_fields__}
    return list_nonzero_bolt_counters(GraphUpdateCounts(**difference))
