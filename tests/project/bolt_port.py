"""Port at which the server of the documentation's tests serves Bolt."""

from __future__ import annotations

import socket
from functools import cache


@cache
def bolt_port() -> int:
    """Return a port that was free when this process first asked."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
