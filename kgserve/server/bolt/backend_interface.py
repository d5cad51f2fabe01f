"""Interface between the Bolt server and the stores.

The server calls every method in a thread of its own pool, never on the event loop, so methods may block. The calls for
one connection never overlap, but successive calls may come from different threads. Each method may raise any
`KgserveError`, which the client receives as a failure (see failures.py); other exceptions are logged and reported to
the client without details.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import msgspec
from typing_extensions import override

from kgserve.cypher.interpreter.explain_profile_prefix import PlanRequest
from kgserve.errors import TimedOut

StatementType = Literal["r", "w", "rw", "s"]
"""Read, write, both, or schema."""


class InterruptionSignal:
    """Tells a running statement that its client has sent RESET, gone away, or that the server is stopping."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_requested(self) -> bool:
        """Tell whether the statement must end."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask the statement to end. Called on the event loop; runs the callbacks once."""
        with self._lock:
            callbacks = [] if self._event.is_set() else self._callbacks
            self._event.set()
            self._callbacks = []
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raise TimedOut if the statement must end. Call it at least every 100 ms of work."""
        if self._event.is_set():
            raise TimedOut("the statement was interrupted")

    def on_request(self, callback: Callable[[], None]) -> None:
        """Run a function when the signal is given, or now if it has been; it must not block or raise."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()


class AuthenticationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials of a client.

    ``scheme`` is ``basic`` (principal and credentials), ``bearer`` (credentials only), ``none``, or another text that
    the client sent. ``remote`` is the client's address without port. Never log ``credentials``.
    """

    scheme: str
    principal: str
    credentials: str
    remote: str
    user_agent: str = ""

    @override
    def __repr__(self) -> str:
        return f"AuthenticationRequest(scheme={self.scheme!r}, principal={self.principal!r}, remote={self.remote!r})"


class AuthenticatedBoltClient(msgspec.Struct, frozen=True, kw_only=True):
    """Authenticated client; ``identity`` is the backend's own object, which the server only passes on."""

    name: str
    roles: tuple[str, ...] = ()
    identity: Any = None


class StatementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Statement to run.

    ``database`` is the name that the client sent, or the home database. ``is_read_only`` is the client's access mode:
    refuse writes with Forbidden. The statement must see all commits of the database that ``bookmarks`` name; bookmarks
    of other databases are among them, because drivers send all they have. Raise InvalidBookmark for other texts.
    ``timeout`` is the time limit in seconds that the client asked for, which may only shorten the store's own; None if
    it asked for none. ``metadata`` is for logs. With ``plan`` PROFILE, set `StatementSummary.profile` if that is
    possible; EXPLAIN goes to `BoltBackend.explain`. The prefix itself is blanked in ``statement``, so that positions in
    error messages stay right.

    Within a transaction, ``timeout`` is None; the other fields are those of its BEGIN.
    """

    caller: AuthenticatedBoltClient
    database: str
    statement: str
    parameters: Mapping[str, Any]
    interruption: InterruptionSignal
    is_read_only: bool = False
    bookmarks: tuple[str, ...] = ()
    timeout: float | None = None
    metadata: Mapping[str, Any] = {}
    plan: PlanRequest = ""


class BeginTransactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Explicit transaction to begin; the fields are those of `StatementRequest`.

    ``timeout`` limits the whole transaction.
    """

    caller: AuthenticatedBoltClient
    database: str
    interruption: InterruptionSignal
    is_read_only: bool = False
    bookmarks: tuple[str, ...] = ()
    timeout: float | None = None
    metadata: Mapping[str, Any] = {}


class StatementNotification(msgspec.Struct, frozen=True, kw_only=True):
    """Remark about a statement that did not prevent its execution; ``position`` is offset, line and column."""

    code: str
    title: str
    description: str
    severity: Literal["WARNING", "INFORMATION"] = "WARNING"
    category: str = "GENERIC"
    gql_status: str = "01N00"
    position: tuple[int, int, int] | None = None


class ExecutionPlanOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Operator of a statement's execution plan; ``rows`` and ``db_hits`` are counted by PROFILE only."""

    operator: str
    identifiers: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = {}
    children: tuple[ExecutionPlanOperator, ...] = ()
    rows: int = 0
    db_hits: int = 0


class StatementSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a finished statement: type, counters, bookmark, notifications, plan and profile.

    ``counters`` has the names of the protocol, such as ``nodes-created`` and ``properties-set``, without zeros.
    ``bookmark`` names the state after an auto-commit statement; it is empty within a transaction.
    """

    type: StatementType
    counters: Mapping[str, int] = {}
    bookmark: str = ""
    notifications: tuple[StatementNotification, ...] = ()
    plan: ExecutionPlanOperator | None = None
    profile: ExecutionPlanOperator | None = None


class StatementExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to EXPLAIN: the columns that a statement would have, its type, and its plan."""

    columns: tuple[str, ...]
    type: StatementType
    plan: ExecutionPlanOperator


class BoltResult(ABC):
    """Rows of a statement that is being executed. Within a transaction, several may be open."""

    columns: tuple[str, ...] = ()

    @abstractmethod
    def rows(self) -> Iterator[Sequence[Any]]:
        """Yield the rows, as run-time values in the order of the columns. Called once.

        A writing statement is carried out, and committed unless it belongs to a transaction, before the iterator ends,
        or before it begins. The iterator may raise any KgserveError; the statement has failed then.
        """

    def discard(self, rows: Iterator[Sequence[Any]]) -> None:
        """Carry out the rest of the statement without its rows; ``rows`` is the iterator, begun or not.

        This implementation reads all rows. Override it for statements that only read.
        """
        for _ in rows:
            pass

    @abstractmethod
    def summary(self) -> StatementSummary:
        """Return the summary. Called once, after the last row or `discard`."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Called exactly once, also after errors and before the end of the rows.

        A writing auto-commit statement that has not been carried out yet is rolled back.
        """


class BoltTransaction(ABC):
    """Explicit transaction. Exactly one of `commit` and `rollback` is called at its end, after closing all results."""

    @abstractmethod
    def run(self, request: StatementRequest) -> BoltResult:
        """Run a statement, which sees the changes of earlier ones."""

    @abstractmethod
    def commit(self) -> str:
        """Commit all changes at once and return a bookmark. If it raises, nothing is committed."""

    @abstractmethod
    def rollback(self) -> None:
        """Drop all changes."""


class ShowDatabasesRow(msgspec.Struct, frozen=True, kw_only=True):
    """Database as SHOW DATABASES lists it."""

    name: str
    is_writable: bool = True
    address: str = ""


class BoltRoutingTable(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses (``host:port``) at which a database is read and written, and which answer ROUTE."""

    readers: tuple[str, ...]
    writers: tuple[str, ...]
    routers: tuple[str, ...]
    ttl_seconds: int = 300


class BoltBackend(ABC):
    """Interface through which the Bolt server authenticates clients and runs statements on the stores."""

    @abstractmethod
    def authenticate(self, request: AuthenticationRequest) -> AuthenticatedBoltClient:
        """Return the caller. Raises Unauthenticated, RateLimited, or InvalidInput for an unknown scheme."""

    @abstractmethod
    def serving(self, caller: AuthenticatedBoltClient) -> AbstractContextManager[None]:
        """Count a request of a caller as in progress within a block. Raises Unauthenticated for a key that was revoked.

        Called on the event loop, so it must not block.
        """

    @abstractmethod
    def home_database(self, caller: AuthenticatedBoltClient) -> str:
        """Return the database for requests that name none. Raises NotFound if none exists."""

    @abstractmethod
    def databases(self, caller: AuthenticatedBoltClient) -> Sequence[ShowDatabasesRow]:
        """Return the databases that the caller may see."""

    @abstractmethod
    def route(self, caller: AuthenticatedBoltClient, database: str, address: str) -> BoltRoutingTable:
        """Return where a database is served; ``address`` is the one the client connected to. Raises NoStore."""

    @abstractmethod
    def run(self, request: StatementRequest) -> BoltResult:
        """Check and start an auto-commit statement. It may be executed here or by the iterator of the rows."""

    @abstractmethod
    def explain(self, request: StatementRequest) -> StatementExplanation:
        """Describe how a statement would run. Raises InvalidInput."""

    @abstractmethod
    def begin(self, request: BeginTransactionRequest) -> BoltTransaction:
        """Begin an explicit transaction."""
