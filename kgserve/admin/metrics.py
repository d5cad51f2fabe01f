"""Metrics of a server and its stores, collected without opening stores or waiting."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, get_args

import msgspec

from kgserve.errors import KgserveError
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.platform.access.authentication import AuthenticatedCaller
from kgserve.platform.metrics.app_metrics_and_request_context import ClusterNodeMetrics, MetricLabels, Telemetry
from kgserve.platform.metrics.exposition import (
    MetricFamily,
    count_process_threads,
    create_counter_family,
    encode_metrics_scrape_response,
    gauge_family,
    histogram_family,
    single_value_metric_family,
)
from kgserve.platform.version import __version__
from kgserve.projections.background_projection import BackgroundProjection
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.stores.cluster_models import ClusterStatus, NodeState
from kgserve.stores.local_placement import StorePlacement
from kgserve.stores.open_store import OpenStore
from kgserve.stores.replication.leader_files import list_replication_statuses

if TYPE_CHECKING:
    from kgserve.memory.extraction.background_llm_extractor import BackgroundLlmExtractor
    from kgserve.projections.connectors.sink_delivery import SinkDeliveryObserver

_MICROSECONDS_IN_SECOND = 1e6
_REDIRECT_STATUS = 307
"""Status of redirects to another node of the cluster; used for nothing else."""


class StoreProjectionLag(NamedTuple):
    """Lag of an open store's projections: by name the lag in commits, pending items, and whether they fail.

    ``engine``: bytes of the engine's file and log, None while the file is being replaced.
    """

    store: OpenStore
    lags: Mapping[str, int]
    pending: Mapping[str, int]
    failing: Mapping[str, bool]
    engine: tuple[int, int] | None


def collect_projection_lags(graphs: CallerStoreHandles, caller: AuthenticatedCaller) -> list[StoreProjectionLag]:
    """Return how far the projections of each open store that the caller may read lag behind, by store name."""
    opened = sorted(graphs.pool.open_stores().items())
    return [
        measure_projection_lag(store, graphs.indexer, graphs.historian)
        for name, store in opened
        if caller.can_access(name)
    ]


def measure_projection_lag(
    store: OpenStore, indexer: TextIndexWorker | None, historian: HistoryWorker | None
) -> StoreProjectionLag:
    """Return the lag of a store's projections, except those that are turned off or closing."""
    views = list(_projections(store, indexer, historian))
    last = store.state.sequence
    return StoreProjectionLag(
        store,
        {name: max(last - max(reached, 0), 0) for name, reached, _ in views},
        {name: max(getattr(view, "pending", 0), 0) for name, _, view in views},
        {name: view.error is not None for name, _, view in views},
        _engine_bytes(store),
    )


def find_largest_projection_lag(found: StoreProjectionLag) -> int | None:
    """Return the largest lag of a store's projections in commits; None without projections."""
    return max(found.lags.values(), default=None)


def _engine_bytes(store: OpenStore) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        return store.engine.bytes()
    return None


def _projections(
    store: OpenStore, indexer: TextIndexWorker | None, historian: HistoryWorker | None
) -> Iterator[tuple[str, int, BackgroundProjection]]:
    """Yield each projection with its name and the commit it has applied."""
    with contextlib.suppress(KgserveError):
        if indexer is not None:
            indexes = indexer.of(store)
            for follower in filter(lambda each: each.is_enabled, (indexes.keyword, indexes.vector)):
                yield follower.name, follower.reached, follower
            for past in (indexes.past_keyword, indexes.past_vector):
                if past.is_wanted:
                    yield past.name.replace(" ", "-"), past.sequence, past
    with contextlib.suppress(KgserveError):
        if historian is not None:
            history = historian.of(store)
            yield history.name, history.reached, history


class _StoreMetric(NamedTuple):
    name: str
    help: str
    of: Callable[[StoreProjectionLag], float | None]


