"""State machine of a connection, as the Bolt specification defines it.

The table `TRANSITIONS` has the states in which each message is processed and the state after its success; other
messages are ignored in the states FAILED and INTERRUPTED, and end the connection in all others.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from kgserve.server.bolt.handshake import ProtocolVersion
from kgserve.server.bolt.messages import BoltRequestType


class BoltState(Enum):
    """State of a connection after the handshake."""

    NEGOTIATION = "NEGOTIATION"
    AUTHENTICATION = "AUTHENTICATION"
    READY = "READY"
    STREAMING = "STREAMING"
    TX_READY = "TX_READY"
    TX_STREAMING = "TX_STREAMING"
    FAILED = "FAILED"
    INTERRUPTED = "INTERRUPTED"
    DEFUNCT = "DEFUNCT"


class BoltMessageDisposition(Enum):
    """Decision whether a Bolt message is processed, ignored or refused in the current state."""

    PROCESS = "process"
    IGNORE = "ignore"
    REFUSE = "refuse"


_S: TypeAlias = BoltState
_M: TypeAlias = BoltRequestType

TRANSITIONS: dict[tuple[BoltState, BoltRequestType], BoltState] = {
    (_S.NEGOTIATION, _M.HELLO): _S.AUTHENTICATION,
    (_S.AUTHENTICATION, _M.LOGON): _S.READY,
    (_S.READY, _M.LOGOFF): _S.AUTHENTICATION,
    (_S.READY, _M.TELEMETRY): _S.READY,
    (_S.READY, _M.ROUTE): _S.READY,
    (_S.READY, _M.RUN): _S.STREAMING,
    (_S.READY, _M.BEGIN): _S.TX_READY,
    (_S.STREAMING, _M.PULL): _S.READY,
    (_S.STREAMING, _M.DISCARD): _S.READY,
    (_S.TX_READY, _M.RUN): _S.TX_STREAMING,
    (_S.TX_READY, _M.COMMIT): _S.READY,
    (_S.TX_READY, _M.ROLLBACK): _S.READY,
    (_S.TX_STREAMING, _M.RUN): _S.TX_STREAMING,
    (_S.TX_STREAMING, _M.PULL): _S.TX_READY,
    (_S.TX_STREAMING, _M.DISCARD): _S.TX_READY,
}
"""States after success. PULL and DISCARD stay in a state of streaming while a result of it is open."""

_UNAUTHENTICATED = (BoltState.NEGOTIATION, BoltState.AUTHENTICATION)
_STREAMING = (BoltState.STREAMING, BoltState.TX_STREAMING)
_LOGON_SINCE: ProtocolVersion = (5, 1)
_TELEMETRY_SINCE: ProtocolVersion = (5, 4)


class SessionStateMachine:
    """State machine of one Bolt connection. `interrupt` may come while a message is processed."""

    def __init__(self, version: ProtocolVersion) -> None:
        self._version = version
        self._interrupts = 0
        self.state = BoltState.NEGOTIATION

    @property
    def is_authenticated(self) -> bool:
        """Tell whether a client has logged on."""
        return self.state not in (*_UNAUTHENTICATED, BoltState.DEFUNCT)

    @property
    def is_interrupted(self) -> bool:
        """Tell whether a RESET is in the queue."""
        return self._interrupts > 0

    def admit(self, message: BoltRequestType) -> BoltMessageDisposition:
        """Return what to do with a message."""
        if not self._has_message(message):
            return BoltMessageDisposition.REFUSE
        if message is BoltRequestType.RESET:
            return BoltMessageDisposition.PROCESS if self.is_authenticated else BoltMessageDisposition.REFUSE
        if self.state in (BoltState.FAILED, BoltState.INTERRUPTED):
            return BoltMessageDisposition.IGNORE
        return BoltMessageDisposition.PROCESS if (self.state, message) in TRANSITIONS else BoltMessageDisposition.REFUSE

    def succeed(self, message: BoltRequestType, *, is_streaming: bool = False) -> None:
        """Change the state after a message; ``is_streaming`` tells whether a result is still open."""
        if message is BoltRequestType.RESET:
            self._interrupts = max(0, self._interrupts - 1)
            self.state = BoltState.INTERRUPTED if self._interrupts > 0 else BoltState.READY
        elif self.state is not BoltState.INTERRUPTED:
            following = TRANSITIONS[self.state, message]
            if message is BoltRequestType.HELLO and self._version < _LOGON_SINCE:
                following = BoltState.READY
            self.state = self.state if is_streaming and self.state in _STREAMING else following

    def fail(self) -> None:
        """Change the state after a failure; without authentication, the connection is over."""
        if self.state in _UNAUTHENTICATED:
            self.state = BoltState.DEFUNCT
        elif self.state is not BoltState.INTERRUPTED:
            self.state = BoltState.FAILED

    def interrupt(self) -> None:
        """Note that a RESET has arrived: messages before it are ignored."""
        if self.is_authenticated:
            self._interrupts += 1
            self.state = BoltState.INTERRUPTED

    def end(self) -> None:
        """Enter the last state."""
        self.state = BoltState.DEFUNCT

    def _has_message(self, message: BoltRequestType) -> bool:
        if message in (BoltRequestType.LOGON, BoltRequestType.LOGOFF):
            return self._version >= _LOGON_SINCE
        return message is not BoltRequestType.TELEMETRY or self._version >= _TELEMETRY_SINCE
