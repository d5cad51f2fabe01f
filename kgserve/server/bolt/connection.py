"""One connection: a task that reads messages ahead, and one that carries them out.

Reading ahead is what lets a RESET, or the end of the connection, interrupt a running statement.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

import msgspec
import structlog

from kgserve.errors import KgserveError
from kgserve.server.bolt.backend_interface import BoltBackend
from kgserve.server.bolt.chunks import ConnectionByteReader, ConnectionByteWriter, read_bolt_message
from kgserve.server.bolt.handshake import HTTP_GET, MAGIC, ProtocolVersion, negotiate_bolt_version
from kgserve.server.bolt.messages import BoltRequestType, decode_bolt_request, peek_bolt_request_type
from kgserve.server.bolt.packstream import ProtocolViolation
from kgserve.server.bolt.session import (
    BoltConnectionAddresses,
    BoltSession,
    ConnectionCloseRequired,
    ConnectionCloseRequiredAfterFailure,
    ConnectionLost,
)
from kgserve.server.bolt.websocket import WebSocketFrameWriter, accept_websocket

log = structlog.get_logger()

LINGER_SECONDS = 1.0
"""Seconds for which a connection that is refused keeps reading, so that the client receives the failure."""

_LINGER_BYTES = 64 * 1024
_T = TypeVar("_T")


class BoltLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of connections; sizes in bytes, times in seconds.

    ``idle_timeout`` is for connections without open work; drivers keep them in pools for an hour. A transaction or
    result is rolled back after ``transaction_idle_timeout`` without a message. ``stop_timeout`` is the time that
    running statements get when the server stops. Pages of ``websocket_origins`` may connect with a WebSocket.
    """

    connections: int = 1_000
    connections_per_address: int = 1_000
    message_bytes: int = 16 * 1024 * 1024
    unauthenticated_message_bytes: int = 64 * 1024
    pending_bytes: int = 4 * 1024 * 1024
    pending_messages: int = 10_000
    threads: int = 32
    handshake_timeout: float = 10.0
    authentication_timeout: float = 30.0
    idle_timeout: float = 2 * 3600.0
    transaction_idle_timeout: float = 300.0
    write_timeout: float = 60.0
    stop_timeout: float = 5.0
    websocket_origins: frozenset[str] = frozenset()