_GAUGES = (
    _StoreMetric("nodes", "Nodes", lambda each: each.store.state.nodes),
    _StoreMetric("edges", "Edges", lambda each: each.store.state.edges),
    _StoreMetric("sequence", "Sequence of the last commit", lambda each: each.store.state.sequence),
    _StoreMetric("queued_writes", "Writes waiting in the queue", lambda each: each.store.queued),
    _StoreMetric("journal_bytes", "Size of the journal", lambda each: each.store.journal.bytes),
    _StoreMetric("engine_bytes", "Size of the engine's file", lambda each: each.engine and each.engine[0]),
    _StoreMetric("engine_log_bytes", "Size of the engine's log", lambda each: each.engine and each.engine[1]),
    _StoreMetric(
        "engine_processes", "1 while an engine process has the store open", lambda each: each.store.engine.is_open
    ),
    _StoreMetric(
        "engine_process_bytes", "Memory of the engine process", lambda each: each.store.engine.private_memory_bytes
    ),
    _StoreMetric(
        "engine_lag_commits", "Commits that the engine has not applied yet", lambda each: each.store.engine.lag
    ),
    _StoreMetric("waiting_statements", "Statements waiting for the engine", lambda each: each.store.engine.waiting),
    _StoreMetric(
        "last_backup_timestamp_seconds",
        "Time of the last backup",
        lambda each: None if (time := each.store.layout.backed_up_at()) is None else time / _MICROSECONDS_IN_SECOND,
    ),
    _StoreMetric("pending_entities", "Entities waiting to be indexed", lambda each: sum(each.pending.values())),
    _StoreMetric(
        "last_check_timestamp_seconds",
        "Time of the last comparison of engine and journal",
        lambda each: each.store.last_check.time / _MICROSECONDS_IN_SECOND if each.store.last_check else None,
    ),
    _StoreMetric(
        "last_check_ok",
        "1 if engine and journal agreed in the last comparison",
        lambda each: float(each.store.last_check.ok) if each.store.last_check else None,
    ),
)
_COUNTERS = (
    _StoreMetric("writes", "Writes since the store was opened", lambda each: each.store.count.writes),
    _StoreMetric("commits", "Commits since the store was opened", lambda each: each.store.count.commits),
    _StoreMetric("commit_failures", "Groups of writes that failed", lambda each: each.store.count.failures),
    _StoreMetric("quota_refusals", "Writes that a quota refused", lambda each: each.store.quota.refusals),
    _StoreMetric("commit_seconds", "Total time of commits", lambda each: each.store.count.seconds),
    _StoreMetric("engine_rebuilds", "Engine files rebuilt from the journal", lambda each: each.store.engine.rebuilds),
    _StoreMetric("engine_starts", "Engine processes started", lambda each: each.store.engine.begun),
    _StoreMetric("engine_losses", "Engine processes that ended or hung", lambda each: each.store.engine.losses),
    _StoreMetric("compactions", "Compactions", lambda each: each.store.compactor.done),
)


def collect_store_metrics(found: list[StoreProjectionLag]) -> Iterator[MetricFamily]:
    """Yield the metrics of each store, with the label ``store``."""
    for number in _GAUGES:
        yield gauge_family(f"kgserve_store_{number.name}", number.help, ("store",), _values(number, found))
    for number in _COUNTERS:
        yield create_counter_family(f"kgserve_store_{number.name}", number.help, ("store",), _values(number, found))
    lags = {(each.store.name, view): float(lag) for each in found for view, lag in each.lags.items()}
    yield gauge_family(
        "kgserve_store_view_lag_commits", "Commits that a view has not applied yet", ("store", "view"), lags
    )
    failing = {(each.store.name, view): float(bad) for each in found for view, bad in each.failing.items()}
    yield gauge_family(
        "kgserve_store_view_failing", "1 while the last step of a view failed", ("store", "view"), failing
    )


def _values(number: _StoreMetric, found: list[StoreProjectionLag]) -> dict[MetricLabels, float]:
    return {(each.store.name,): value for each in found if (value := number.of(each)) is not None}


class QuotaUsage(Protocol):
    """Usage of one quota by all callers, and the number of refusals."""

    name: str
    refused: int

    @property
    def in_use(self) -> int:
        """Amount in use."""
        ...


class HttpTransportMetrics(msgspec.Struct, frozen=True):
    """Metrics known only to the HTTP transport: requests in progress, open event streams and their limit.

    - ``connections``: open connections.
    - ``readers``: running reader processes.
    - ``refused``: errors by code that were answered before a request could be read.
    - ``certificate_ends``: seconds since 1970, 0 for an invalid certificate, None without TLS.
    - ``quotas``: usage of the quotas per caller.
    """

    requests: int
    streams: int
    most_streams: int
    connections: int = 0
    readers: int = 0
    refused: Mapping[MetricLabels, float] = {}
    certificate_ends: float | None = None
    quotas: Sequence[QuotaUsage] = ()


