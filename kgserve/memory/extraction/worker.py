"""Giving new memories to a language model, where one is set: what waits, whose turn it is, and what a failure costs.

One thread for all stores, one question at a time. A memory is noted from the journal, waits in the store's ledger, and
leaves it once what the model says of it is written. What that comes to is decided in `kgserve.memory.extraction.apply`.
"""

from __future__ import annotations

import math
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from typing_extensions import override

from kgserve.errors import KgserveError, Unavailable
from kgserve.memory.extraction.llm.chat import (
    MAX_LLM_ANSWER_TOKENS,
    Chat,
    ChatInterrupted,
    ChatReply,
    Question,
    Unanswered,
)
from kgserve.memory.extraction.marks import EXTRACT_KEY, is_text
from kgserve.platform.codecs import decode_json
from kgserve.platform.metrics.observation import Tally
from kgserve.platform.sqlite_files import remove_path
from kgserve.projections.background import SingleThreadWorker
from kgserve.projections.base import Erasure
from kgserve.projections.follower import BackgroundProjection
from kgserve.projections.memory_index.relation_types import RELATION_EXTRACTED_FROM
from kgserve.projections.schedule import FollowerStopped, FollowerThread
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.rows import NO_ATTRIBUTES, NodeRow
from kgserve.storage.model.statuses import ExtractionStatus, SetAside
from kgserve.storage.rows.snapshot import Rows
from kgserve.stores.store import OpenStore

log = structlog.get_logger()

MIN_EXTRACTION_RETRY_SECONDS = 1.0
MAX_EXTRACTION_RETRY_SECONDS = 60.0
MAX_EXTRACTION_FAULTS = 5
"""A memory of which the model has made nothing that can be used so often is set aside."""
MAX_EXTRACTION_TRIES = 100
"""The same where the service has failed: an outage of an hour sets nothing aside."""
MAX_WAITING_CALLERS = 4
"""So many callers may wait for the model at once: each takes a thread."""
_MAX_REPORTED_FAILURES = 20
_BUDGET_POLL_SECONDS = 60.0

Ask = Callable[[Question], ChatReply]


class Extracted(NamedTuple):
    """What has come of a memory: items that were taken in, and those that could not be."""

    items: int
    dropped: int


Extract = Callable[[OpenStore, str, Ask], Extracted | None]
"""Asks about a memory and writes what comes of it; None where there was nothing to ask.

Raises Unanswered, Interrupted, and errors of kgserve.
"""


class OverBudget(Exception):
    """The store has spent what it may today."""


class _Pause:
    """How long the service is to be left alone, by all stores."""

    def __init__(self) -> None:
        self.until = 0.0
        self._failures = 0

    def lengthen(self, asked: float) -> None:
        """The service has failed once more, and may have said for how long it is to be left alone."""
        self._failures += 1
        self.until = time.time() + max(asked, retry_seconds(self._failures))

    def end(self) -> None:
        """The service has answered."""
        self.until, self._failures = 0.0, 0


class ExtractionCounts:
    """What has been done in all stores since the server began."""

    def __init__(self) -> None:
        self.texts = Tally()
        self.items = Tally()
        self.tokens = Tally()


class _Shared(NamedTuple):
    """What the extractions of all stores have in common."""

    chat: Chat
    extract: Extract
    daily_tokens: int
    pause: _Pause
    counted: ExtractionCounts
    room: threading.Semaphore


def retry_seconds(failures: int) -> float:
    """After so many failures in a row: a second, doubled each time, up to a minute, and a quarter more or less."""
    seconds = min(MIN_EXTRACTION_RETRY_SECONDS * 2 ** min(failures - 1, 16), MAX_EXTRACTION_RETRY_SECONDS)
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - so that those who failed together do not return together


