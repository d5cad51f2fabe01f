"""Connection to the NATS servers, run by a background thread and usable from any thread."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from typing_extensions import override

from kgserve.errors import Conflict, InvalidInput, KgserveError, Unavailable
from kgserve.platform.codecs import decode_json

log = structlog.get_logger()

MIN_NATS_RELEASE = (2, 15)
"""First release in which `sync_interval: always` makes replicas sync their log on each append."""
NATS_ATTEMPT_TIMEOUT_SECONDS = 2.0
_NATS_RETRY_SECONDS = 0.1
_SERVER_INFO_SUBJECT = "$SYS.REQ.SERVER.PING.VARZ"
REPLY_QUIET_SECONDS = 0.3

_T = TypeVar("_T")


class NatsApiError(msgspec.Struct, frozen=True):
    """Error response of the NATS servers."""

    code: int
    err_code: int = 0
    description: str = ""

    @property
    def is_temporary(self) -> bool:
        """True if the error is temporary, such as a missing leader, so that the request should be repeated."""
        return self.err_code != _ERROR_NO_CLUSTER and (
            self.code in {408, 500, 503} or self.err_code in {_ERROR_PUBLISH_IN_PROCESS, _ERROR_NO_PEERS}
        )


_ERROR_PUBLISH_IN_PROCESS = 10158  # a message with this id is being stored
_ERROR_NO_PEERS = 10005  # too few servers are up to create a stream
_ERROR_NO_CLUSTER = 10074  # the server is not clustered


class _JetStreamSettings(msgspec.Struct, frozen=True):
    sync_always: bool = False


class _MetaGroup(msgspec.Struct, frozen=True):
    cluster_size: int = 0


class _ServerConfig(msgspec.Struct, frozen=True):
    config: _JetStreamSettings = _JetStreamSettings()
    meta: _MetaGroup = _MetaGroup()


class NatsServerInfo(msgspec.Struct, frozen=True):
    """Self-description of a NATS server."""

    server_name: str = ""
    version: str = ""
    jetstream: _ServerConfig = _ServerConfig()


class _VarzResponse(msgspec.Struct, frozen=True):
    data: NatsServerInfo = NatsServerInfo()


class _OneConnectionEventLoop(asyncio.SelectorEventLoop):
    """Event loop with at most one open connection: a new one aborts the previous.

    nats-py leaves the sockets of failed attempts open, until the process has no descriptors left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._latest: asyncio.BaseTransport | None = None

    @override
    async def create_connection(self, *args: Any, **options: Any) -> Any:
        self.abort_connection()
        transport, protocol = await super().create_connection(*args, **options)
        self._latest = transport
        return transport, protocol

    def abort_connection(self) -> None:
        """Close the connection without sending what is buffered; its socket closes in the next iteration."""
        if isinstance(self._latest, asyncio.WriteTransport):
            self._latest.abort()
        self._latest = None


