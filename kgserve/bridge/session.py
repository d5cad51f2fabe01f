"""The session of the handshake era: made by the editor once, and made again for it with every other server."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import NamedTuple

from kgserve.bridge.message import INITIALIZE, answered, negotiated_version, parse
from kgserve.bridge.wire import BROKEN, Call, Wire, explanation
from kgserve.launch import Server

SESSION_HEADER = "Mcp-Session-Id"
_END_TIMEOUT = 1.0


class Session(NamedTuple):
    """What one server answered to the handshake; a server without sessions gives no id."""

    server: Server
    id: str | None
    version: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every later request."""
        version = {"MCP-Protocol-Version": self.version}
        return version | {SESSION_HEADER: self.id} if self.id is not None else version


class Refused(Exception):
    """The server does not take the handshake again."""


class Handshake:
    """The editor's handshake, and the session that stands for it."""

    def __init__(self, wire: Wire, common: dict[str, str]) -> None:
        self._wire = wire
        self._common = common
        self._lock = threading.Lock()
        self._initialize: bytes | None = None
        self._initialized: bytes | None = None
        self._session: Session | None = None

    @property
    def made(self) -> bool:
        """Whether the editor speaks the handshake era's protocol."""
        return self._initialize is not None

    def adopt(self, server: Server, line: bytes, call: Call, answer: bytes) -> None:
        """The server has answered the editor's ``initialize``."""
        version = negotiated_version(answer)
        if version is None:
            return
        with self._lock:
            self._initialize, self._initialized = line, None
            self._session = Session(server, call.response.headers.get(SESSION_HEADER), version)

    def completed(self, line: bytes) -> None:
        """The editor has sent ``notifications/initialized``."""
        with self._lock:
            self._initialized = line

    def session(self, server: Server) -> Session | None:
        """The session on this server, made anew if need be; None before the handshake. Raises Refused or BROKEN."""
        with self._lock:
            if self._initialize is None:
                return None
            if self._session is None or self._session.server != server:
                self._session = self._replay(server, self._initialize)
            return self._session

    def lost(self, session: Session) -> None:
        """The server does not know this session."""
        with self._lock:
            if self._session == session:
                self._session = None

    def end(self) -> None:
        """Tell the server that the session is over, if it can be told."""
        if not self._lock.acquire(timeout=_END_TIMEOUT):
            return
        session, self._session = self._session, None
        self._lock.release()
        if session is None or session.id is None:
            return
        call = Call(self._wire, session.server)
        with suppress(*BROKEN):
            call.send("DELETE", self._headers(session.server) | session.headers, timeout=_END_TIMEOUT)
            call.body()
        call.finish()

    def _replay(self, server: Server, line: bytes) -> Session:
        call = Call(self._wire, server)
        try:
            call.send("POST", self._headers(server), line)
            text = next(call.events(), b"") if call.is_stream else call.body()
            answer = answered(text, parse(line).id)
            version = negotiated_version(answer) if answer is not None else None
            if version is None:
                raise Refused(f"{explanation(server, call.response, text)} to {INITIALIZE}")
            session = Session(server, call.response.headers.get(SESSION_HEADER), version)
        finally:
            call.finish()
        if self._initialized is not None:
            self._announce(session, self._initialized)
        return session

    def _announce(self, session: Session, line: bytes) -> None:
        call = Call(self._wire, session.server)
        try:
            call.send("POST", self._headers(session.server) | session.headers, line)
            call.body()
        finally:
            call.finish()

    def _headers(self, server: Server) -> dict[str, str]:
        return headers(self._common, server)


def headers(common: dict[str, str], server: Server) -> dict[str, str]:
    """The headers of every request to ``server``."""
    token = {"Authorization": f"Bearer {server.token}"} if server.token else {}
    return {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"} | common | token