def render_metrics(
    graphs: CallerStoreHandles, caller: AuthenticatedCaller, moment: HttpTransportMetrics, accept: str
) -> tuple[bytes, str]:
    """Return metrics and their media type: Prometheus text, or OpenMetrics if ``accept`` allows it.

    Opens no stores.
    """
    found = collect_projection_lags(graphs, caller)
    build = gauge_family("kgserve_build_info", "Running version", ("version",), {(__version__,): 1})
    families = [build, *collect_store_metrics(found)]
    if graphs.extractor is not None:
        families += _store_extraction_metrics(graphs.extractor, found)
    if graphs.syncers is not None:
        families += _syncer_metrics(graphs.syncers, found)
    if caller.can_access_all:
        families += _server_metrics(graphs, found, moment)
    return encode_metrics_scrape_response(families, accept, process=caller.can_access_all)


def _server_metrics(
    graphs: CallerStoreHandles, found: list[StoreProjectionLag], moment: HttpTransportMetrics
) -> Iterator[MetricFamily]:
    pool, indexer = graphs.whole_pool, graphs.indexer
    observation = pool.observation
    yield from _request_metrics(observation, moment)
    yield from _commit_metrics(observation)
    yield from _tool_call_metrics(observation)
    yield from _event_stream_metrics(observation, moment)
    yield from _quota_metrics(moment)
    if indexer is not None:
        yield from _embedding_metrics(indexer, found)
    if graphs.extractor is not None:
        yield from _extraction_metrics(graphs.extractor)
    yield single_value_metric_family("kgserve_open_stores", "Open stores", "gauge", len(found))
    yield single_value_metric_family(
        "kgserve_open_stores_limit", "Maximum open stores", "gauge", pool.settings.max_open_stores
    )
    yield from _disk_metrics(pool.data_dir)
    yield from _replication_metrics(pool.placement)
    if pool.placement.counts is not None:
        yield from _cluster_metrics(pool.placement.status(look=False), pool.placement.counts)
        yield _redirect_metric(observation, pool.placement.counts)
    if moment.certificate_ends is not None:
        text = "Expiry of the TLS certificate; 0 for an invalid one"
        yield single_value_metric_family(
            "kgserve_certificate_end_timestamp_seconds", text, "gauge", moment.certificate_ends
        )
    places = pool.engine_places
    yield single_value_metric_family(
        "kgserve_engine_processes", "Running engine processes", "gauge", places.slots_in_use
    )
    yield single_value_metric_family("kgserve_engine_processes_limit", "Maximum engine processes", "gauge", places.most)
    checks = {(outcome,): 0.0 for outcome in ("agreed", "failed", "not_done")} | observation.checks.counts()
    yield create_counter_family("kgserve_checks", "Comparisons of engine and journal, by outcome", ("outcome",), checks)
    slow = {(kind,): 0.0 for kind in ("request", "tool", "commit", "query")} | observation.slow.counted.counts()
    yield create_counter_family("kgserve_slow_operations", "Operations that were logged as slow", ("kind",), slow)
    yield single_value_metric_family(
        "process_threads", "Threads, including those of native libraries", "gauge", count_process_threads()
    )


def _cluster_metrics(status: ClusterStatus, counts: ClusterNodeMetrics) -> Iterator[MetricFamily]:
    states = {(state,): 0.0 for state in get_args(NodeState)}
    for node in status.nodes:
        states[node.state,] += 1
    yield gauge_family("kgserve_cluster_nodes", "Nodes of the cluster as seen by this node", ("state",), states)
    yield single_value_metric_family(
        "kgserve_cluster_silent", "1 while this node cannot reach the NATS servers", "gauge", status.silent
    )
    claimed = sum(node.stores for node in status.nodes if node.name == status.node)
    yield single_value_metric_family("kgserve_cluster_stores", "Stores that this node claims", "gauge", claimed)
    once: MetricLabels = ()
    taken, written = counts.takeovers.measured(), counts.appends.measured()
    yield histogram_family("kgserve_cluster_takeover_seconds", "Time to take over a store", (), {once: taken})
    yield histogram_family("kgserve_cluster_append_seconds", "Time of a commit in log and journal", (), {once: written})
    failures = {(reason,): 0.0 for reason in ("fenced", "unconfirmed", "failed")} | counts.failures.counts()
    yield create_counter_family(
        "kgserve_cluster_append_failures", "Commits that the log did not accept", ("reason",), failures
    )


