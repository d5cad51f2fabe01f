"""Which nodes are alive. Each beats once a second; the others judge it by what they see, and by no clock of its own.

At the end in which format nodes write: one that all of them know, until an upgrade is finished.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Self

import msgspec
import structlog
from typing_extensions import override

from kgserve.cluster.protocols import Heard, Heartbeat, Registry
from kgserve.cluster.records import RECORD_FORMAT
from kgserve.errors import Conflict, KgserveError
from kgserve.platform.closing import Closing

log = structlog.get_logger()

HEARTBEAT_INTERVAL_SECONDS = 1.0
HEARTBEAT_POLL_SECONDS = 0.5
"""So much later at most than it was sent a beat is heard, which needs no leader of the log's servers."""
LEASE_SECONDS = 10.0
"""Longer than an election of the log's servers: while that lasts nobody's beat is taken."""
READ_FENCE_SECONDS = 8.0
"""After so long without a beat that was taken a node answers no reads: before others begin to."""
HEARTBEAT_PROPAGATION_SECONDS = 3 * HEARTBEAT_INTERVAL_SECONDS
"""After so long everybody who is not cut off has heard of what a beat says."""
REDIRECT_CUTOFF_SECONDS = 4.0
"""After so long nobody is sent to a node any more: it may be gone, and who asks it may wait in vain."""
MIN_HEARTBEAT_ROUNDS = 3
"""Beats of its own that a node gets through meanwhile: enough for everybody to be heard again after an election."""
_MAX_START_ATTEMPTS = 3


def uptime() -> float:
    """Seconds that also pass while the machine is asleep, where the system counts those."""
    # Where there is no such clock, as on macOS, the usual one counts them, or there is none that does.
    return time.clock_gettime(_MONOTONIC_CLOCK_ID)


_MONOTONIC_CLOCK_ID: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Watch:
    """What one node sees of the others' beats.

    A node is gone when its beat has stayed as it is for the lease, and for so many rounds, each of which is a beat of
    the watching node that was taken. So who was stopped itself, or cut off, or waits for an election with everybody
    else, takes nobody for gone for that. What another node saw long enough is as good.
    """

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}
        self._since: dict[str, tuple[int, float]] = {}
        self._told: dict[str, int] = {}
        self._rounds = 0
        self._began: float | None = None

    def look(self, heard: dict[str, Heard], now: float) -> None:
        """Take in what beats there are, one round after the last; ``now`` is in seconds of this process."""
        self._rounds += 1
        if self._began is None:
            self._began = now
        self.hear(heard, now)

    def hear(self, heard: dict[str, Heard], now: float) -> None:
        """Take in beats without a round: how long a node has been silent is to be known while no beats are taken."""
        for node, each in heard.items():
            # One that was read from a server that lags says nothing.
            if node not in self._heard or each.revision > self._heard[node].revision:
                self._heard[node] = each
                self._since[node] = (self._rounds, now)
                for gone, last in each.beat.gone.items():
                    self._told[gone] = max(last, self._told.get(gone, 0))

    def is_gone(self, node: str, now: float) -> bool:
        """Whether a node has left, or been silent for long enough; who never beat, once this one has looked as long."""
        if self.has_left(node):
            return True
        # Another node saw it silent for long enough, after the last beat that is known here as well.
        is_told = node in self._heard and self._told.get(node, 0) >= self._heard[node].revision
        return is_told or self.is_unheard(node, now, LEASE_SECONDS)

    def has_left(self, node: str) -> bool:
        """Whether the last beat of a node said so."""
        return node in self._heard and self._heard[node].beat.leaving

    def is_unheard(self, node: str, now: float, seconds: float) -> bool:
        """Whether a node was not heard of for so long, in which this one was."""
        if self._began is None:
            return False
        rounds, since = self._since.get(node, (1, self._began))
        return self._rounds - rounds >= MIN_HEARTBEAT_ROUNDS and now - since >= seconds

    def gone(self, now: float) -> dict[str, int]:
        """Nodes that were silent for the lease as seen from here, and the revisions of their last beats."""
        return {
            node: each.revision
            for node, each in self._heard.items()
            if not each.beat.leaving and self.is_unheard(node, now, LEASE_SECONDS)
        }

    def alive(self, now: float) -> dict[str, Heartbeat]:
        """The last beat of each node that is not gone."""
        return {node: each.beat for node, each in self._heard.items() if not self.is_gone(node, now)}


