"""The numbers of a server and of its stores, collected from what is there, without opening or waiting."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, get_args

import msgspec

from kgserve.errors import KgserveError
from kgserve.graph.handle import Graphs
from kgserve.platform.access.authentication import Caller
from kgserve.platform.metrics.exposition import Family, counter, exposed, gauge, histogram, process_threads, single
from kgserve.platform.metrics.observation import Labels, NodeCounts, Telemetry
from kgserve.platform.version import __version__
from kgserve.projections.follower import BackgroundProjection
from kgserve.projections.history_follower import Historian
from kgserve.projections.indexer import Indexer
from kgserve.stores.cluster_api import ClusterStatus, NodeState
from kgserve.stores.store import OpenStore

if TYPE_CHECKING:
    from kgserve.memory.extraction.worker import Extractor
    from kgserve.projections.connectors.syncer import Syncers

_MICROSECONDS_IN_SECOND = 1e6
_REDIRECT_STATUS = 307
"""The status of what another node of the cluster is to answer, and of nothing else."""


class StoreLag(NamedTuple):
    """An open store with its views: by name how many commits each is behind, what is pending, and which have failed.

    ``engine`` are the bytes of its engine's file and log, None while the file is just being replaced.
    """

    store: OpenStore
    lags: Mapping[str, int]
    pending: Mapping[str, int]
    failing: Mapping[str, bool]
    engine: tuple[int, int] | None


def standings(graphs: Graphs, caller: Caller) -> list[StoreLag]:
    """The open stores that a caller sees, by name."""
    opened = sorted(graphs.pool.open_stores().items())
    return [standing_of(store, graphs.indexer, graphs.historian) for name, store in opened if caller.sees(name)]


def standing_of(store: OpenStore, indexer: Indexer | None, historian: Historian | None) -> StoreLag:
    """How the views of a store are; those that are turned off, or just closing, are left out."""
    views = list(_views(store, indexer, historian))
    last = store.state.sequence
    return StoreLag(
        store,
        {name: max(last - max(reached, 0), 0) for name, reached, _ in views},
        {name: max(getattr(view, "pending", 0), 0) for name, _, view in views},
        {name: view.error is not None for name, _, view in views},
        _engine_bytes(store),
    )


def most_behind(found: StoreLag) -> int | None:
    """The commits by which the last of a store's views is behind; None without views."""
    return max(found.lags.values(), default=None)


def _engine_bytes(store: OpenStore) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        return store.engine.bytes()
    return None


def _views(
    store: OpenStore, indexer: Indexer | None, historian: Historian | None
) -> Iterator[tuple[str, int, BackgroundProjection]]:
    """Each view by name, with the commit that it has seen."""
    with contextlib.suppress(KgserveError):
        if indexer is not None:
            indexes = indexer.of(store)
            for follower in filter(lambda each: each.is_kept, (indexes.keyword, indexes.vector)):
                yield follower.name, follower.reached, follower
            for past in (indexes.past_keyword, indexes.past_vector):
                if past.is_wanted:
                    yield past.name.replace(" ", "-"), past.sequence, past
    with contextlib.suppress(KgserveError):
        if historian is not None:
            history = historian.of(store)
            yield history.name, history.reached, history


class _Number(NamedTuple):
    name: str
    help: str
    of: Callable[[StoreLag], float | None]


_GAUGES = (
    _Number("nodes", "Nodes", lambda each: each.store.state.nodes),
    _Number("edges", "Edges", lambda each: each.store.state.edges),
    _Number("sequence", "Number of the last commit", lambda each: each.store.state.sequence),
    _Number("queued_writes", "Writes that wait", lambda each: each.store.queued),
    _Number("journal_bytes", "Size of the journal", lambda each: each.store.journal.bytes),
    _Number("engine_bytes", "Size of the engine's file", lambda each: each.engine and each.engine[0]),
    _Number("engine_log_bytes", "Size of the engine's log", lambda each: each.engine and each.engine[1]),
    _Number(
        "engine_processes", "1 while an engine's process has the store open", lambda each: each.store.engine.is_open
    ),
    _Number("engine_process_bytes", "Memory of that process", lambda each: each.store.engine.resident),
    _Number("engine_lag_commits", "Commits that the engine has not seen yet", lambda each: each.store.engine.lag),
    _Number("waiting_statements", "Statements that wait for the engine", lambda each: each.store.engine.waiting),
    _Number(
        "last_backup_timestamp_seconds",
        "When it was last backed up",
        lambda each: None if (time := each.store.layout.backed_up_at()) is None else time / _MICROSECONDS_IN_SECOND,
    ),
    _Number("pending_entities", "Entities that indexes are taking in", lambda each: sum(each.pending.values())),
    _Number(
        "last_check_timestamp_seconds",
        "When engine and journal were last compared",
        lambda each: each.store.last_check.time / _MICROSECONDS_IN_SECOND if each.store.last_check else None,
    ),
    _Number(
        "last_check_ok",
        "1 when they agreed",
        lambda each: float(each.store.last_check.ok) if each.store.last_check else None,
    ),
)
_COUNTERS = (
    _Number("writes", "Writes carried out since the store was opened", lambda each: each.store.count.writes),
    _Number("commits", "Commits since the store was opened", lambda each: each.store.count.commits),
    _Number("commit_failures", "Groups of writes that failed", lambda each: each.store.count.failures),
    _Number("commit_seconds", "Time of its commits", lambda each: each.store.count.seconds),
    _Number("engine_rebuilds", "Engine files built anew from the journal", lambda each: each.store.engine.rebuilds),
    _Number("engine_starts", "Engines' processes begun", lambda each: each.store.engine.begun),
    _Number("engine_losses", "Engines' processes that ended or hung", lambda each: each.store.engine.losses),
    _Number("compactions", "Compactions", lambda each: each.store.compactor.done),
)