def _redirect_metric(observation: Telemetry, counts: ClusterNodeMetrics) -> MetricFamily:
    sent = sum(dict(each.statuses).get(_REDIRECT_STATUS, 0) for each in dict(observation.requests.routes).values())
    values: dict[MetricLabels, float] = {("sent",): sent, ("asked",): counts.asked.total()}
    text = "Requests answered by other nodes: the client was redirected (sent), or this node forwarded it (asked)"
    return create_counter_family("kgserve_cluster_elsewhere", text, ("how",), values)


def _replication_metrics(placement: StorePlacement) -> Iterator[MetricFamily]:
    if placement.age is not None:
        text = "Time since the moment of which this follower has every commit"
        yield single_value_metric_family("kgserve_follower_age_seconds", text, "gauge", placement.age)
    if not (found := list_replication_statuses(placement.data_dir)):
        return
    ages = {(each.target,): time.time() - each.covered / _MICROSECONDS_IN_SECOND for each in found if each.covered}
    text = "Time since the moment of which a replication target has every commit"
    yield gauge_family("kgserve_replication_age_seconds", text, ("target",), ages)
    text = "Stores whose full copy is still to be shipped"
    pending = {(each.target,): float(each.pending) for each in found}
    yield gauge_family("kgserve_replication_pending_stores", text, ("target",), pending)


def _disk_metrics(folder: Path) -> Iterator[MetricFamily]:
    with contextlib.suppress(OSError):
        found = shutil.disk_usage(folder)
        yield single_value_metric_family(
            "kgserve_disk_free_bytes", "Free space on the disk of the data folder", "gauge", found.free
        )
        yield single_value_metric_family("kgserve_disk_size_bytes", "Size of that disk", "gauge", found.total)


def _request_metrics(observation: Telemetry, moment: HttpTransportMetrics) -> Iterator[MetricFamily]:
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
    yield create_counter_family("kgserve_requests", "Answered requests", (*labels, "status"), answered)
    yield histogram_family("kgserve_request_duration_seconds", "Time to the last byte of an answer", labels, seconds)
    yield create_counter_family("kgserve_request_bytes", "Bytes of request bodies", labels, received)
    yield create_counter_family("kgserve_answer_bytes", "Bytes of response bodies", labels, sent)
    yield single_value_metric_family(
        "kgserve_requests_in_progress", "Requests in progress, including open streams", "gauge", moment.requests
    )
    yield single_value_metric_family("kgserve_connections", "Open connections", "gauge", moment.connections)
    yield single_value_metric_family("kgserve_reader_processes", "Running reader processes", "gauge", moment.readers)
    refused = observation.requests.refused.counts()
    for code, count in moment.refused.items():
        refused[code] = refused.get(code, 0) + count
    yield create_counter_family(
        "kgserve_refusals", "Requests answered with an error, by error code", ("code",), refused
    )


def _commit_metrics(observation: Telemetry) -> Iterator[MetricFamily]:
    commits = observation.commits
    once: MetricLabels = ()
    yield histogram_family(
        "kgserve_commit_group_writes", "Writes that shared one commit", (), {once: commits.groups.measured()}
    )
    yield histogram_family(
        "kgserve_commit_duration_seconds",
        "Time of a commit in the writer thread",
        (),
        {once: commits.seconds.measured()},
    )
    yield histogram_family(
        "kgserve_write_wait_seconds",
        "Time that a write waited in its store's queue",
        (),
        {once: commits.waits.measured()},
    )
    yield create_counter_family(
        "kgserve_commit_phase_seconds", "Time of commits by phase", ("phase",), commits.phases.counts()
    )


def _tool_call_metrics(observation: Telemetry) -> Iterator[MetricFamily]:
    yield create_counter_family("kgserve_tool_calls", "MCP tool calls", ("tool", "outcome"), observation.calls.counts())
    seconds = observation.call_seconds.measured()
    yield histogram_family("kgserve_tool_duration_seconds", "Time of MCP tool calls", ("tool",), seconds)


