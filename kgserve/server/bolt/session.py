"""Session of a client: carries out its messages one after the other and answers each."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from kgserve.cypher.interpreter.explain_profile_prefix import split_explain_profile_prefix
from kgserve.errors import Internal, InvalidInput, KgserveError, TimedOut, Unauthenticated
from kgserve.platform.version import __version__
from kgserve.server.bolt.admin_statement_tables import COMPATIBLE_VERSION, SYSTEM_DATABASE
from kgserve.server.bolt.admin_statements import (
    SystemDatabaseTransaction,
    answer_admin_statement,
    parse_cypher_admin_statement,
    run_system_database_statement,
)
from kgserve.server.bolt.backend_interface import (
    AuthenticatedBoltClient,
    AuthenticationRequest,
    BeginTransactionRequest,
    BoltBackend,
    BoltResult,
    BoltRoutingTable,
    BoltTransaction,
    InterruptionSignal,
    StatementRequest,
)
from kgserve.server.bolt.chunks import frame_bolt_message
from kgserve.server.bolt.execution_plans import ExplainResult
from kgserve.server.bolt.failures import RequestInvalidInState, build_failure_message_fields
from kgserve.server.bolt.handshake import ProtocolVersion
from kgserve.server.bolt.messages import (
    FAILURE_TAG,
    IGNORED_TAG,
    SUCCESS_TAG,
    BoltMessageOptions,
    BoltRequestType,
    ClientMessage,
)
from kgserve.server.bolt.packstream import PackStreamStructure, ProtocolViolation
from kgserve.server.bolt.result_stream import BoltResultStream, EncodedRecordBatch
from kgserve.server.bolt.result_summaries import BoltNotificationFilter, build_result_summary_metadata
from kgserve.server.bolt.session_state import BoltMessageDisposition, SessionStateMachine
from kgserve.server.bolt.value_codec import UTC_SINCE, BoltValueCodec

log = structlog.get_logger()

SERVER_AGENT = f"Neo4j/{COMPATIBLE_VERSION} compatible (kgserve/{__version__})"
"""Drivers accept servers only whose agent begins like this."""
MAX_OPEN_RESULTS = 100
"""Results that a transaction may leave open."""

_AUTHENTICATION_IN_HELLO: ProtocolVersion = (5, 0)
_DATABASE_IN_RUN: ProtocolVersion = (5, 8)
_MILLISECONDS = 1000
_ACCESSING_REQUESTS = frozenset(
    {
        BoltRequestType.ROUTE,
        BoltRequestType.RUN,
        BoltRequestType.PULL,
        BoltRequestType.DISCARD,
        BoltRequestType.BEGIN,
        BoltRequestType.COMMIT,
    }
)
"""Requests that read or change stores, or name them."""
_T = TypeVar("_T")


class ConnectionCloseRequired(Exception):
    """Signal that the connection must be closed."""


class ConnectionCloseRequiredAfterFailure(ConnectionCloseRequired):
    """The connection must be closed after a failure that the client has yet to read."""


class ConnectionLost(ConnectionCloseRequired):
    """The client has gone away, or does not read."""


class BoltSessionTransport(Protocol):
    """Transport of a Bolt session: sends bytes to the client, and runs functions in threads."""

    async def send(self, data: bytes) -> None:
        """Send bytes and wait until the client has read enough. Raises ConnectionLost."""

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function in a thread and return its result, or raise its exception."""
        ...


class BoltConnectionAddresses(msgspec.Struct, frozen=True):
    """Addresses of a connection, the client's and the server's own, and its id in logs."""

    connection_id: str
    remote: str
    local: str


