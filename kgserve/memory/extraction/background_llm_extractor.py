"""Background extraction by a language model: the queue of texts, scheduling, retries and the token budget.

One thread serves all stores and asks one question at a time. New memories are read from the journal into the store's
ledger, and leave it when the result is written. `kgserve.memory.extraction.fact_extraction` decides what is written.
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
from kgserve.memory.extraction.fact_marks import EXTRACT_KEY, can_extract_facts_from_node
from kgserve.memory.extraction.llm.chat_completions_client import (
    MAX_LLM_ANSWER_TOKENS,
    ChatClient,
    ChatReply,
    LlmChatCancelled,
    LlmJsonPrompt,
    NoUsableLlmAnswer,
)
from kgserve.platform.codecs import decode_json
from kgserve.platform.metrics.app_metrics_and_request_context import LabeledCounter
from kgserve.platform.sqlite_files import remove_path, vacuum_database
from kgserve.projections.background_projection import BackgroundProjection
from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.memory_index.built_in_relation_types import RELATION_EXTRACTED_FROM
from kgserve.projections.update_scheduler import ProjectionStepAbandoned, ProjectionThread
from kgserve.projections.workers import SingleThreadProjectionWorker
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON, NodeRow
from kgserve.storage.model.projection_statuses import FactExtractionStatus, FailedMemoryExtraction
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

log = structlog.get_logger()

MIN_EXTRACTION_RETRY_SECONDS = 1.0
MAX_EXTRACTION_RETRY_SECONDS = 60.0
MAX_UNUSABLE_ANSWERS = 5
"""Number of unusable answers after which a memory is set aside."""
MAX_EXTRACTION_ATTEMPTS = 100
"""Number of failed attempts after which a memory is set aside; an outage of an hour stays below it."""
MAX_WAITING_CALLERS = 4
"""Maximum number of callers that wait for the model at once; each occupies a thread."""
_MAX_REPORTED_FAILURES = 20
_BUDGET_POLL_SECONDS = 60.0

AskFunction = Callable[[LlmJsonPrompt], ChatReply]


class ExtractionResult(NamedTuple):
    """Result of one text: items written, and items dropped."""

    items: int
    dropped: int


ExtractFunction = Callable[[OpenStore, str, AskFunction], ExtractionResult | None]
"""Asks the model about a memory and writes the result; None if there was nothing to ask.

