"""Cluster membership: heartbeats, failure detection, and the cluster's record format.

Each node sends a heartbeat once a second. The others judge it by the changes they observe, on their own clocks. The
format is one that all nodes support; it changes when an upgrade is finished.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Self

import msgspec
import structlog
from typing_extensions import override

from kgserve.cluster.backend import ClusterEntryRegistry, ClusterNodeHeartbeat, VersionedHeartbeat
from kgserve.cluster.replicated_log_records import RECORD_FORMAT
from kgserve.errors import Conflict, KgserveError
from kgserve.platform.closable import ClosableContext

log = structlog.get_logger()

HEARTBEAT_INTERVAL_SECONDS = 1.0
HEARTBEAT_POLL_SECONDS = 0.5
"""Interval of reading heartbeats from any replica, which needs no leader; bounds the delay until one is noticed."""
LEASE_SECONDS = 10.0
"""Silence after which a node counts as gone. Longer than a leader election, during which no heartbeat is accepted."""
READ_FENCE_SECONDS = 8.0
"""Time without an accepted heartbeat after which a node stops serving reads; shorter than the lease."""
HEARTBEAT_PROPAGATION_SECONDS = 3 * HEARTBEAT_INTERVAL_SECONDS
"""Time after which all connected nodes have seen a heartbeat."""
REDIRECT_CUTOFF_SECONDS = 4.0
"""Silence after which callers are no longer redirected to a node, since it may be gone."""
MIN_HEARTBEAT_ROUNDS = 3
"""Accepted heartbeats of the observer before a silent node counts as gone, to allow recovery after an election."""
_MAX_START_ATTEMPTS = 3


def read_boottime_clock_seconds() -> float:
    """Return a monotonic time in seconds that includes time asleep, where the system has such a clock."""
    # Falls back to CLOCK_MONOTONIC, which includes sleep on some systems.
    return time.clock_gettime(_MONOTONIC_CLOCK_ID)


_MONOTONIC_CLOCK_ID: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class FailureDetector:
    """Failure detector: what one node observes of the others' heartbeats.

    A node is gone when its heartbeat has not changed for the lease and for `MIN_HEARTBEAT_ROUNDS` rounds. A round is an
    accepted heartbeat of the observer. An observer that was paused, cut off or waiting for an election therefore takes
    no node for gone. Observations of other nodes count as well.
    """

    def __init__(self) -> None:
        self._heard: dict[str, VersionedHeartbeat] = {}
        self._since: dict[str, tuple[int, float]] = {}
        self._reported_gone: dict[str, int] = {}
        self._rounds = 0
        self._began: float | None = None

    def look(self, heard: dict[str, VersionedHeartbeat], now: float) -> None:
        """Process the current heartbeats and count a round; ``now`` is in seconds of this process."""
        self._rounds += 1
        if self._began is None:
            self._began = now
        self.observe_heartbeats(heard, now)

    def observe_heartbeats(self, heard: dict[str, VersionedHeartbeat], now: float) -> None:
        """Process heartbeats without counting a round, so that silence is noticed even while none is accepted."""
        for node, each in heard.items():
            # Ignore outdated heartbeats from a lagging server.
            if node not in self._heard or each.revision > self._heard[node].revision:
                self._heard[node] = each
                self._since[node] = (self._rounds, now)
                for gone, last in each.beat.gone.items():
                    self._reported_gone[gone] = max(last, self._reported_gone.get(gone, 0))

    def is_gone(self, node: str, now: float) -> bool:
        """Return whether a node has left or been silent for the lease.

        A node never heard counts from the first round.
        """
        if self.has_left(node):
            return True
        # Another node observed the lease of silence since the last heartbeat known here.
        is_reported = node in self._heard and self._reported_gone.get(node, 0) >= self._heard[node].revision
        return is_reported or self.is_silent_for(node, now, LEASE_SECONDS)

    def has_left(self, node: str) -> bool:
        """Return whether a node's last heartbeat announced that it left."""
        return node in self._heard and self._heard[node].beat.leaving

    def is_silent_for(self, node: str, now: float, seconds: float) -> bool:
        """Return whether a node was silent for ``seconds`` in which this node's heartbeats were accepted."""
        if self._began is None:
            return False
        rounds, since = self._since.get(node, (1, self._began))
        return self._rounds - rounds >= MIN_HEARTBEAT_ROUNDS and now - since >= seconds

    def gone(self, now: float) -> dict[str, int]:
        """Return the nodes that this node observed silent for the lease, with their last heartbeat revisions."""
        return {
            node: each.revision
            for node, each in self._heard.items()
            if not each.beat.leaving and self.is_silent_for(node, now, LEASE_SECONDS)
        }

    def alive(self, now: float) -> dict[str, ClusterNodeHeartbeat]:
        """Return the last heartbeat of each node that is not gone."""
        return {node: each.beat for node, each in self._heard.items() if not self.is_gone(node, now)}