def of_stores(found: list[StoreLag]) -> Iterator[Family]:
    """The numbers of each store, under the label ``store``."""
    for number in _GAUGES:
        yield gauge(f"kgserve_store_{number.name}", number.help, ("store",), _values(number, found))
    for number in _COUNTERS:
        yield counter(f"kgserve_store_{number.name}", number.help, ("store",), _values(number, found))
    lags = {(each.store.name, view): float(lag) for each in found for view, lag in each.lags.items()}
    yield gauge("kgserve_store_view_lag_commits", "Commits that a view has not seen yet", ("store", "view"), lags)
    failing = {(each.store.name, view): float(bad) for each in found for view, bad in each.failing.items()}
    yield gauge("kgserve_store_view_failing", "1 while a view's last step has failed", ("store", "view"), failing)


def _values(number: _Number, found: list[StoreLag]) -> dict[Labels, float]:
    return {(each.store.name,): value for each in found if (value := number.of(each)) is not None}


class QuotaUsage(Protocol):
    """How much of something all callers have at the moment, and how often one was refused more."""

    name: str
    refused: int

    @property
    def taken(self) -> int:
        """How much is taken."""
        ...


class TransportState(msgspec.Struct, frozen=True):
    """What only the transport knows: requests being worked on, open event streams and the most there may be.

    ``connections`` are open; what was ``refused`` on them, by code, was no request yet. ``certificate_ends`` is in
    seconds since 1970, 0 for one that is not valid, None without TLS. ``quotas`` are of
    what each caller may have some of at once.
    """

    requests: int
    streams: int
    most_streams: int
    connections: int = 0
    refused: Mapping[Labels, float] = {}
    certificate_ends: float | None = None
    quotas: Sequence[QuotaUsage] = ()


def metrics(graphs: Graphs, caller: Caller, moment: TransportState, accept: str) -> tuple[bytes, str]:
    """A scrape and its media type: Prometheus' text, or OpenMetrics' for who accepts it. No store is opened for it."""
    found = standings(graphs, caller)
    build = gauge("kgserve_build_info", "The version that runs", ("version",), {(__version__,): 1})
    families = [build, *of_stores(found)]
    if graphs.extractor is not None:
        families += _of_extractions(graphs.extractor, found)
    if graphs.syncers is not None:
        families += _of_syncers(graphs.syncers, found)
    if caller.sees_all:
        families += _of_server(graphs, found, moment)
    return exposed(families, accept, process=caller.sees_all)