Raises Unanswered, LlmChatCancelled, and errors of kgserve.
"""


class TokenBudgetExceeded(Exception):
    """The store has used its daily token budget."""


class _ServicePause:
    """Time during which no store calls the service."""

    def __init__(self) -> None:
        self.until = 0.0
        self._failures = 0

    def lengthen(self, asked: float) -> None:
        """Extend the pause after a failure; `asked` is the minimum in seconds that the service requested."""
        self._failures += 1
        self.until = time.time() + max(asked, compute_extraction_retry_delay(self._failures))

    def end(self) -> None:
        """End the pause, because the service has answered."""
        self.until, self._failures = 0.0, 0


class ExtractionCounts:
    """Counters of extracted texts, items and tokens for all stores since the server started."""

    def __init__(self) -> None:
        self.texts = LabeledCounter()
        self.items = LabeledCounter()
        self.tokens = LabeledCounter()


class _SharedState(NamedTuple):
    """State shared by the extractions of all stores."""

    chat: ChatClient
    extract: ExtractFunction
    daily_tokens: int
    pause: _ServicePause
    counted: ExtractionCounts
    room: threading.Semaphore


def compute_extraction_retry_delay(failures: int) -> float:
    """Return the delay after consecutive failures: exponential backoff up to a minute, with 25 % jitter."""
    seconds = min(MIN_EXTRACTION_RETRY_SECONDS * 2 ** min(failures - 1, 16), MAX_EXTRACTION_RETRY_SECONDS)
    return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - jitter, not a secret


class StoreExtractionWorker(BackgroundProjection):
    """Background worker that sends the memories of one store to a language model and writes the extracted facts."""

    name = "extractor"
    only_memories = True

    def __init__(self, store: OpenStore, shared: _SharedState) -> None:
        super().__init__(store)
        self._open_store = store
        self._shared = shared
        # Created before anything is written to a new store, so that all its memories are included.
        self._ledger = ExtractionQueue(store.layout.extraction, store.state.sequence)
        self._wake_at = self._resume_at = 0.0
        self._error: str | None = None
        self._counts = {"extracted": 0, "items": 0, "dropped": 0, "failures": 0}
        # Guards the ledger and the counts together, so that a status shows a consistent state.
        self._consistent = threading.Lock()
        store.each_second.append(self._wake_if_due)
        self._queued_through = self._ledger.sequence
        store.needed_from.append(lambda: self._queued_through + 1)
        store.after_erasing.append(self._ledger.erase)

    @property
    def waiting(self) -> tuple[int, int]:
        """Numbers of queued and of failed memories."""
        return self._ledger.counts()

    def status(self) -> FactExtractionStatus:
        """Return a consistent status of this store's extraction."""
        with self._consistent:
            return self._status()

    def _status(self) -> FactExtractionStatus:
        waiting, aside = self._ledger.counts()
        return FactExtractionStatus(
            model=self._shared.chat.model,
            sequence=self._queued_through,
            waiting=waiting,
            set_aside=[
                FailedMemoryExtraction(id=key, tries=tries, error=error)
                for key, tries, error in self._ledger.list_failed(_MAX_REPORTED_FAILURES)
            ],
            set_aside_count=aside,
            tokens_today=self._ledger.spent(_today()),
            daily_tokens=self._shared.daily_tokens,
            error=self._error,
            **self._counts,
        )

    def requeue(self, ids: Collection[str] | None) -> int:
        """Queue memories for the model, or all failed ones with None; return their number."""
        count = self._ledger.requeue(ids, self.store.state.sequence)
        self.wake()
        return count

    def ask_now(self, question: LlmJsonPrompt) -> ChatReply:
        """Ask for a waiting caller, within the same budget. Raises Unavailable."""
        if not self._shared.room.acquire(blocking=False):
            raise Unavailable("the language model is busy; try again shortly", retry_after=5)
        try:
            return self._ask(question)
        except TokenBudgetExceeded:
            raise Unavailable("the store has used its language-model tokens of this day (UTC)", 3600) from None
        except NoUsableLlmAnswer as trouble:
            message = f"the language model returned no usable answer: {trouble.message}"
            raise Unavailable(message, max(5, int(trouble.pause))) from None
        except LlmChatCancelled:
            raise Unavailable("the server is stopping") from None
        finally:
            self._shared.room.release()

    @override
    def close(self) -> None:
        self._ledger.close()

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        """Do nothing: the ledger is rewritten after the purge of the store, which has waited for the deletion."""

    @override
    def _open(self) -> int:
        return self._ledger.sequence

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        # Continue where the journal begins, or at its end if it was lost; older changes are skipped.
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

    def _wake_if_due(self) -> None:
        if self._wake_at <= time.time():
            self.wake()

    # Change feed

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        changes = [*changes]
        new = [each for change in changes for each in self._select(change)]
        deleted = [node_id for change in changes for node_id in change.nodes_deleted]
        if new or deleted or sequence > self._queued_through:
            self._ledger.note(new, deleted, sequence)
            self._queued_through = sequence

    def _select(self, change: ChangeSet) -> Iterator[tuple[str, int]]:
        """Yield the memories of a commit to extract from, except those that extraction wrote."""
        edges = (*change.edges_created, *change.edges_updated)
        own = {edge.source for edge in edges if edge.relation_type == RELATION_EXTRACTED_FROM}
        for row in (*change.nodes_created, *change.nodes_updated):
            if row.id not in own and can_extract_facts_from_node(row) and self._is_selected(row):
                yield row.id, change.sequence

    def _is_selected(self, row: NodeRow) -> bool:
        setting = (
            None
            if row.attributes == EMPTY_ATTRIBUTES_JSON
            else decode_json(row.attributes, dict[str, msgspec.Raw]).get(EXTRACT_KEY)
        )
        asked = {b"true": True, b"false": False}.get(b"" if setting is None else bytes(setting))
        return self.store.description.memory.extract if asked is None else asked

    # Scheduling

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
        except LlmChatCancelled:
            raise ProjectionStepAbandoned from None
        except TokenBudgetExceeded:
            self._error = "the daily token budget is used; extraction continues tomorrow (UTC)"
            self._wake_at = self._resume_at = now + _BUDGET_POLL_SECONDS
        except NoUsableLlmAnswer as trouble:
            self._record_failure(waiting, trouble)
        except KgserveError as error:
            # Not the model's fault, for example a full disk or a store that is reopening.
            self._record_failure(waiting, NoUsableLlmAnswer(error.message, of_service=True), pausing=False)
        except Exception as error:
            log.exception("extraction_failed", store=self.store.name, error=type(error).__name__)
            self._record_failure(waiting, NoUsableLlmAnswer("internal error; see the log", of_service=False))
        else:
            self._shared.pause.end()
            self._complete(waiting, found)

    def _complete(self, waiting: QueuedMemory, found: ExtractionResult | None) -> None:
        with self._consistent:
            self._ledger.done(waiting)
            if found is None:
                return
            self._counts["extracted"] += 1
            self._counts["items"] += found.items
            self._counts["dropped"] += found.dropped
            self._error = None
        self._shared.counted.texts.add("ok")
        self._shared.counted.items.add("written", count=found.items)
        self._shared.counted.items.add("dropped", count=found.dropped)

    def _record_failure(self, waiting: QueuedMemory, trouble: NoUsableLlmAnswer, *, pausing: bool = True) -> None:
        self._shared.counted.texts.add("failed")
        tries, faults = waiting.tries + 1, waiting.faults + (not trouble.of_service)
        aside = faults >= MAX_UNUSABLE_ANSWERS or tries >= MAX_EXTRACTION_ATTEMPTS
        if aside:
            self._shared.counted.texts.add("set_aside")
        if trouble.of_service and pausing:
            self._shared.pause.lengthen(trouble.pause)
        due = time.time() + compute_extraction_retry_delay(tries)
        with self._consistent:
            self._counts["failures"] += 1
            self._ledger.fail(QueuedMemory(waiting.id, waiting.place, tries, faults), due, trouble.reason, aside=aside)
            self._error = trouble.message
        # The message of the service is not logged: it may repeat the text.
        log.warning("extraction_unanswered", store=self.store.name, tries=tries, set_aside=aside)

    def _ask(self, question: LlmJsonPrompt) -> ChatReply:
        """Ask within the budget; the estimated cost is charged before the request, whatever its outcome."""
        day, estimate = _today(), question.tokens
        limit = self._shared.daily_tokens
        if limit and self._ledger.spent(day) + estimate + MAX_LLM_ANSWER_TOKENS > limit:
            raise TokenBudgetExceeded
        self._spend(day, estimate)
        reply = self._shared.chat.ask(question, self._stopping.is_set)
        self._spend(day, max(reply.tokens - estimate, 0))
        return reply

    def _spend(self, day: str, tokens: int) -> None:
        self._ledger.add_tokens(day, tokens)
        self._shared.counted.tokens.add(count=tokens)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