class Membership(Closing):
    """The beats of this node, and what it hears of others; a thread of its own, from `start` to `close`."""

    def __init__(self, registry: Registry, beat: Heartbeat, clock: Callable[[], float] = uptime) -> None:
        self.beat = beat
        self._announced = beat
        self.silences = 0
        """How often it was silent, so that others may have taken its stores over."""
        self._registry = registry
        self._clock = clock
        self._watch = Watch()
        self._alive: AbstractSet[str] = set()
        self._revision = 0
        self._taken_at: float | None = None
        self._usurped = False
        self._lock = threading.Lock()
        self._rounds = 0
        self._beaten = threading.Condition()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="beats", daemon=True)

    @override
    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Beat instead of who did under this name, and go on. Raises Conflict when others do the same, Unavailable."""
        for _ in range(_MAX_START_ATTEMPTS):
            self._revision, self._usurped = self._last_revision(), False
            self.round()
            if not self.is_silent:
                self._thread.start()
                threading.Thread(target=self._listen_on, name="listens", daemon=True).start()
                return
        raise Conflict(f"another process beats as node {self.beat.node!r} as well: their names must differ")

    def after_each_round(self, look: Callable[[], None]) -> None:
        """Have somebody look at what others have changed, in a thread of its own: beats go on while it waits."""
        threading.Thread(target=self._look_on, args=(look,), name="looks", daemon=True).start()

    @override
    def close(self) -> None:
        """Beat no more. What it owned is to be taken over from now on, so nothing of it may be open any more."""
        self._closing.set()
        with self._beaten:
            self._beaten.notify_all()
        if not self._thread.is_alive():
            return
        self._thread.join()
        try:
            self._registry.beat(msgspec.structs.replace(self.beat, leaving=True), self._revision)
        except KgserveError as error:
            log.warning("leaving_not_told", node=self.beat.node, reason=str(error))

    def round(self) -> None:
        """One beat, and, if it was taken, one look at the others'. Raises Unavailable."""
        sent = self._clock()
        with self._lock:
            beat = msgspec.structs.replace(self._announced, gone=self._watch.gone(sent))
        revision = self._registry.beat(beat, self._revision)
        if revision is None:
            self._find_itself()
            return
        self._revision = revision
        heard = self._registry.beats()
        with self._lock:
            now = self._clock()
            if self._taken_at is not None and now - self._taken_at > READ_FENCE_SECONDS:
                self.silences += 1
            self._taken_at = sent
            self._watch.look(heard, now)
            alive, before = self._watch.alive(now).keys(), self._alive
            self._alive = alive
            left = {node for node in before - alive if self._watch.has_left(node)}
        for gone in sorted(before - alive - {self.beat.node}):
            tell = log.info if gone in left else log.warning
            tell("node_gone", node=self.beat.node, gone=gone, left=gone in left)
        for come in sorted(alive - before - {self.beat.node}):
            log.info("node_heard", node=self.beat.node, heard=come)

    def listen(self) -> None:
        """One look at the others' beats, whether one of this node's own is taken just now or not."""
        heard = self._registry.seen_beats()
        with self._lock:
            self._watch.hear(heard, self._clock())

    def drain(self, *, undo: bool = False) -> None:
        """Take no stores over from now on, or again. Blocks until all nodes have had the time to hear of it."""
        self._announced = msgspec.structs.replace(self.beat, draining=not undo)
        self._closing.wait(HEARTBEAT_PROPAGATION_SECONDS)
        self.beat = self._announced

    @property
    def is_silent(self) -> bool:
        """Whether others may believe by now, or soon, that this node is gone."""
        with self._lock:
            return self._usurped or self._taken_at is None or self._clock() - self._taken_at > READ_FENCE_SECONDS

    def is_gone(self, node: str) -> bool:
        """Whether a node may be replaced."""
        with self._lock:
            return self._watch.is_gone(node, self._clock())

    def is_quiet(self, node: str) -> bool:
        """Whether a node may be gone: it was not heard of for some seconds, in which this one was."""
        with self._lock:
            return self._watch.is_unheard(node, self._clock(), REDIRECT_CUTOFF_SECONDS)

    def alive(self) -> dict[str, Heartbeat]:
        """The nodes that are not gone, this one among them."""
        with self._lock:
            return {**self._watch.alive(self._clock()), self.beat.node: self.beat}

    def _beat_on(self) -> None:
        while not self._closing.wait(HEARTBEAT_INTERVAL_SECONDS) and not self._usurped:
            try:
                self.round()
            except KgserveError as error:
                log.warning("beat_not_taken", node=self.beat.node, reason=str(error))
            with self._beaten:
                self._rounds += 1
                self._beaten.notify_all()

    def _listen_on(self) -> None:
        while not self._closing.wait(HEARTBEAT_POLL_SECONDS):
            try:
                self.listen()
            except KgserveError as error:
                if not self._closing.is_set():
                    log.warning("beats_not_heard", node=self.beat.node, reason=str(error))

    def _look_on(self, look: Callable[[], None]) -> None:
        seen = 0
        while True:
            with self._beaten:
                self._beaten.wait_for(lambda: self._rounds > seen or self._closing.is_set())  # noqa: B023 - waited for here
                seen = self._rounds
            if self._closing.is_set():
                return
            try:
                look()
            except KgserveError as error:
                if not self._closing.is_set():
                    log.warning("others_not_looked_at", node=self.beat.node, reason=str(error))

    def _last_revision(self) -> int:
        heard = self._registry.beats().get(self.beat.node)
        return heard.revision if heard is not None else 0

    def _find_itself(self) -> None:
        """Why a beat was not the next one: it was taken without an answer, or by another process of the same name."""
        heard = self._registry.beats().get(self.beat.node)
        if heard is None or heard.revision <= self._revision:
            # Read from a server that lags; the next round looks again.
            return
        if heard.beat.run != self.beat.run:
            self._usurped = True
            log.error("node_name_taken", node=self.beat.node, url=heard.beat.url)
        self._revision = heard.revision


