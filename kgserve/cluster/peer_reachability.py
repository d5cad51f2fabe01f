"""Reachability of the other nodes of a cluster at their addresses."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from kgserve.cluster.membership import READ_FENCE_SECONDS, ClusterHeartbeatExchange, read_boottime_clock_seconds

_CONNECT_TIMEOUT_SECONDS = 1.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


def can_connect_to_url(url: str) -> bool:
    """Return whether the host and port of a URL accept a connection within a second. Blocks."""
    parts = urlsplit(url)
    with suppress(OSError, ValueError):
        address = parts.hostname or "", parts.port or _DEFAULT_PORTS.get(parts.scheme, 80)
        with socket.create_connection(address, timeout=_CONNECT_TIMEOUT_SECONDS):
            return True
    return False


class PeerReachability:
    """Observes whether any other node whose heartbeats arrive accepts connections from this one."""

    def __init__(
        self,
        membership: ClusterHeartbeatExchange,
        connects: Callable[[str], bool] = can_connect_to_url,
        clock: Callable[[], float] = read_boottime_clock_seconds,
    ) -> None:
        self._membership = membership
        self._connects = connects
        self._clock = clock
        self._reached_at = clock()
        self._unreached: dict[str, str] = {}

    def look(self) -> None:
        """Try to connect to the other nodes until one accepts. Blocks for up to a second for each."""
        unreached: dict[str, str] = {}
        for name, url in self._beating_peers().items():
            if self._connects(url):
                break
            unreached[name] = url
        else:
            if unreached:
                self._unreached = unreached
                return
        self._reached_at, self._unreached = self._clock(), {}

    def unreached(self) -> Mapping[str, str]:
        """Return the addresses of the other nodes, by name, if none was reached for `READ_FENCE_SECONDS`."""
        return self._unreached if self._clock() - self._reached_at > READ_FENCE_SECONDS else {}

    def _beating_peers(self) -> dict[str, str]:
        """Return the addresses of the nodes that are certain to run."""
        own = self._membership.beat.node
        return {
            name: beat.url
            for name, beat in self._membership.alive().items()
            if name != own and not self._membership.is_possibly_gone(name)
        }