class BackgroundLlmExtractor(SingleThreadProjectionWorker[OpenStore, StoreExtractionWorker]):
    """Background worker that sends the memories of every open store to a language model."""

    def __init__(self, chat: ChatClient, extract: ExtractFunction, daily_tokens: int) -> None:
        super().__init__(ProjectionThread("extractor"))
        self.counted = ExtractionCounts()
        self._shared = _SharedState(
            chat, extract, daily_tokens, _ServicePause(), self.counted, threading.Semaphore(MAX_WAITING_CALLERS)
        )

    @property
    def chat(self) -> ChatClient:
        """Client of the language model."""
        return self._shared.chat

    @override
    def halt(self) -> None:
        super().halt()
        self.chat.close()

    def of(self, store: OpenStore) -> StoreExtractionWorker:
        """Return the extraction of an open store. Raises Unavailable while it is closing."""
        return self._of(
            store, "extraction is not available for this store: it is closing, or its ledger cannot be read"
        )

    @override
    def close(self) -> None:
        self.chat.close()
        super().close()

    @override
    def _begun(self, store: OpenStore) -> StoreExtractionWorker | None:
        try:
            return StoreExtractionWorker(store, self._shared)
        except (sqlite3.Error, OSError) as error:
            # The store is served without extraction.
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


class QueuedMemory(NamedTuple):
    """A memory queued since the commit `place`; `faults` counts the failed `tries` with unusable answers."""

    id: str
    place: int
    tries: int
    faults: int