class NatsConnection:
    """Self-healing connection to NATS servers. Requests made while it is lost wait up to ``patience`` seconds."""

    def __init__(self, servers: str, patience: float = 10.0) -> None:
        """Connect to ``servers``, addresses separated by commas.

        Raises InvalidInput for invalid addresses, Conflict for servers that may lose acknowledged data, and Unavailable
        if none responds.
        """
        addresses = _addresses(servers)
        self.patience = patience
        self._client = Client()
        self._fault: Exception | None = None
        self._loop = _OneConnectionEventLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()
        try:
            self.call(self._connect(addresses))
            require_durable_nats_servers(self.call(self._servers()))
        except BaseException:
            self.close()
            raise

    def call(self, asked: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the connection's thread and return its result. Raises its errors, and Unavailable."""
        if self._loop.is_closed():
            asked.close()
            raise Unavailable("the connection to the cluster's servers is closed")
        try:
            return asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        except CancelledError:
            raise Unavailable("the connection to the cluster's servers was closed") from None

    def close(self) -> None:
        """End the connection and its thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Coroutines of the connection's thread

    async def ask(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> bytes | None:
        """Return one response, or None if none arrived in time; the request may have been processed nevertheless."""
        try:
            given = dict(headers) if headers else None
            waited = seconds or NATS_ATTEMPT_TIMEOUT_SECONDS
            return (await self._client.request(subject, data, timeout=waited, headers=given)).data
        except (nats.errors.MaxPayloadError, nats.errors.BadSubjectError):
            raise
        except (nats.errors.Error, OSError) as error:
            self._fault = error
            return None

    async def ask_all(
        self, subject: str, data: bytes, is_last: Callable[[Msg], bool], quiet: float, seconds: float | None = None
    ) -> list[Msg]:
        """Return the responses up to the last one, or until none arrives for ``quiet`` seconds."""
        answers: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = self._client.new_inbox()
        found: list[Msg] = []
        try:
            listening = await self._client.subscribe(inbox, cb=answers.put)
            try:
                await self._client.publish(subject, data, reply=inbox)
                while not found or not is_last(found[-1]):
                    found.append(
                        await asyncio.wait_for(
                            answers.get(), quiet if found else seconds or NATS_ATTEMPT_TIMEOUT_SECONDS
                        )
                    )
            finally:
                await listening.unsubscribe()
        except (nats.errors.Error, OSError) as error:
            self._fault = error
        return found

    async def retry_until_timeout(
        self, attempt: Callable[[], Awaitable[_T | None]], late: Callable[[str], KgserveError]
    ) -> _T:
        """Repeat an attempt until it returns a result; raises ``late`` after the connection's patience."""
        until = time.monotonic() + self.patience
        while True:
            if (result := await attempt()) is not None:
                return result
            if time.monotonic() > until:
                raise late(
                    f"the cluster's servers did not complete the request in {self.patience:g} seconds{self._reason()}"
                )
            await asyncio.sleep(_NATS_RETRY_SECONDS)

    def note(self, fault: Exception) -> None:
        """Remember the error of a failed attempt, for the final error message."""
        self._fault = fault

    async def _connect(self, addresses: list[str]) -> None:
        first = urlsplit(addresses[0])
        connecting = self._client.connect(
            addresses,
            # Addresses of discovered servers contain no credentials.
            user=first.username,
            password=first.password,
            error_cb=self._failed,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
            name="kgserve",
            connect_timeout=2,
            reconnect_time_wait=0.2,  # pyright: ignore[reportArgumentType]  # fractions are accepted
            max_reconnect_attempts=-1,
            ping_interval=0.5,  # pyright: ignore[reportArgumentType]  # as above; 3 missed pings disconnect
        )
        try:
            await asyncio.wait_for(connecting, self.patience)
        except (nats.errors.Error, OSError) as error:
            hosts = ", ".join(urlsplit(each).netloc.rpartition("@")[2] for each in addresses)
            raise Unavailable(f"cannot connect to any server of the cluster at {hosts}{self._reason()}") from error

    async def _end(self) -> None:
        await self._client.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        # Bounded, because a task may lose its cancellation: `wait_for` of Python 3.11 drops one that comes late.
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), NATS_ATTEMPT_TIMEOUT_SECONDS)
        # After an attempt to connect that was cancelled, `Client.close` closes nothing.
        self._loop.abort_connection()
        await asyncio.sleep(0)

    async def _servers(self) -> list[NatsServerInfo]:
        """Return all servers that respond. A server that is down is only noticed by its silence."""
        found: list[NatsServerInfo] = []

        def is_last(answer: Msg) -> bool:
            found.append(decode_json(answer.data or b"{}", _VarzResponse).data)
            return 0 < found[-1].jetstream.meta.cluster_size <= len(found)

        await self.ask_all(_SERVER_INFO_SUBJECT, b"", is_last, REPLY_QUIET_SECONDS)
        return [each for each in found if each.version]

    async def _failed(self, error: Exception) -> None:
        self._fault = error

    async def _disconnected(self) -> None:
        if not self._client.is_closed:
            log.warning("cluster_disconnected", reason=self._reason()[2:])

    async def _reconnected(self) -> None:
        log.info("cluster_reconnected")

    def _reason(self) -> str:
        return f": {self._fault}" if self._fault is not None else ""


def require_durable_nats_servers(servers: list[NatsServerInfo]) -> None:
    """Raise Conflict unless all servers are recent enough and sync acknowledged data to disk."""
    if not servers:
        raise Conflict(
            "the cluster's servers do not report their sync settings; let kgserve's account import "
            f"{_SERVER_INFO_SUBJECT} (see deploy/nats/kgserve-nats.conf)"
        )
    for server in servers:
        if _release(server.version) < MIN_NATS_RELEASE:
            wanted = ".".join(map(str, MIN_NATS_RELEASE))
            raise Conflict(f"NATS server {server.server_name!r} is {server.version}; {wanted} or newer is needed")
        if not server.jetstream.config.sync_always:
            raise Conflict(
                f"NATS server {server.server_name!r} would lose acknowledged writes when the power fails: "
                "set `sync_interval: always` in its jetstream block"
            )


def _release(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found is not None else (0, 0)


def _addresses(servers: str) -> list[str]:
    addresses = [each.strip() for each in servers.split(",") if each.strip()]
    for address in addresses:
        if urlsplit(address).scheme not in {"nats", "tls"} or not urlsplit(address).hostname:
            raise InvalidInput(f"{address!r} is not the address of a NATS server (nats://user:password@host:4222)")
    if not addresses:
        raise InvalidInput("at least one address of a NATS server is required")
    return addresses