def _event_stream_metrics(observation: Telemetry, moment: HttpTransportMetrics) -> Iterator[MetricFamily]:
    yield single_value_metric_family("kgserve_event_streams", "Open event streams", "gauge", moment.streams)
    yield single_value_metric_family(
        "kgserve_event_streams_limit", "Maximum open event streams", "gauge", moment.most_streams
    )
    dropped = {(reason,): 0.0 for reason in ("slow", "stalled", "failed")} | observation.streams_dropped.counts()
    yield create_counter_family(
        "kgserve_event_streams_dropped", "Event streams that the server ended, by reason", ("reason",), dropped
    )
    over = {(): float(observation.stores_over_quota)}
    yield create_counter_family("kgserve_store_limit_refusals", "New stores refused by --max-stores-per-key", (), over)


def _quota_metrics(moment: HttpTransportMetrics) -> Iterator[MetricFamily]:
    taken = {(each.name,): float(each.in_use) for each in moment.quotas}
    yield gauge_family("kgserve_shared", "Usage of quotas per caller, summed over callers", ("what",), taken)
    refused = {(each.name,): float(each.refused) for each in moment.quotas}
    yield create_counter_family(
        "kgserve_share_refusals", "Requests refused because a caller's quota was used up", ("what",), refused
    )


def _embedding_metrics(indexer: TextIndexWorker, found: list[StoreProjectionLag]) -> Iterator[MetricFamily]:
    counted = indexer.embedding
    texts = {("ok",): 0.0, ("failed",): 0.0} | counted.texts.counts()
    yield create_counter_family(
        "kgserve_embedded_texts", "Texts given to the embedding model, by outcome", ("outcome",), texts
    )
    yield single_value_metric_family(
        "kgserve_embedding_seconds", "Time spent embedding", "counter", counted.seconds.total()
    )
    yield single_value_metric_family(
        "kgserve_embedding_texts_under_way", "Texts being embedded", "gauge", counted.under_way
    )
    pending = sum(each.pending.get("vector", 0) for each in found)
    yield single_value_metric_family("kgserve_embedding_queue", "Entities waiting for their vectors", "gauge", pending)
    with contextlib.suppress(Exception):
        yield single_value_metric_family(
            "kgserve_embedding_degraded",
            "1 while vectors represent words instead of meaning",
            "gauge",
            float(indexer.embedder.degraded),
        )


def _extraction_metrics(extractor: BackgroundLlmExtractor) -> Iterator[MetricFamily]:
    counted = extractor.counted
    texts = {(outcome,): 0.0 for outcome in ("ok", "failed", "set_aside")} | counted.texts.counts()
    yield create_counter_family(
        "kgserve_extractions", "Texts given to the language model, by outcome", ("outcome",), texts
    )
    items = {(outcome,): 0.0 for outcome in ("written", "dropped")} | counted.items.counts()
    yield create_counter_family(
        "kgserve_extracted_items", "Proposals of the language model, by outcome", ("outcome",), items
    )
    yield single_value_metric_family(
        "kgserve_llm_tokens", "Tokens used by the language model", "counter", counted.tokens.total()
    )


def _store_extraction_metrics(
    extractor: BackgroundLlmExtractor, found: list[StoreProjectionLag]
) -> Iterator[MetricFamily]:
    """Yield the extraction metrics of each store, if a language model is set."""
    waiting: dict[MetricLabels, float] = {}
    aside: dict[MetricLabels, float] = {}
    for each in found:
        with contextlib.suppress(KgserveError):
            label = (each.store.name,)
            waiting[label], aside[label] = extractor.of(each.store).waiting
    yield gauge_family(
        "kgserve_store_extraction_waiting", "Memories waiting for the language model", ("store",), waiting
    )
    yield gauge_family(
        "kgserve_store_extraction_set_aside", "Memories whose extraction failed too often", ("store",), aside
    )


def _syncer_metrics(syncers: SinkDeliveryObserver, found: list[StoreProjectionLag]) -> Iterator[MetricFamily]:
    """Yield the progress of connectors for each store."""
    syncs = {(each.store.name, sync.name): sync for each in found for sync in syncers.of(each.store)}
    labels = ("store", "syncer")
    lags = {key: float(sync.lag) for key, sync in syncs.items()}
    yield gauge_family("kgserve_store_syncer_lag_commits", "Commits that were not sent to a syncer yet", labels, lags)
    failing = {key: float(sync.error is not None) for key, sync in syncs.items()}
    yield gauge_family("kgserve_store_syncer_failing", "1 while a syncer rejects what it is sent", labels, failing)
    sent = {key: float(sync.sent) for key, sync in syncs.items()}
    yield create_counter_family(
        "kgserve_store_syncer_changes", "Contents and deletions that a syncer accepted", labels, sent
    )