class Extraction(BackgroundProjection):
    """The extraction of one store."""

    name = "extractor"
    only_memories = True

    def __init__(self, store: OpenStore, shared: _Shared) -> None:
        super().__init__(store)
        self._open_store = store
        self._shared = shared
        # At once, before anything is written to a store that is new: what comes after this moment is.
        self._ledger = Ledger(store.layout.extraction, store.state.sequence)
        self._wake_at = self._resume_at = 0.0
        self._trouble: str | None = None
        self._counts = {"extracted": 0, "items": 0, "dropped": 0, "failures": 0}
        # Held while the ledger and the counts change together, so that a status does not see one without the other.
        self._consistent = threading.Lock()
        store.each_second.append(self._look)
        self._noted = self._ledger.sequence
        store.needed_from.append(lambda: self._noted + 1)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many memories wait, and how many were set aside."""
        return self._ledger.counts()

    def status(self) -> ExtractionStatus:
        """Report the extraction of this store, as of one moment."""
        with self._consistent:
            return self._status()

    def _status(self) -> ExtractionStatus:
        waiting, aside = self._ledger.counts()
        return ExtractionStatus(
            model=self._shared.chat.model,
            sequence=self._noted,
            waiting=waiting,
            set_aside=[
                SetAside(id=key, tries=tries, error=error)
                for key, tries, error in self._ledger.aside(_MAX_REPORTED_FAILURES)
            ],
            set_aside_count=aside,
            tokens_today=self._ledger.spent(_today()),
            daily_tokens=self._shared.daily_tokens,
            error=self._trouble,
            **self._counts,
        )

    def again(self, ids: Collection[str] | None) -> int:
        """Have memories wait for the model, or all that were set aside: how many."""
        count = self._ledger.again(ids, self.store.state.sequence)
        self.wake()
        return count

    def ask_now(self, question: Question) -> ChatReply:
        """Ask for a caller who waits, within the same budget. Raises Unavailable."""
        if not self._shared.room.acquire(blocking=False):
            raise Unavailable("the language model is busy; try again shortly", retry_after=5)
        try:
            return self._ask(question)
        except OverBudget:
            raise Unavailable("the store's tokens of this day (UTC) for the language model are spent", 3600) from None
        except Unanswered as trouble:
            told = f"the language model gives no answer: {trouble.message}"
            raise Unavailable(told, max(5, int(trouble.pause))) from None
        except ChatInterrupted:
            raise Unavailable("the server is stopping") from None
        finally:
            self._shared.room.release()

    @override
    def close(self) -> None:
        """Release the ledger."""
        self._ledger.close()

    @override
    def _erase(self, erasure: Erasure) -> None:
        """It holds no texts, and ids that go with their memories."""

    @override
    def _open(self) -> int:
        return self._ledger.sequence

    @override
    def _apply_all(self, rows: Rows) -> int:
        """Go on where the journal begins, or at its end where that was lost; what it no longer has is left."""
        journal = self.store.journal
        log.warning("extraction_left_out", store=self.store.name, after=self.sequence, oldest=journal.oldest)
        begin = min(max(self.sequence, journal.oldest - 1), journal.last)
        self._apply((), begin)
        return begin

    @override
    def _advance(self, last: int) -> None:
        super()._advance(last)
        self._try_next()

    @override
    def _is_behind(self) -> bool:
        now, due = time.time(), self._ledger.next_due
        self._wake_at = math.inf if due is None else max(due, self._shared.pause.until, self._wake_at)
        return super()._is_behind() or self._wake_at <= now

    def _look(self) -> None:
        if self._wake_at <= time.time():
            self.wake()

    # What is new

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        changes = [*changes]
        new = [each for change in changes for each in self._wanted(change)]
        gone = [node_id for change in changes for node_id in change.nodes_deleted]
        if new or gone or sequence > self._noted:
            self._ledger.note(new, gone, sequence)
            self._noted = sequence

    def _wanted(self, change: ChangeSet) -> Iterator[tuple[str, int]]:
        """The memories of a commit that the model is to be given, but for those that it has written itself."""
        edges = (*change.edges_created, *change.edges_updated)
        own = {edge.source for edge in edges if edge.relation_type == RELATION_EXTRACTED_FROM}
        for row in (*change.nodes_created, *change.nodes_updated):
            if row.id not in own and is_text(row) and self._is_wanted(row):
                yield row.id, change.sequence

    def _is_wanted(self, row: NodeRow) -> bool:
        said = (
            None
            if row.attributes == NO_ATTRIBUTES
            else decode_json(row.attributes, dict[str, msgspec.Raw]).get(EXTRACT_KEY)
        )
        asked = {b"true": True, b"false": False}.get(b"" if said is None else bytes(said))
        return self.store.description.memory.extract if asked is None else asked

    # Whose turn it is

    def _try_next(self) -> None:
        now = time.time()
        self._wake_at = self._resume_at
        if now < max(self._shared.pause.until, self._resume_at):
            return
        waiting = self._ledger.next(now)
        if waiting is None:
            return
        self._continue()
        try:
            found = self._shared.extract(self._open_store, waiting.id, self._ask)
        except ChatInterrupted:
            raise FollowerStopped from None
        except OverBudget:
            self._trouble = "the tokens of this day are spent; it goes on tomorrow (UTC)"
            self._wake_at = self._resume_at = now + _BUDGET_POLL_SECONDS
        except Unanswered as trouble:
            self._failed(waiting, trouble)
        except KgserveError as error:
            # The disk is full, the store is being renewed: that is not the model's.
            self._failed(waiting, Unanswered(error.message, of_service=True), pausing=False)
        except Exception as error:
            log.exception("extraction_failed", store=self.store.name, error=type(error).__name__)
            self._failed(waiting, Unanswered("internal error; see the log", of_service=False))
        else:
            self._shared.pause.end()
            self._took(waiting, found)

    def _took(self, waiting: Waiting, found: Extracted | None) -> None:
        with self._consistent:
            self._ledger.done(waiting)
            if found is None:
                return
            self._counts["extracted"] += 1
            self._counts["items"] += found.items
            self._counts["dropped"] += found.dropped
            self._trouble = None
        self._shared.counted.texts.add("ok")
        self._shared.counted.items.add("written", count=found.items)
        self._shared.counted.items.add("dropped", count=found.dropped)

    def _failed(self, waiting: Waiting, trouble: Unanswered, *, pausing: bool = True) -> None:
        self._shared.counted.texts.add("failed")
        tries, faults = waiting.tries + 1, waiting.faults + (not trouble.of_service)
        aside = faults >= MAX_EXTRACTION_FAULTS or tries >= MAX_EXTRACTION_TRIES
        if aside:
            self._shared.counted.texts.add("set_aside")
        if trouble.of_service and pausing:
            self._shared.pause.lengthen(trouble.pause)
        due = time.time() + retry_seconds(tries)
        with self._consistent:
            self._counts["failures"] += 1
            self._ledger.fail(Waiting(waiting.id, waiting.place, tries, faults), due, trouble.reason, aside=aside)
            self._trouble = trouble.message
        # Not what the service said: it may have said again what it was sent.
        log.warning("extraction_unanswered", store=self.store.name, tries=tries, set_aside=aside)

    def _ask(self, question: Question) -> ChatReply:
        """Ask within the budget: what a question may cost is spent before it is asked, whatever becomes of it."""
        day, estimate = _today(), question.tokens
        most = self._shared.daily_tokens
        if most and self._ledger.spent(day) + estimate + MAX_LLM_ANSWER_TOKENS > most:
            raise OverBudget
        self._spend(day, estimate)
        reply = self._shared.chat.ask(question, self._stopping.is_set)
        self._spend(day, max(reply.tokens - estimate, 0))
        return reply

    def _spend(self, day: str, tokens: int) -> None:
        self._ledger.spend(day, tokens)
        self._shared.counted.tokens.add(count=tokens)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


class Extractor(SingleThreadWorker[OpenStore, Extraction]):
    """A companion of the pool: gives the memories of every open store to a language model."""

    def __init__(self, chat: Chat, extract: Extract, daily_tokens: int) -> None:
        super().__init__(FollowerThread("extractor"))
        self.counted = ExtractionCounts()
        self._shared = _Shared(
            chat, extract, daily_tokens, _Pause(), self.counted, threading.Semaphore(MAX_WAITING_CALLERS)
        )

    @property
    def chat(self) -> Chat:
        """The language model."""
        return self._shared.chat

    @override
    def halt(self) -> None:
        """Ask no more, and take back what is asked: all stores are about to close."""
        super().halt()
        self.chat.close()

    def of(self, store: OpenStore) -> Extraction:
        """The extraction of an open store. Raises Unavailable when it is just closing."""
        return self._of(
            store, "nothing is extracted in this store now: it is just closing, or its ledger cannot be read"
        )

    @override
    def close(self) -> None:
        """End the threads; the stores are closed already."""
        self.chat.close()
        super().close()

    @override
    def _begun(self, store: OpenStore) -> Extraction | None:
        try:
            return Extraction(store, self._shared)
        except (sqlite3.Error, OSError) as error:
            # The store is served all the same.
            log.error("extraction_impossible", store=store.name, reason=str(error))
            return None


_LEDGER_SCHEMA = """
CREATE TABLE IF NOT EXISTS cursor (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS waiting (
    id TEXT PRIMARY KEY, place INTEGER NOT NULL, due REAL NOT NULL, tries INTEGER NOT NULL, faults INTEGER NOT NULL,
    aside INTEGER NOT NULL, error TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS waiting_due ON waiting (aside, due);
CREATE TABLE IF NOT EXISTS spent (day TEXT PRIMARY KEY, tokens INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""
_INSERT_WAITING = """
INSERT INTO waiting VALUES (?, ?, 0, 0, 0, 0, '')
ON CONFLICT (id) DO UPDATE SET place = excluded.place, due = 0, tries = 0, faults = 0, aside = 0, error = ''
"""
_SELECT_DUE = "SELECT id, place, tries, faults FROM waiting WHERE aside = 0 AND due <= ? ORDER BY due, place LIMIT 1"
_UPDATE_FAILED = "UPDATE waiting SET tries = ?, faults = ?, due = ?, aside = ?, error = ? WHERE id = ? AND place = ?"
_UPDATE_SET_ASIDE_DUE = "UPDATE waiting SET due = 0, tries = 0, faults = 0, aside = 0 WHERE aside = 1"
_INSERT_SPENT = "INSERT INTO spent VALUES (?, ?) ON CONFLICT (day) DO UPDATE SET tokens = tokens + excluded.tokens"
_SELECT_SET_ASIDE = "SELECT id, tries, error FROM waiting WHERE aside = 1 ORDER BY place LIMIT ?"


class Waiting(NamedTuple):
    """A memory that waits since the commit ``place``; of its ``tries`` the ``faults`` were not the service's."""

    id: str
    place: int
    tries: int
    faults: int


class Ledger:
    """What a model is yet to be given of one store, in a file beside the journal; for any thread.

    It is no view: what was set aside, and what was spent, can be had from nowhere else.
    """

    def __init__(self, path: Path, sequence: int) -> None:
        """Open it; where there is none, or none that can be read, what comes after ``sequence`` is new."""
        self._lock = threading.Lock()
        try:
            self._connection = _opened(path, sequence)
        except sqlite3.DatabaseError as error:
            log.warning("extraction_ledger_renewed", path=path.name, reason=str(error))
            for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
                remove_path(each)
            self._connection = _opened(path, sequence)

    def close(self) -> None:
        """Release the file."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    @contextmanager
    def _asking(self) -> Generator[sqlite3.Connection]:
        """The file, for one at a time. Raises Unavailable."""
        try:
            with self._lock:
                yield self._connection
        except sqlite3.Error as error:
            raise Unavailable(f"what waits for the language model cannot be read or written: {error}", 5) from error

    @contextmanager
    def _changing(self) -> Generator[sqlite3.Connection]:
        """The same for a change, all of which is made or nothing."""
        with self._asking() as connection, connection:
            yield connection

    @property
    def sequence(self) -> int:
        """The commit up to which new memories were noted."""
        return self._one("SELECT sequence FROM cursor")

    def note(self, new: Iterable[tuple[str, int]], gone: Iterable[str], sequence: int) -> None:
        """Have memories wait, each since a commit; and others no more. What came up to ``sequence`` is noted then."""
        with self._changing() as transaction:
            transaction.executemany("DELETE FROM waiting WHERE id = ?", ((each,) for each in gone))
            transaction.executemany(_INSERT_WAITING, new)
            transaction.execute("UPDATE cursor SET sequence = ?", (sequence,))

    def next(self, now: float) -> Waiting | None:
        """The memory whose turn it is, if there is one; ``now`` in seconds of the clock."""
        with self._asking() as connection:
            found = connection.execute(_SELECT_DUE, (now,)).fetchone()
        return None if found is None else Waiting(*found)

    @property
    def next_due(self) -> float | None:
        """When the next one may be tried; None where none waits."""
        with self._asking() as connection:
            return connection.execute("SELECT min(due) FROM waiting WHERE aside = 0").fetchone()[0]

    def done(self, waiting: Waiting) -> None:
        """It no longer waits, unless it has changed meanwhile."""
        with self._changing() as transaction:
            transaction.execute("DELETE FROM waiting WHERE id = ? AND place = ?", (waiting.id, waiting.place))

    def fail(self, waiting: Waiting, due: float, error: str, *, aside: bool) -> None:
        """It is to be tried again when ``due``, or is set aside."""
        values = (waiting.tries, waiting.faults, due, aside, error, waiting.id, waiting.place)
        with self._changing() as transaction:
            transaction.execute(_UPDATE_FAILED, values)

    def again(self, ids: Collection[str] | None, sequence: int) -> int:
        """Have some memories wait, or all that were set aside: how many."""
        with self._changing() as transaction:
            if ids is None:
                return transaction.execute(_UPDATE_SET_ASIDE_DUE).rowcount
            transaction.executemany(_INSERT_WAITING, ((each, sequence) for each in ids))
            return len(ids)

    def counts(self) -> tuple[int, int]:
        """How many wait, and how many were set aside."""
        with self._asking() as connection:
            found = dict(connection.execute("SELECT aside, count(*) FROM waiting GROUP BY aside").fetchall())
        return found.get(0, 0), found.get(1, 0)

    def aside(self, most: int) -> list[tuple[str, int, str]]:
        """The first that were set aside: id, tries, and why."""
        with self._asking() as connection:
            return connection.execute(_SELECT_SET_ASIDE, (most,)).fetchall()

    def spent(self, day: str) -> int:
        """The tokens of a day."""
        with self._asking() as connection:
            found = connection.execute("SELECT tokens FROM spent WHERE day = ?", (day,)).fetchone()
        return 0 if found is None else found[0]

    def spend(self, day: str, tokens: int) -> None:
        """Lay tokens to the account of a day; those before are forgotten."""
        with self._changing() as transaction:
            transaction.execute("DELETE FROM spent WHERE day <> ?", (day,))
            transaction.execute(_INSERT_SPENT, (day, tokens))

    def _one(self, query: str) -> int:
        with self._asking() as connection:
            return connection.execute(query).fetchone()[0]


def _opened(path: Path, sequence: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A power loss may take the last entries back: then the journal is read once more, and marks in the rows say
        # what was extracted.
        connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            connection.executescript(_LEDGER_SCHEMA)
            connection.execute("INSERT OR IGNORE INTO cursor VALUES (1, ?)", (sequence,))
        connection.execute("SELECT count(*) FROM waiting").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