class ClusterHeartbeatExchange(ClosableContext):
    """Sends this node's heartbeats and observes those of the others, in threads from `start` to `close`."""

    def __init__(
        self,
        registry: ClusterEntryRegistry,
        beat: ClusterNodeHeartbeat,
        clock: Callable[[], float] = read_boottime_clock_seconds,
    ) -> None:
        self.beat = beat
        self._announced = beat
        self.silences = 0
        """Number of silent periods, in which other nodes may have taken over this node's stores."""
        self._registry = registry
        self._clock = clock
        self._watch = FailureDetector()
        self._alive: AbstractSet[str] = set()
        self._revision = 0
        self._accepted_at: float | None = None
        self._usurped = False
        self._lock = threading.Lock()
        self._rounds = 0
        self._round_done = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run_heartbeats, name="beats", daemon=True)

    @override
    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start sending heartbeats under this node's name.

        Raises Unavailable, and Conflict if another process does the same.
        """
        for _ in range(_MAX_START_ATTEMPTS):
            self._revision, self._usurped = self._last_revision(), False
            self.send_heartbeat()
            if not self.is_silent:
                self._thread.start()
                threading.Thread(target=self._run_listener, name="listens", daemon=True).start()
                return
        raise Conflict(f"another process is running as node {self.beat.node!r}; node names must be unique")

    def after_each_round(self, look: Callable[[], None]) -> None:
        """Call ``look`` after each heartbeat round, in a thread of its own, so that it cannot delay heartbeats."""
        threading.Thread(target=self._run_after_rounds, args=(look,), name="looks", daemon=True).start()

    @override
    def close(self) -> None:
        """Stop sending heartbeats and leave the cluster.

        All stores must be closed, since others may take them over at once.
        """
        self._closing.set()
        with self._round_done:
            self._round_done.notify_all()
        if not self._thread.is_alive():
            return
        self._thread.join()
        try:
            self._announce_leaving()
        except KgserveError as error:
            log.warning("leaving_not_told", node=self.beat.node, reason=str(error))

    def send_heartbeat(self) -> None:
        """Send one heartbeat and, if it is accepted, read the others'. Raises Unavailable."""
        sent = self._clock()
        with self._lock:
            beat = msgspec.structs.replace(self._announced, gone=self._watch.gone(sent))
        revision = self._registry.beat(beat, self._revision)
        if revision is None:
            self._resolve_rejected_heartbeat()
            return
        self._revision = revision
        heard = self._registry.beats()
        with self._lock:
            now = self._clock()
            if self._accepted_at is not None and now - self._accepted_at > READ_FENCE_SECONDS:
                self.silences += 1
            self._accepted_at = sent
            self._watch.look(heard, now)
            alive, before = self._watch.alive(now).keys(), self._alive
            self._alive = alive
            left = {node for node in before - alive if self._watch.has_left(node)}
        for gone in sorted(before - alive - {self.beat.node}):
            log_event = log.info if gone in left else log.warning
            log_event("node_gone", node=self.beat.node, gone=gone, left=gone in left)
        for come in sorted(alive - before - {self.beat.node}):
            log.info("node_heard", node=self.beat.node, heard=come)

    def read_heartbeats(self) -> None:
        """Read the others' heartbeats once, even while this node's own are not accepted."""
        heard = self._registry.read_replica_heartbeats()
        with self._lock:
            self._watch.observe_heartbeats(heard, self._clock())

    def drain(self, *, undo: bool = False) -> None:
        """Stop taking over stores, or undo that. Blocks until all nodes have had time to notice."""
        self._announced = msgspec.structs.replace(self.beat, draining=not undo)
        self._closing.wait(HEARTBEAT_PROPAGATION_SECONDS)
        self.beat = self._announced

    @property
    def accepted_at(self) -> float:
        """Time, by this clock, at which the last accepted heartbeat was sent; minus infinity for none."""
        with self._lock:
            return -math.inf if self._accepted_at is None else self._accepted_at

    @property
    def is_silent(self) -> bool:
        """True if other nodes may consider this node gone, now or soon."""
        with self._lock:
            return self._usurped or self._accepted_at is None or self._clock() - self._accepted_at > READ_FENCE_SECONDS

    def is_gone(self, node: str) -> bool:
        """Return whether another node may replace this one."""
        with self._lock:
            return self._watch.is_gone(node, self._clock())

    def is_possibly_gone(self, node: str) -> bool:
        """Return whether a node may be gone, because it was silent for some seconds."""
        with self._lock:
            return self._watch.is_silent_for(node, self._clock(), REDIRECT_CUTOFF_SECONDS)

    def alive(self) -> dict[str, ClusterNodeHeartbeat]:
        """Return the heartbeats of all nodes that are not gone, including this one."""
        with self._lock:
            return {**self._watch.alive(self._clock()), self.beat.node: self.beat}

    def _run_heartbeats(self) -> None:
        while not self._closing.wait(HEARTBEAT_INTERVAL_SECONDS) and not self._usurped:
            try:
                self.send_heartbeat()
            except KgserveError as error:
                log.warning("beat_not_taken", node=self.beat.node, reason=str(error))
            with self._round_done:
                self._rounds += 1
                self._round_done.notify_all()

    def _run_listener(self) -> None:
        while not self._closing.wait(HEARTBEAT_POLL_SECONDS):
            try:
                self.read_heartbeats()
            except KgserveError as error:
                if not self._closing.is_set():
                    log.warning("beats_not_heard", node=self.beat.node, reason=str(error))

    def _run_after_rounds(self, look: Callable[[], None]) -> None:
        seen = 0
        while True:
            with self._round_done:
                self._round_done.wait_for(lambda: self._rounds > seen or self._closing.is_set())  # noqa: B023 - waited for here
                seen = self._rounds
            if self._closing.is_set():
                return
            try:
                look()
            except KgserveError as error:
                if not self._closing.is_set():
                    log.warning("others_not_looked_at", node=self.beat.node, reason=str(error))

    def _announce_leaving(self) -> None:
        leaving = msgspec.structs.replace(self.beat, leaving=True)
        if self._registry.beat(leaving, self._revision) is None:
            self._resolve_rejected_heartbeat()
            if not self._usurped:
                self._registry.beat(leaving, self._revision)

    def _last_revision(self) -> int:
        heard = self._registry.beats().get(self.beat.node)
        return heard.revision if heard is not None else 0

    def _resolve_rejected_heartbeat(self) -> None:
        """Find out why a heartbeat was rejected: an earlier one was accepted, or another process has the same name."""
        heard = self._registry.beats().get(self.beat.node)
        if heard is None or heard.revision <= self._revision:
            # A lagging server answered; the next round tries again.
            return
        if heard.beat.run != self.beat.run:
            self._usurped = True
            log.error("node_name_taken", node=self.beat.node, url=heard.beat.url)
        self._revision = heard.revision


