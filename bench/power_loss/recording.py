"""A server whose file operations are recorded, its clients, and the times of their acknowledgements."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from bench.ledger import ImportStream, Ledger, UnitState, WriteUnit
from bench.power_loss import disk
from bench.power_loss.disk import File, Folder, RecordedDisk
from bench.preload import compile_preload_library
from bench.server import BenchClient, ServerProcess, background_work
from bench.writers import GONE, Upload, Writers

STORE = "kept"
DROPPED = "dropped"
LIVES = 3
SECONDS = 2.0
SETTINGS: dict[str, object] = {
    "embedding_provider": "hashing",
    "buffer_pool_mb": 64,
    "compact_wal_mb": 1,
    "journal_segment_mb": 1,
    "journal_retention_mb": 0,
}


class RecordedAcknowledgement(NamedTuple):
    """A request or acknowledgement of a client, and the record's length at that time."""

    position: int
    unit: WriteUnit
    state: UnitState
    acknowledged: bool


class Timeline(Ledger):
    """A ledger with its state at each length of the record."""

    def __init__(self, store: str, file: Path) -> None:
        super().__init__(store)
        self._file = file
        self._said: list[RecordedAcknowledgement] = []
        self._imports: list[tuple[int, ImportStream, bool]] = []
        self.marks: list[tuple[int, str, int]] = []

    @property
    def position(self) -> int:
        """Current length of the record."""
        return self._file.stat().st_size

    @override
    def attempt(self, unit: WriteUnit, state: UnitState) -> None:
        self._said.append(RecordedAcknowledgement(self.position, unit, state, acknowledged=False))
        super().attempt(unit, state)

    @override
    def acknowledge(self, unit: WriteUnit, state: UnitState) -> None:
        super().acknowledge(unit, state)
        self._said.append(RecordedAcknowledgement(self.position, unit, state, acknowledged=True))

    @override
    def attempt_stream(self, stream: ImportStream) -> None:
        self._imports.append((self.position, stream, False))
        super().attempt_stream(stream)

    @override
    def acknowledge_stream(self, stream: ImportStream) -> None:
        super().acknowledge_stream(stream)
        self._imports.append((self.position, stream, True))

    def mark(self, what: str, number: int) -> None:
        """Record that an item was just acknowledged."""
        self.marks.append((self.position, what, number))

    def marked(self, what: str, position: int) -> int:
        """Return the last number acknowledged for an item by then; -1 for none."""
        return max((number for at, name, number in self.marks if name == what and at <= position), default=-1)

    def at(self, position: int) -> Ledger:
        """Return the ledger that must hold after a power loss at a record length."""
        ledger, units, streams = Ledger(self.store), dict[str, WriteUnit](), dict[str, ImportStream]()
        for said in self._said:
            if said.position > position:
                continue
            unit = units.setdefault(said.unit.name, WriteUnit(said.unit.name, said.unit.size, said.unit.previous))
            (ledger.acknowledge if said.acknowledged else ledger.attempt)(unit, said.state)
        for at, stream, acknowledged in self._imports:
            if at <= position:
                known = streams.setdefault(stream.name, ImportStream(stream.name, stream.steps))
                (ledger.acknowledge_stream if acknowledged else ledger.attempt_stream)(known)
        return ledger


def compile_recorder(folder: Path) -> Path:
    """Compile the recorder as a shared library. Raises CalledProcessError."""
    return compile_preload_library(Path(__file__).with_name("recorder.c"), folder)