class ExtractionQueue:
    """Queue of texts for the model and account of tokens of one store, in a file next to the journal. Thread-safe.

    It is not a projection: failures and token counts cannot be rebuilt.
    """

    def __init__(self, path: Path, sequence: int) -> None:
        """Open the ledger; if it is missing or unreadable, create one that begins after `sequence`."""
        self._lock = threading.Lock()
        try:
            self._connection = _open_ledger(path, sequence)
        except sqlite3.DatabaseError as error:
            log.warning("extraction_ledger_renewed", path=path.name, reason=str(error))
            for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
                remove_path(each)
            self._connection = _open_ledger(path, sequence)

    def close(self) -> None:
        """Release the file."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.close()

    @contextmanager
    def _locked(self) -> Generator[sqlite3.Connection]:
        """Yield the connection under the lock. Raises Unavailable."""
        try:
            with self._lock:
                yield self._connection
        except sqlite3.Error as error:
            raise Unavailable(f"the queue of the language model cannot be read or written: {error}", 5) from error

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        """Yield the connection in a transaction."""
        with self._locked() as connection, connection:
            yield connection

    @property
    def sequence(self) -> int:
        """Commit up to which new memories were queued."""
        return self._read_number("SELECT sequence FROM cursor")

    def note(self, new: Iterable[tuple[str, int]], deleted: Iterable[str], sequence: int) -> None:
        """Queue memories with their commits, remove deleted ones, and advance to `sequence`."""
        with self._transaction() as transaction:
            transaction.executemany("DELETE FROM waiting WHERE id = ?", ((each,) for each in deleted))
            transaction.executemany(_INSERT_WAITING, new)
            transaction.execute("UPDATE cursor SET sequence = ?", (sequence,))

    def erase(self) -> None:
        """Rewrite the file without the ids of deleted memories, which may be names. Blocks. Raises Unavailable."""
        with self._locked() as connection:
            vacuum_database(connection)

    def next(self, now: float) -> QueuedMemory | None:
        """Return the next due memory, or None; `now` in seconds since 1970."""
        with self._locked() as connection:
            found = connection.execute(_SELECT_DUE, (now,)).fetchone()
        return None if found is None else QueuedMemory(*found)

    @property
    def next_due(self) -> float | None:
        """Time of the next attempt, or None if the queue is empty."""
        with self._locked() as connection:
            return connection.execute("SELECT min(due) FROM waiting WHERE aside = 0").fetchone()[0]

    def done(self, waiting: QueuedMemory) -> None:
        """Remove a memory from the queue, unless it was queued again meanwhile."""
        with self._transaction() as transaction:
            transaction.execute("DELETE FROM waiting WHERE id = ? AND place = ?", (waiting.id, waiting.place))

    def fail(self, waiting: QueuedMemory, due: float, error: str, *, aside: bool) -> None:
        """Schedule the next attempt of a memory at `due`, or set it aside."""
        values = (waiting.tries, waiting.faults, due, aside, error, waiting.id, waiting.place)
        with self._transaction() as transaction:
            transaction.execute(_UPDATE_FAILED, values)

    def requeue(self, ids: Collection[str] | None, sequence: int) -> int:
        """Queue memories again, or all failed ones with None; return their number."""
        with self._transaction() as transaction:
            if ids is None:
                return transaction.execute(_UPDATE_SET_ASIDE_DUE).rowcount
            transaction.executemany(_INSERT_WAITING, ((each, sequence) for each in ids))
            return len(ids)

    def counts(self) -> tuple[int, int]:
        """Return the numbers of queued and of failed memories."""
        with self._locked() as connection:
            found = dict(connection.execute("SELECT aside, count(*) FROM waiting GROUP BY aside").fetchall())
        return found.get(0, 0), found.get(1, 0)

    def list_failed(self, most: int) -> list[tuple[str, int, str]]:
        """Return the first failed memories: id, attempts, and error."""
        with self._locked() as connection:
            return connection.execute(_SELECT_SET_ASIDE, (most,)).fetchall()

    def spent(self, day: str) -> int:
        """Return the tokens used on a day."""
        with self._locked() as connection:
            found = connection.execute("SELECT tokens FROM spent WHERE day = ?", (day,)).fetchone()
        return 0 if found is None else found[0]

    def add_tokens(self, day: str, tokens: int) -> None:
        """Add tokens to the account of a day; earlier days are deleted."""
        with self._transaction() as transaction:
            transaction.execute("DELETE FROM spent WHERE day <> ?", (day,))
            transaction.execute(_INSERT_SPENT, (day, tokens))

    def _read_number(self, query: str) -> int:
        with self._locked() as connection:
            return connection.execute(query).fetchone()[0]


def _open_ledger(path: Path, sequence: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A power loss may undo the last entries. The journal is then read again, and marks in the rows prevent
        # duplicates.
        connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            connection.executescript(_LEDGER_SCHEMA)
            connection.execute("INSERT OR IGNORE INTO cursor VALUES (1, ?)", (sequence,))
        connection.execute("SELECT count(*) FROM waiting").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