_FORMAT_ENTRY = "format"
FIRST_CLUSTER_FORMAT = 1


class Formats:
    """The format that the registry names. Newer programs read it and their own, older ones are kept out."""

    def __init__(self, registry: Registry, known: int = RECORD_FORMAT) -> None:
        """``known`` is the newest that this program reads. Raises Conflict when that is too old, and Unavailable."""
        self._registry = registry
        self._known = known
        self.look()
        if self.current > known:
            raise Conflict(
                f"the cluster writes format {self.current}, and this version of kgserve knows {known}: its upgrade was "
                "finished, so install the version of the other nodes"
            )

    def look(self) -> None:
        """See which it is now. Raises Unavailable."""
        self.current, _ = self._entry()

    def finish(self, alive: Mapping[str, Heartbeat]) -> int:
        """Have all write the newest format from now on; which one. Raises Conflict while a node would not know it."""
        if older := sorted(name for name, beat in alive.items() if beat.format < self._known):
            raise Conflict(f"upgrade {', '.join(older)} first: format {self._known} is not known there")
        current, revision = self._entry()
        if (
            current < self._known
            and self._registry.put_entry(_FORMAT_ENTRY, str(self._known).encode(), revision) is None
        ):
            raise Conflict("another node has just changed the format; look again")
        self.look()
        return self.current

    def _entry(self) -> tuple[int, int]:
        found = self._registry.entries().get(_FORMAT_ENTRY)
        return (FIRST_CLUSTER_FORMAT, 0) if found is None else (int(found.data), found.revision)