class RecordedServer:
    """A data folder of a server, and the record of its file operations."""

    def __init__(self, folder: Path, recorder: Path, seed: int) -> None:
        self.data = folder / "data"
        self.data.mkdir(mode=0o700)
        self.file = folder / "record"
        self.file.touch()
        self.seed = seed
        self.timeline = Timeline(STORE, self.file)
        self.unexpected: list[str] = []
        self._environment = {
            "LD_PRELOAD": str(recorder),
            "RECORDED_FOLDER": str(self.data),
            "RECORD_FILE": str(self.file),
        }
        self._choice = random.Random(seed)
        self._inode = self.data.stat().st_ino
        self._numbers = itertools.count()

    def disk(self) -> RecordedDisk:
        """Return the folder before the first recorded operation."""
        return RecordedDisk(self.data)

    def run(self) -> int:
        """Run clients on a server that is stopped or killed and restarted.

        Return the number of files with unrecorded changes.
        """
        missed = 0
        for life in range(LIVES):
            server = ServerProcess(self.data, SETTINGS, module="bench.eager_server", environment=self._environment)
            self._run_server_once(server, life)
            if server.running:
                server.stop()
            missed += self._complete_record()
        return missed

    def _run_server_once(self, server: ServerProcess, life: int) -> None:
        name = f"s{self.seed}-{life}"
        self._drop_a_store(server)
        with (
            Writers(server.port, self.timeline, name, threads=3, size=1_500) as writers,
            _queries(server, self),
        ):
            upload = Upload(server.port, self.timeline, ImportStream(f"i{name}", 2_000))
            upload.start()
            time.sleep(self._choice.uniform(0.6, 1.4) * SECONDS)
            if life != 1:
                server.kill()
        upload.join()
        self.unexpected += writers.unexpected + upload.unexpected

    def _drop_a_store(self, server: ServerProcess) -> None:
        with server.client() as client:
            unit = WriteUnit("dropped", 500, None)
            number = next(self._numbers)
            client.call("POST", f"/api/memory/{DROPPED}-{number}/inject", unit.batch(1))
            client.call("DELETE", f"/api/memory/{DROPPED}-{number}?confirm={DROPPED}-{number}")
            self.timeline.mark(DROPPED, number)

    def ask(self, client: BenchClient) -> None:
        """Make projections follow: run a statement, list nodes, and change settings."""
        number = next(self._numbers)
        client.send("POST", f"/api/memory/{STORE}/cypher", b'{"query": "MATCH (n:Entity) RETURN count(n)"}')
        client.send("GET", f"/api/memory/{STORE}/nodes?limit=5")
        said = f'{{"metadata": {{"number": {number}}}}}'.encode()
        if client.send("PATCH", f"/api/memory/{STORE}", said).status == 200:
            self.timeline.mark("settings", number)

    def _complete_record(self) -> int:
        """Truncate an incomplete last record and add unrecorded changes.

        Return the number of files changed that way.
        """
        now = self.disk()
        end = 0
        with self.file.open("rb") as file:
            for each in disk.records(file):
                now.take(each)
                end = each.end
        os.truncate(self.file, end)
        missing = list(_differences(now, self.data))
        with self.file.open("ab") as file:
            file.write(b"".join(missing))
        return len(missing)


@contextmanager
def _queries(server: ServerProcess, recording: RecordedServer) -> Generator[None]:
    def ask(over: threading.Event) -> None:
        with suppress(*GONE), server.client() as client:
            while not over.wait(0.02):
                recording.ask(client)

    with background_work(ask):
        yield


def _differences(now: RecordedDisk, data: Path) -> Iterator[bytes]:
    """Yield records of the differences between the recorded and the actual folder."""
    there = sorted(data.rglob("*"))
    names = {str(path) for path in there}
    for path in sorted(_paths(now.root, data), reverse=True):
        if path not in names:
            yield disk.record(disk.UNLINKED, path)
    for path in there:
        status, known = path.stat(), now.find(str(path)) if str(path.parent) in _known(now, data) else None
        if path.is_dir():
            if known is None:
                yield disk.record(disk.MADE, str(path), inode=status.st_ino)
        elif not isinstance(known, File) or bytes(known.seen) != path.read_bytes():
            yield disk.record(disk.OPENED, str(path), inode=status.st_ino, place=0)
            yield disk.record(disk.WRITTEN, inode=status.st_ino, data=path.read_bytes())


def _known(now: RecordedDisk, data: Path) -> set[str]:
    return {str(data), *(_paths(now.root, data))}


def _paths(folder: Folder, path: Path) -> Iterator[str]:
    for name, each in folder.seen.items():
        yield str(path / name)
        if isinstance(each, Folder):
            yield from _paths(each, path / name)