class BoltSession:
    """Session of one connection. Only `interrupt` and `abandon` may be called while `handle` runs."""

    def __init__(
        self,
        backend: BoltBackend,
        version: ProtocolVersion,
        origin: BoltConnectionAddresses,
        channel: BoltSessionTransport,
    ) -> None:
        self._backend = backend
        self._version = version
        self._origin = origin
        self._channel = channel
        self._codec = BoltValueCodec(version)
        self._states = SessionStateMachine(version)
        self._caller: AuthenticatedBoltClient | None = None
        self._user_agent = ""
        self._filter = BoltNotificationFilter()
        self._statement_filter = self._filter
        self._transaction: BoltTransaction | None = None
        self._database = ""
        self._limits: dict[str, Any] = {}
        self._streams: dict[int, BoltResultStream] = {}
        self._last_query = -1
        self._interruption = InterruptionSignal()
        self._unsent = b""
        self._is_abandoned = False
        self._expiry: TimedOut | None = None
        self._handlers: dict[BoltRequestType, Callable[..., Awaitable[dict[str, Any]]]] = {
            BoltRequestType.HELLO: self._hello,
            BoltRequestType.LOGON: self._logon,
            BoltRequestType.LOGOFF: self._logoff,
            BoltRequestType.TELEMETRY: self._telemetry,
            BoltRequestType.RESET: self._reset,
            BoltRequestType.ROUTE: self._route,
            BoltRequestType.RUN: self._run,
            BoltRequestType.PULL: self._pull,
            BoltRequestType.DISCARD: self._discard,
            BoltRequestType.BEGIN: self._begin,
            BoltRequestType.COMMIT: self._commit,
            BoltRequestType.ROLLBACK: self._rollback,
        }

    @property
    def is_authenticated(self) -> bool:
        """Tell whether a client has logged on."""
        return self._states.is_authenticated

    @property
    def has_open_work(self) -> bool:
        """Tell whether a transaction or a result is open."""
        return self._transaction is not None or bool(self._streams)

    @property
    def codec(self) -> BoltValueCodec:
        """Conversion of values in messages."""
        return self._codec

    def interrupt(self) -> None:
        """Stop the running statement, because a RESET has arrived."""
        self._states.interrupt()
        self._interruption.request()

    def abandon(self) -> None:
        """Stop the running statement and all later ones, because the connection ends."""
        self._is_abandoned = True
        self._interruption.request()

    async def handle(self, message: ClientMessage) -> None:
        """Carry out a message and answer it. Raises ConnectionCloseRequired."""
        match self._states.admit(message.type):
            case BoltMessageDisposition.IGNORE:
                await self._send(IGNORED_TAG)
            case BoltMessageDisposition.REFUSE:
                state = self._states.state.value
                await self.refuse(ProtocolViolation(f"{message.type.name} is not allowed in the state {state}"))
            case BoltMessageDisposition.PROCESS:
                await self._process(message)

    async def refuse(self, error: KgserveError) -> None:
        """Answer a violation of the protocol. Always raises ConnectionCloseRequiredAfterFailure."""
        self._states.end()
        await self._send(FAILURE_TAG, build_failure_message_fields(error, self._version))
        raise ConnectionCloseRequiredAfterFailure

    async def expire(self, seconds: float) -> None:
        """Roll back what is open after ``seconds`` without a message; the next message fails."""
        await self._release()
        self._expiry = TimedOut(f"the transaction was rolled back: no message came for {seconds:g} seconds")

    async def close(self) -> None:
        """Release everything at the end of the connection."""
        self._states.end()
        await self._release()

    # Answers

    async def _process(self, message: ClientMessage) -> None:
        try:
            if message.fault is not None:
                raise message.fault
            if self._expiry is not None and message.type is not BoltRequestType.RESET:
                raise self._expiry
            with self._serving(message.type):
                metadata = await self._handlers[message.type](*message.fields)
        except ConnectionCloseRequired:
            raise
        except Exception as error:  # noqa: BLE001
            await self._fail(message.type, error)
        else:
            self._states.succeed(message.type, is_streaming=bool(self._streams))
            await self._send(SUCCESS_TAG, metadata)

    def _serving(self, type_: BoltRequestType) -> AbstractContextManager[None]:
        """Return the context of a request, which a caller whose key was revoked cannot enter."""
        caller = self._caller if type_ in _ACCESSING_REQUESTS else None
        return nullcontext() if caller is None else self._backend.serving(caller)

    async def _fail(self, type_: BoltRequestType, error: Exception) -> None:
        await self._release()
        if self._states.is_interrupted:
            await self._send(IGNORED_TAG)
            return
        if not isinstance(error, KgserveError) or isinstance(error, Internal):
            log.error("bolt_request_failed", connection=self._origin.connection_id, request=type_.name, exc_info=error)
        has_ended = not self._states.is_authenticated
        self._states.fail()
        is_executing = type_ in (BoltRequestType.PULL, BoltRequestType.DISCARD, BoltRequestType.COMMIT)
        await self._send(FAILURE_TAG, build_failure_message_fields(error, self._version, is_executing=is_executing))
        if has_ended:
            raise ConnectionCloseRequiredAfterFailure

    async def _send(self, tag: int, metadata: dict[str, Any] | None = None) -> None:
        structure = PackStreamStructure(tag, () if metadata is None else (metadata,))
        records, self._unsent = self._unsent, b""
        await self._channel.send(records + frame_bolt_message(self._codec.encoder.encode(structure)))

    # Connection

    async def _hello(self, fields: dict[str, Any]) -> dict[str, Any]:
        options = BoltMessageOptions(fields)
        self._user_agent = options.text("user_agent")
        self._filter = self._filter.updated(options, self._version)
        answer: dict[str, Any] = {"server": SERVER_AGENT, "connection_id": self._origin.connection_id, "hints": {}}
        if self._version < UTC_SINCE and "utc" in options.texts("patch_bolt"):
            self._codec = BoltValueCodec(self._version, is_utc=True)
            answer["patch_bolt"] = ["utc"]
        if self._version <= _AUTHENTICATION_IN_HELLO:
            await self._authenticate(options)
        return answer

    async def _logon(self, fields: dict[str, Any]) -> dict[str, Any]:
        await self._authenticate(BoltMessageOptions(fields))
        return {}

    async def _authenticate(self, options: BoltMessageOptions) -> None:
        request = AuthenticationRequest(
            scheme=options.text("scheme") or "none",
            principal=options.text("principal"),
            credentials=options.text("credentials"),
            remote=self._origin.remote,
            user_agent=self._user_agent,
        )
        self._caller = await self._channel.call(lambda: self._backend.authenticate(request))

    async def _logoff(self) -> dict[str, Any]:
        self._caller = None
        return {}

    async def _telemetry(self, _api: int) -> dict[str, Any]:
        return {}

    async def _reset(self) -> dict[str, Any]:
        await self._release()
        self._expiry = None
        return {}

    async def _route(self, routing: dict[str, Any], _bookmarks: list[Any], extra: dict[str, Any]) -> dict[str, Any]:
        options = BoltMessageOptions(extra)
        _refuse_impersonation(options)
        caller = self._known_caller()
        address = BoltMessageOptions(routing).text("address") or self._origin.local

        def route() -> tuple[str, BoltRoutingTable]:
            database = options.text("db") or self._backend.home_database(caller)
            return database, self._backend.route(caller, database, address)

        database, routed = await self._channel.call(route)
        servers = [
            {"role": "ROUTE", "addresses": list(routed.routers)},
            {"role": "READ", "addresses": list(routed.readers)},
            {"role": "WRITE", "addresses": list(routed.writers)},
        ]
        return {"rt": {"ttl": routed.ttl_seconds, "db": database, "servers": servers}}

    # Statements

    async def _run(self, statement: str, parameters: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        started = time.monotonic()
        options = BoltMessageOptions(extra)
        limits: dict[str, Any] = {**self._limits, "timeout": None}
        if self._transaction is None:
            self._open(options)
            limits = _read_limits(options)
        elif len(self._streams) >= MAX_OPEN_RESULTS:
            raise RequestInvalidInState(
                f"a transaction may have at most {MAX_OPEN_RESULTS} open results; consume some first"
            )
        plan, text = split_explain_profile_prefix(statement)
        caller = self._known_caller()

        def start() -> BoltResult:
            self._database = self._database or self._backend.home_database(caller)
            request = StatementRequest(
                caller=caller,
                database=self._database,
                statement=text,
                parameters=parameters,
                interruption=self._interruption,
                plan=plan,
                **limits,
            )
            return self._start(request)

        result = await self._channel.call(start)
        self._last_query += 1
        self._streams[self._last_query] = BoltResultStream(
            result, self._codec.encoder, self._interruption, self._database
        )
        metadata: dict[str, Any] = {"fields": list(result.columns), "t_first": _milliseconds_since(started)}
        if self._transaction is not None:
            metadata["qid"] = self._last_query
        elif self._version >= _DATABASE_IN_RUN:
            metadata["db"] = self._database
        return metadata

    def _start(self, request: StatementRequest) -> BoltResult:
        """Start a statement, in a thread."""
        if self._transaction is None and request.database == SYSTEM_DATABASE:
            return run_system_database_statement(request, self._backend)
        statement = parse_cypher_admin_statement(request.statement)
        if statement is not None:
            return answer_admin_statement(statement, request, self._backend)
        if request.plan == "EXPLAIN":
            return ExplainResult(self._backend.explain(request))
        return self._backend.run(request) if self._transaction is None else self._transaction.run(request)

    async def _pull(self, fields: dict[str, Any]) -> dict[str, Any]:
        query, stream, remaining = self._find_stream(BoltMessageOptions(fields))
        started = time.monotonic()
        while True:
            batch, metadata = await self._channel.call(partial(self._pull_batch, stream, remaining))
            if remaining is not None:
                remaining -= batch.count
            if metadata is not None or remaining == 0:
                self._unsent = batch.data
                return {"has_more": True} if metadata is None else self._finish(query, metadata, started)
            await self._channel.send(batch.data)
            self._interruption.check()

    def _pull_batch(
        self, stream: BoltResultStream, limit: int | None
    ) -> tuple[EncodedRecordBatch, dict[str, Any] | None]:
        """Return the next records, and the metadata of the end if they are the last. Runs in a thread."""
        batch = stream.pull(limit)
        return batch, self._describe_end(stream) if batch.is_last else None

    async def _discard(self, fields: dict[str, Any]) -> dict[str, Any]:
        query, stream, limit = self._find_stream(BoltMessageOptions(fields))
        started = time.monotonic()

        def discard() -> dict[str, Any] | None:
            return self._describe_end(stream) if stream.discard(limit) else None

        metadata = await self._channel.call(discard)
        return {"has_more": True} if metadata is None else self._finish(query, metadata, started)

    def _find_stream(self, options: BoltMessageOptions) -> tuple[int, BoltResultStream, int | None]:
        """Return the id of a result, the result, and the number of rows; None means all."""
        count = options.integer("n")
        if count is None or count < -1 or count == 0:
            raise InvalidInput("`n` must be a positive number of rows, or -1 for all")
        query = options.integer("qid")
        if query is None or query == -1:
            query = self._last_query
        if query not in self._streams:
            raise RequestInvalidInState(f"there is no open result with the id {query}")
        return query, self._streams[query], None if count == -1 else count

    def _describe_end(self, stream: BoltResultStream) -> dict[str, Any]:
        """Close a result that has ended and return its metadata. Runs in a thread."""
        summary = stream.summary()
        stream.close()
        return build_result_summary_metadata(
            summary,
            self._version,
            self._statement_filter,
            has_columns=bool(stream.columns),
            has_records=stream.has_records,
        )

    def _finish(self, query: int, metadata: dict[str, Any], started: float) -> dict[str, Any]:
        stream = self._streams.pop(query)
        return {**metadata, "t_last": _milliseconds_since(started), "db": stream.database}

    # Transactions

    async def _begin(self, fields: dict[str, Any]) -> dict[str, Any]:
        options = BoltMessageOptions(fields)
        self._open(options)
        self._limits = limits = _read_limits(options)
        caller = self._known_caller()

        def begin() -> BoltTransaction:
            self._database = self._database or self._backend.home_database(caller)
            if self._database == SYSTEM_DATABASE:
                return SystemDatabaseTransaction(self._backend)
            return self._backend.begin(
                BeginTransactionRequest(
                    caller=caller, database=self._database, interruption=self._interruption, **limits
                )
            )

        self._transaction = await self._channel.call(begin)
        return {"db": self._database} if self._version >= _DATABASE_IN_RUN else {}

    async def _commit(self) -> dict[str, Any]:
        bookmark = await self._channel.call(self._take_transaction().commit)
        return {"bookmark": bookmark} if bookmark else {}

    async def _rollback(self) -> dict[str, Any]:
        await self._channel.call(self._take_transaction().rollback)
        return {}

    def _take_transaction(self) -> BoltTransaction:
        transaction, self._transaction = self._transaction, None
        if transaction is None:
            raise RequestInvalidInState("no transaction is open")
        return transaction

    def _open(self, options: BoltMessageOptions) -> None:
        """Prepare for a transaction, explicit or of one statement."""
        _refuse_impersonation(options)
        self._statement_filter = self._filter.updated(options, self._version)
        self._interruption = InterruptionSignal()
        if self._is_abandoned or self._states.is_interrupted:
            self._interruption.request()
        self._last_query = -1
        self._database = options.text("db")

    def _known_caller(self) -> AuthenticatedBoltClient:
        if self._caller is None:
            raise Unauthenticated("log on first")
        return self._caller

    async def _release(self) -> None:
        """Close all results and roll back the transaction; errors are logged."""
        if not self.has_open_work:
            return
        streams, self._streams = list(self._streams.values()), {}
        transaction, self._transaction = self._transaction, None
        endings = [stream.close for stream in streams] + ([] if transaction is None else [transaction.rollback])
        for end in endings:
            try:
                await self._channel.call(end)
            except Exception as error:
                log.error("bolt_release_failed", connection=self._origin.connection_id, exc_info=error)


def _refuse_impersonation(options: BoltMessageOptions) -> None:
    if options.has("imp_user"):
        raise RequestInvalidInState("impersonation is not supported; log on as the other user")


def _read_limits(options: BoltMessageOptions) -> dict[str, Any]:
    """Return the fields that BEGIN and an auto-commit RUN have in common."""
    mode = options.text("mode") or "w"
    if mode not in ("r", "w"):
        raise InvalidInput("`mode` must be `r` or `w`")
    timeout = options.integer("tx_timeout")
    if timeout is not None and timeout < 0:
        raise InvalidInput("`tx_timeout` must not be negative")
    return {
        "is_read_only": mode == "r",
        "bookmarks": options.texts("bookmarks"),
        "timeout": timeout / _MILLISECONDS if timeout else None,
        "metadata": options.map("tx_metadata"),
    }


def _milliseconds_since(started: float) -> int:
    return int((time.monotonic() - started) * _MILLISECONDS)