class BoltMessageInbox:
    """Messages that were read and not yet carried out. Writers wait while it is full."""

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Condition()
        self._is_busy = False
        self._is_closed = False
        self._fault: KgserveError | None = None

    async def put(self, message: bytes) -> None:
        """Append a message when there is room."""
        async with self._changed:
            await self._changed.wait_for(self._has_room)
            self._messages.append(message)
            self._bytes += len(message)
            self._changed.notify_all()

    async def get(self) -> bytes:
        """Return the next message when there is one. Raises ConnectionCloseRequired, and the error given to `close`."""
        async with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            await self._changed.wait_for(lambda: bool(self._messages) or self._is_closed)
            if self._is_closed and (self._fault is None or not self._messages):
                raise self._fault or ConnectionCloseRequired
            message = self._messages.popleft()
            self._bytes -= len(message)
            self._is_busy = True
            self._changed.notify_all()
            return message

    async def wait_until_idle(self) -> None:
        """Wait until all messages have been carried out."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_closed or (not self._messages and not self._is_busy))

    async def close(self, fault: KgserveError | None = None) -> None:
        """End reading. Without a fault, messages that wait are dropped; with one, it comes after them."""
        async with self._changed:
            if not self._is_closed:
                self._is_closed = True
                self._fault = fault
            self._changed.notify_all()

    def _has_room(self) -> bool:
        is_full = self._bytes >= self._max_bytes or len(self._messages) >= self._max_messages
        return self._is_closed or not is_full


class BoltConnection:
    """Connection of one client, from the handshake to its end."""

    def __init__(
        self,
        backend: BoltBackend,
        limits: BoltLimits,
        executor: Executor,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        origin: BoltConnectionAddresses,
    ) -> None:
        self._backend = backend
        self._limits = limits
        self._executor = executor
        self._streams = streams
        self._transport = streams[1].transport
        self._reader: ConnectionByteReader = streams[0]
        self._writer: ConnectionByteWriter = streams[1]
        self._origin = origin
        self._inbox = BoltMessageInbox(limits.pending_bytes, limits.pending_messages)
        self._session: BoltSession | None = None
        self._call: asyncio.Future[object] | None = None
        self._is_processing = False
        self._is_stopping = False

    async def serve(self) -> None:
        """Serve the client until the connection ends. Raises nothing."""
        try:
            await self._serve()
        except ConnectionCloseRequiredAfterFailure:
            await self._linger()
        except (ConnectionCloseRequired, ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except ProtocolViolation as error:
            log.info("bolt_client_refused", connection=self._origin.connection_id, reason=error.message)
            await self._linger()
        except Exception:
            log.exception("bolt_connection_failed", connection=self._origin.connection_id)
        finally:
            await self._close()

    async def stop(self, *, is_forced: bool = False) -> None:
        """End the connection after the current message and open work, or now if ``is_forced``."""
        self._is_stopping = True
        has_work = self._is_processing or (self._session is not None and self._session.has_open_work)
        if is_forced or not has_work:
            if self._session is not None:
                self._session.abandon()
            await self._inbox.close()
            if self._session is None or is_forced:
                self._transport.abort()

    # Channel of the session

    async def send(self, data: bytes) -> None:
        """Send bytes and wait until the client has read enough. Raises ConnectionLost."""
        try:
            self._writer.write(data)
            async with asyncio.timeout(self._limits.write_timeout):
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            self._transport.abort()
            raise ConnectionLost from error

    async def call(self, function: Callable[[], _T]) -> _T:
        """Run a function in a thread; it runs to its end even if the task is cancelled."""
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._executor, copy_context().run, function)
        self._call = call  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return await asyncio.shield(call)
        finally:
            if call.done():
                self._call = None

    # Tasks

    async def _serve(self) -> None:
        async with asyncio.timeout(self._limits.handshake_timeout):
            version = await self._negotiate()
        self._session = session = BoltSession(self._backend, version, self._origin, self)
        reading = asyncio.create_task(self._read_messages(session), name=f"bolt reader {self._origin.connection_id}")
        try:
            await self._process_messages(session)
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _negotiate(self) -> ProtocolVersion:
        magic = await self._reader.readexactly(len(MAGIC))
        if magic == HTTP_GET:
            accepted = await accept_websocket(*self._streams, self._limits.websocket_origins)
            if accepted is not None:
                self._reader, self._writer = accepted
                magic = await self._reader.readexactly(len(MAGIC))
        return await negotiate_bolt_version(magic, self._reader, self._writer)

    async def _process_messages(self, session: BoltSession) -> None:
        loop = asyncio.get_running_loop()
        authentication_end = loop.time() + self._limits.authentication_timeout
        while True:
            if session.is_authenticated:
                authentication_end = loop.time() + self._limits.authentication_timeout
            try:
                async with asyncio.timeout_at(self._deadline(session, authentication_end)):
                    data = await self._inbox.get()
            except TimeoutError:
                if not session.has_open_work:
                    raise
                await session.expire(self._limits.transaction_idle_timeout)
                continue
            except ProtocolViolation as error:
                log.info("bolt_client_refused", connection=self._origin.connection_id, reason=error.message)
                await session.refuse(error)
            else:
                self._is_processing = True
                await self._process(session, data)
                self._is_processing = False
                if self._is_stopping and not session.has_open_work:
                    return

    def _deadline(self, session: BoltSession, authentication_end: float) -> float:
        if not session.is_authenticated:
            return authentication_end
        wait = self._limits.transaction_idle_timeout if session.has_open_work else self._limits.idle_timeout
        return asyncio.get_running_loop().time() + wait

    async def _process(self, session: BoltSession, data: bytes) -> None:
        try:
            message = decode_bolt_request(data, session.codec.build_structure)
        except ProtocolViolation as error:
            log.info("bolt_client_refused", connection=self._origin.connection_id, reason=error.message)
            await session.refuse(error)
        else:
            await session.handle(message)

    async def _read_messages(self, session: BoltSession) -> None:
        fault: KgserveError | None = None
        try:
            while True:
                limits = self._limits
                max_bytes = limits.message_bytes if session.is_authenticated else limits.unauthenticated_message_bytes
                data = await read_bolt_message(self._reader, max_bytes)
                type_ = peek_bolt_request_type(data)
                if type_ is BoltRequestType.GOODBYE:
                    return
                if type_ is BoltRequestType.RESET:
                    session.interrupt()
                await self._inbox.put(data)
                if not session.is_authenticated:
                    await self._inbox.wait_until_idle()
        except ProtocolViolation as error:
            fault = error
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if fault is None:
                session.abandon()
            await self._inbox.close(fault)

    async def _linger(self) -> None:
        """Read on for a moment: closing with unread bytes would reset the connection before the client has read."""
        reader, writer = self._streams
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                if isinstance(self._writer, WebSocketFrameWriter):
                    self._writer.end()
                elif writer.can_write_eof():
                    writer.write_eof()
                while await reader.read(_LINGER_BYTES):
                    pass

    async def _close(self) -> None:
        if self._call is not None:
            with suppress(Exception):
                await asyncio.wait([self._call])
        if self._session is not None:
            self._session.abandon()
            await self._session.close()
        with suppress(OSError, TimeoutError):
            self._writer.close()
            async with asyncio.timeout(self._limits.write_timeout):
                await self._writer.wait_closed()
