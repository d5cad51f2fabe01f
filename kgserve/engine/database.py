"""One engine file: opening, sessions, building a new one aside, closing."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, LifoQueue

import kuzu
import msgspec

from kgserve.allocator import give_back
from kgserve.engine import bulk, dumping, schema
from kgserve.engine.apply import apply, kept_versions, record
from kgserve.engine.failures import translate
from kgserve.engine.session import Session
from kgserve.errors import EngineFailed, Unavailable
from kgserve.metrics.slow import SlowLog
from kgserve.model.change import NetChange, StoreState

WAL_SUFFIX = ".wal"
# Address space reserved per file; the engine wants a power of two and defaults to 8 TiB, of which 15 fit a process.
_MAX_FILE_BYTES = 1 << 36
# Of the page cache, what the rows of one slice of a dump may take: it needs several times that.
_SHARE = 8
# Page cache for building, and what the rows of a node group may take: growing needs it three times over.
_BUILDING_BYTES = 384 << 20
_GROUP_BYTES = 64 << 20


class EngineOptions(msgspec.Struct, frozen=True):
    """What an engine file is opened with: page cache in bytes, threads per query, readers, seconds per read.

    Statements that take long are noted in ``slow``, as those of ``store``.
    """

    cache_bytes: int = 512 << 20
    threads: int = 2
    readers: int = 4
    read_timeout: float = 10.0
    store: str = ""
    slow: SlowLog | None = None


class Engine:
    """An open engine file in service: one writing session, a bounded number of reading ones.

    Automatic checkpoints and the one at close are off: each damaged file that was ever seen came from a checkpoint.
    """

    def __init__(self, path: Path, options: EngineOptions) -> None:
        """Open an existing file or make a new one. Raises EngineFailed when the engine will not have it."""
        self.path = path
        self._options = options
        self._database = _open(path, options)
        self._readers: LifoQueue[Session | None] = LifoQueue()
        for _ in range(options.readers):
            self._readers.put(None)
        self._leases = 0
        # Memory that the engine gives back only when this file is replaced, about.
        self.kept_bytes = 0
        self._retired = False
        self._lock = threading.Lock()
        try:
            self.writer = Session(self._database, options.store, options.slow)
            self.writer.run("CALL auto_checkpoint=false")
            self.writer.run("CALL force_checkpoint_on_close=false")
            self.writer.whole = schema.is_whole(self.writer)
        except BaseException:
            self._database.close()
            raise

    @property
    def state(self) -> StoreState:
        """The state of its last commit. For the writing thread only."""
        return dumping.state(self.writer)

    @property
    def whole(self) -> bool:
        """Whether it has columns for extras."""
        return self.writer.whole

    def apply(self, net: NetChange, state: StoreState, *, recorded: bool = True) -> None:
        """Apply a change in one transaction. After an error the engine must be retired.

        Unless the state is ``recorded``, the file does not say how far it has come.
        """
        apply(self.writer, net, state if recorded else None)
        self.kept_bytes += kept_versions(net, state)

    @contextmanager
    def reader(self, timeout: float | None = None) -> Generator[Session]:
        """Borrow a reading session. Raises Unavailable when none is free within the read time limit."""
        session = self._borrow()
        healthy = False
        try:
            session.limit(self._options.read_timeout if timeout is None else timeout)
            yield session
            healthy = True
        finally:
            # After an error inside a transaction nobody knows what state the connection is in.
            if not healthy:
                session.close()
            self._return(session if healthy else None)

    def bytes(self) -> tuple[int, int]:
        """Size of the file and of its log."""
        return size(self.path), size(wal_path(self.path))

    def retire(self) -> None:
        """Take no new readers; close when the last one has left."""
        with self._lock:
            self._retired = True
            idle = self._leases == 0
        if idle:
            self._close()

    def retire_if_idle(self) -> bool:
        """As `retire`, unless somebody reads; whether it is closed now."""
        with self._lock:
            if self._leases:
                return False
            self._retired = True
        self._close()
        return True

    @property
    def closed(self) -> bool:
        """Whether the file is no longer open."""
        return self._database.is_closed

    def _borrow(self) -> Session:
        try:
            session = self._readers.get(timeout=self._options.read_timeout)
        except Empty:
            raise Unavailable("all read connections of this store are busy") from None
        with self._lock:
            if self._retired:
                self._readers.put(session)
                raise Retired
            self._leases += 1
        try:
            return session or self._session()
        except BaseException:
            self._return(None)
            raise

    def _session(self) -> Session:
        session = Session(self._database, self._options.store, self._options.slow, whole=self.whole)
        session.slice_bytes = self._options.cache_bytes // _SHARE
        return session

    def _return(self, session: Session | None) -> None:
        self._readers.put(session)
        with self._lock:
            self._leases -= 1
            last = self._retired and self._leases == 0
        if last:
            self._close()

    def _close(self) -> None:
        self.writer.close()
        while not self._readers.empty():
            session = self._readers.get_nowait()
            if session is not None:
                session.close()
        self._database.close()
        give_back()


class Retired(Exception):
    """The engine was replaced between looking it up and using it: look it up again."""


def build(path: Path, rows: Path, state: StoreState, options: EngineOptions, *, whole: bool = False) -> None:
    """Make a new engine file from a folder of rows, check its counts, close it. Nobody else may know the file yet.

    It has columns for extras if the rows have, or with ``whole`` in any case. However many nodes there are, they take
    384 MiB of page cache; edges have to be in it all at once, so it is larger by what they need.
    """
    cache_bytes = _BUILDING_BYTES + bulk.edge_memory(rows)
    database = _open(path, msgspec.structs.replace(options, cache_bytes=cache_bytes))
    try:
        session = Session(database, whole=whole or bulk.are_whole(rows))
        if not state.nodes:
            # A checkpoint gives every table its pages: 2 MB for a store that holds nothing yet.
            session.run("CALL force_checkpoint_on_close=false")
        schema.create(session)
        bulk.load(session, rows, state, _GROUP_BYTES)
        record(session, state)
        counts = tuple(session.rows(query)[0][0] for query in _COUNTS)
        session.close()
    finally:
        database.close()
        give_back()
    if counts != (state.nodes, state.edges, state.edges):
        raise EngineFailed(f"{path}: built with {counts} rows where {state.nodes} and {state.edges} were due")


_COUNTS = (
    "MATCH (e:Entity) RETURN count(*)",
    "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) RETURN count(k.sequence)",
    "MATCH (x:Entity)<-[k:RELATES_TO]-(y:Entity) RETURN count(k.sequence)",
)


def wal_path(path: Path) -> Path:
    """The engine's log beside its file."""
    return path.with_name(path.name + WAL_SUFFIX)


def remove(path: Path) -> None:
    """Remove an engine file and all that the engine keeps beside it."""
    for file in path.parent.glob(path.name + "*"):
        file.unlink(missing_ok=True)


def probe() -> None:
    """Raise EngineFailed when the engine cannot make and query a database in memory."""
    database = _open(Path(":memory:"), EngineOptions(cache_bytes=64 << 20))
    try:
        session = Session(database)
        schema.create(session)
        session.close()
    finally:
        database.close()


def _open(path: Path, options: EngineOptions) -> kuzu.Database:
    try:
        return kuzu.Database(
            str(path),
            buffer_pool_size=options.cache_bytes,
            max_num_threads=options.threads,
            max_db_size=_MAX_FILE_BYTES,
        )
    except (RuntimeError, IndexError, UnicodeDecodeError) as error:
        raise translate(RuntimeError(f"opening {path.name}: {error}")) from error


def size(path: Path) -> int:
    """Bytes of a file; 0 when it is not there."""
    return path.stat().st_size if path.exists() else 0