def _of_server(graphs: Graphs, found: list[StoreLag], moment: TransportState) -> Iterator[Family]:
    pool, indexer = graphs.whole_pool, graphs.indexer
    observation = pool.observation
    yield from _of_requests(observation, moment)
    yield from _of_commits(observation)
    yield from _of_calls(observation)
    yield from _of_streams(observation, moment)
    yield from _of_shares(moment)
    if indexer is not None:
        yield from _of_embedding(indexer, found)
    if graphs.extractor is not None:
        yield from _of_extraction(graphs.extractor)
    yield single("kgserve_open_stores", "Stores that are open", "gauge", len(found))
    yield single("kgserve_open_stores_limit", "Stores kept open at most", "gauge", pool.settings.max_open_stores)
    yield from _of_disk(pool.data_dir)
    if pool.placement.counts is not None:
        yield from _of_node(pool.placement.status(look=False), pool.placement.counts)
        yield _elsewhere(observation, pool.placement.counts)
    if moment.certificate_ends is not None:
        text = "When the certificate ends; 0 for one that is not valid"
        yield single("kgserve_certificate_end_timestamp_seconds", text, "gauge", moment.certificate_ends)
    places = pool.engine_places
    yield single("kgserve_engine_processes", "Stores that have an engine's process", "gauge", places.taken)
    yield single("kgserve_engine_processes_limit", "Stores that have one at most", "gauge", places.most)
    checks = {(outcome,): 0.0 for outcome in ("agreed", "failed", "not_done")} | observation.checks.counts()
    yield counter("kgserve_checks", "Comparisons of engine and journal, by outcome", ("outcome",), checks)
    slow = {(kind,): 0.0 for kind in ("request", "tool", "commit", "query")} | observation.slow.counted.counts()
    yield counter("kgserve_slow_operations", "Operations that were logged as slow", ("kind",), slow)
    yield single("process_threads", "Threads, those of native libraries included", "gauge", process_threads())


def _of_node(status: ClusterStatus, counts: NodeCounts) -> Iterator[Family]:
    states = {(state,): 0.0 for state in get_args(NodeState)}
    for node in status.nodes:
        states[node.state,] += 1
    yield gauge("kgserve_cluster_nodes", "Nodes of the cluster as this one sees them", ("state",), states)
    yield single("kgserve_cluster_silent", "1 while this node is cut off from the servers", "gauge", status.silent)
    claimed = sum(node.stores for node in status.nodes if node.name == status.node)
    yield single("kgserve_cluster_stores", "Stores that this node claims", "gauge", claimed)
    once: Labels = ()
    taken, written = counts.takeovers.measured(), counts.appends.measured()
    yield histogram("kgserve_cluster_takeover_seconds", "Time to take a store over", (), {once: taken})
    yield histogram("kgserve_cluster_append_seconds", "Time of a commit in log and journal", (), {once: written})
    failures = {(reason,): 0.0 for reason in ("fenced", "unconfirmed", "failed")} | counts.failures.counts()
    yield counter("kgserve_cluster_append_failures", "Commits that the log did not take", ("reason",), failures)


def _elsewhere(observation: Telemetry, counts: NodeCounts) -> Family:
    sent = sum(dict(each.statuses).get(_REDIRECT_STATUS, 0) for each in dict(observation.requests.routes).values())
    values: dict[Labels, float] = {("sent",): sent, ("asked",): counts.asked.total()}
    text = "Requests that other nodes answer: by a client that was sent there, or asked by this one"
    return counter("kgserve_cluster_elsewhere", text, ("how",), values)


def _of_disk(folder: Path) -> Iterator[Family]:
    with contextlib.suppress(OSError):
        found = shutil.disk_usage(folder)
        yield single("kgserve_disk_free_bytes", "Room that is left on the disk of the data folder", "gauge", found.free)
        yield single("kgserve_disk_size_bytes", "Size of that disk", "gauge", found.total)


def _of_requests(observation: Telemetry, moment: TransportState) -> Iterator[Family]:
    routes = dict(observation.requests.routes)
    answered = {
        (route, method, str(status)): count
        for (route, method), each in routes.items()
        for status, count in dict(each.statuses).items()
    }
    seconds = {labels: each.seconds.measured() for labels, each in routes.items()}
    received = {labels: each.received for labels, each in routes.items()}
    sent = {labels: each.sent for labels, each in routes.items()}
    labels = ("route", "method")
    yield counter("kgserve_requests", "Requests that were answered", (*labels, "status"), answered)
    yield histogram("kgserve_request_duration_seconds", "Time to the last byte of an answer", labels, seconds)
    yield counter("kgserve_request_bytes", "Bytes of requests' bodies", labels, received)
    yield counter("kgserve_answer_bytes", "Bytes of answers' bodies", labels, sent)
    yield single(
        "kgserve_requests_in_progress", "Requests being worked on, open streams included", "gauge", moment.requests
    )
    yield single("kgserve_connections", "Connections that are open", "gauge", moment.connections)
    refused = observation.requests.refused.counts()
    for code, count in moment.refused.items():
        refused[code] = refused.get(code, 0) + count
    yield counter("kgserve_refusals", "Requests that were answered with an error, by its code", ("code",), refused)


def _of_commits(observation: Telemetry) -> Iterator[Family]:
    commits = observation.commits
    once: Labels = ()
    yield histogram(
        "kgserve_commit_group_writes", "Writes that shared one commit", (), {once: commits.groups.measured()}
    )
    yield histogram(
        "kgserve_commit_duration_seconds",
        "Time of a commit in the writing thread",
        (),
        {once: commits.seconds.measured()},
    )
    yield histogram(
        "kgserve_write_wait_seconds",
        "Time that a write waited in its store's queue",
        (),
        {once: commits.waits.measured()},
    )
    yield counter("kgserve_commit_phase_seconds", "Time of commits by phase", ("phase",), commits.phases.counts())