_FORMAT_ENTRY = "format"
INITIAL_RECORD_FORMAT = 1


class ClusterRecordFormat:
    """Record format of the cluster, stored in the registry.

    Newer programs support older formats; older programs are refused.
    """

    def __init__(self, registry: ClusterEntryRegistry, known: int = RECORD_FORMAT) -> None:
        """Read the format. ``known`` is the newest that this program supports.

        Raises Unavailable, and Conflict if the cluster's format is newer.
        """
        self._registry = registry
        self._known = known
        self.look()
        if self.current > known:
            raise Conflict(
                f"the cluster uses format {self.current}, but this version of kgserve supports only {known}; "
                "install the version that the other nodes run"
            )

    def look(self) -> None:
        """Read the current format. Raises Unavailable."""
        self.current, _ = self._entry()

    def finish(self, alive: Mapping[str, ClusterNodeHeartbeat]) -> int:
        """Switch the cluster to the newest format, and return it. Raises Conflict if a node does not support it."""
        if older := sorted(name for name, beat in alive.items() if beat.format < self._known):
            raise Conflict(f"upgrade these nodes first: {', '.join(older)}; they do not support format {self._known}")
        current, revision = self._entry()
        if (
            current < self._known
            and self._registry.put_entry(_FORMAT_ENTRY, str(self._known).encode(), revision) is None
        ):
            raise Conflict("another node has just changed the format; try again")
        self.look()
        return self.current

    def _entry(self) -> tuple[int, int]:
        found = self._registry.entries().get(_FORMAT_ENTRY)
        return (INITIAL_RECORD_FORMAT, 0) if found is None else (int(found.data), found.revision)