def _of_calls(observation: Telemetry) -> Iterator[Family]:
    yield counter("kgserve_tool_calls", "Calls of tools over MCP", ("tool", "outcome"), observation.calls.counts())
    seconds = observation.call_seconds.measured()
    yield histogram("kgserve_tool_duration_seconds", "Time of calls of tools over MCP", ("tool",), seconds)


def _of_streams(observation: Telemetry, moment: TransportState) -> Iterator[Family]:
    yield single("kgserve_event_streams", "Event streams that are open", "gauge", moment.streams)
    yield single("kgserve_event_streams_limit", "Event streams open at most", "gauge", moment.most_streams)
    dropped = {(reason,): 0.0 for reason in ("slow", "stalled", "failed")} | observation.streams_dropped.counts()
    yield counter(
        "kgserve_event_streams_dropped", "Event streams that the server ended, by reason", ("reason",), dropped
    )


def _of_shares(moment: TransportState) -> Iterator[Family]:
    taken = {(each.name,): float(each.taken) for each in moment.quotas}
    yield gauge("kgserve_shared", "What callers have at once of what each may have so much of", ("what",), taken)
    refused = {(each.name,): float(each.refused) for each in moment.quotas}
    yield counter("kgserve_share_refusals", "Requests for more of it than one caller may have", ("what",), refused)


def _of_embedding(indexer: Indexer, found: list[StoreLag]) -> Iterator[Family]:
    counted = indexer.embedding
    texts = {("ok",): 0.0, ("failed",): 0.0} | counted.texts.counts()
    yield counter("kgserve_embedded_texts", "Texts given to the embedding model, by outcome", ("outcome",), texts)
    yield single("kgserve_embedding_seconds", "Time spent embedding", "counter", counted.seconds.total())
    yield single("kgserve_embedding_texts_under_way", "Texts being embedded now", "gauge", counted.under_way)
    pending = sum(each.pending.get("vector", 0) for each in found)
    yield single("kgserve_embedding_queue", "Entities that wait for their vectors", "gauge", pending)
    with contextlib.suppress(Exception):
        yield single(
            "kgserve_embedding_degraded",
            "1 when vectors stand for words, not for meaning",
            "gauge",
            float(indexer.embedder.degraded),
        )


def _of_extraction(extractor: Extractor) -> Iterator[Family]:
    counted = extractor.counted
    texts = {(outcome,): 0.0 for outcome in ("ok", "failed", "set_aside")} | counted.texts.counts()
    yield counter("kgserve_extractions", "Texts given to the language model, by outcome", ("outcome",), texts)
    items = {(outcome,): 0.0 for outcome in ("written", "dropped")} | counted.items.counts()
    yield counter("kgserve_extracted_items", "What the language model has proposed, by outcome", ("outcome",), items)
    yield single("kgserve_llm_tokens", "Tokens of the language model", "counter", counted.tokens.total())


def _of_extractions(extractor: Extractor, found: list[StoreLag]) -> Iterator[Family]:
    """The numbers of each store, where a language model is set."""
    waiting: dict[Labels, float] = {}
    aside: dict[Labels, float] = {}
    for each in found:
        with contextlib.suppress(KgserveError):
            label = (each.store.name,)
            waiting[label], aside[label] = extractor.of(each.store).waiting
    yield gauge("kgserve_store_extraction_waiting", "Memories that wait for the language model", ("store",), waiting)
    yield gauge("kgserve_store_extraction_set_aside", "Memories that it could make nothing of", ("store",), aside)


def _of_syncers(syncers: Syncers, found: list[StoreLag]) -> Iterator[Family]:
    """How far those are who are told of each store's contents."""
    syncs = {(each.store.name, sync.name): sync for each in found for sync in syncers.of(each.store)}
    labels = ("store", "syncer")
    lags = {key: float(sync.lag) for key, sync in syncs.items()}
    yield gauge("kgserve_store_syncer_lag_commits", "Commits that a syncer was not told of yet", labels, lags)
    failing = {key: float(sync.error is not None) for key, sync in syncs.items()}
    yield gauge("kgserve_store_syncer_failing", "1 while a syncer does not take what it is told", labels, failing)
    sent = {key: float(sync.sent) for key, sync in syncs.items()}
    yield counter("kgserve_store_syncer_changes", "Contents and deletions that a syncer took", labels, sent)
