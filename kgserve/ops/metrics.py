"""The numbers of a server, as a scrape asks for them: collected from what is there, without opening or waiting.

Whoever sees only some stores is shown the numbers of those, and nothing that adds up all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import msgspec

from kgserve import __version__
from kgserve.access.caller import Caller
from kgserve.metrics.exposition import exposed, process_threads
from kgserve.metrics.families import Family, counter, gauge, histogram, single
from kgserve.metrics.instruments import Labels
from kgserve.metrics.observation import Observation
from kgserve.ops.store_metrics import Standing, of_stores, standings
from kgserve.store.pool import StorePool
from kgserve.views.history import Historian
from kgserve.views.indexer import Indexer

_MICROSECONDS = 1e6


class Moment(msgspec.Struct, frozen=True):
    """What only the transport knows: requests being worked on, open event streams and the most there may be.

    ``connections`` are open; what was ``refused`` on them, by code, was no request yet.
    """

    requests: int
    streams: int
    most_streams: int
    connections: int = 0
    refused: Mapping[Labels, float] = {}


def metrics(
    pool: StorePool, indexer: Indexer | None, historian: Historian | None, caller: Caller, moment: Moment, accept: str
) -> tuple[bytes, str]:
    """A scrape and its media type: Prometheus' text, or OpenMetrics' for who accepts it. No store is opened for it."""
    found = standings(pool, indexer, historian, caller)
    build = gauge("kgserve_build_info", "The version that runs", ("version",), {(__version__,): 1})
    families = [build, *of_stores(found)]
    if caller.sees_all:
        families += _of_server(pool, indexer, found, moment)
    return exposed(families, accept, process=caller.sees_all)


def _of_server(pool: StorePool, indexer: Indexer | None, found: list[Standing], moment: Moment) -> Iterator[Family]:
    observation = pool.observation
    yield from _of_requests(observation, moment)
    yield from _of_commits(observation)
    yield from _of_calls(observation)
    yield from _of_streams(observation, moment)
    if indexer is not None:
        yield from _of_embedding(indexer, found)
    yield single("kgserve_open_stores", "Stores that are open", "gauge", len(found))
    yield single("kgserve_open_stores_limit", "Stores kept open at most", "gauge", pool.settings.max_open_stores)
    places = pool.engine_places
    yield single("kgserve_engine_processes", "Stores that have an engine's process", "gauge", places.taken)
    yield single("kgserve_engine_processes_limit", "Stores that have one at most", "gauge", places.most)
    checks = {(outcome,): 0.0 for outcome in ("agreed", "failed", "not_done")} | observation.checks.counts()
    yield counter("kgserve_checks", "Comparisons of engine and journal, by outcome", ("outcome",), checks)
    slow = {(kind,): 0.0 for kind in ("request", "tool", "commit", "query")} | observation.slow.counted.counts()
    yield counter("kgserve_slow_operations", "Operations that were logged as slow", ("kind",), slow)
    yield single("process_threads", "Threads, those of native libraries included", "gauge", process_threads())


def _of_requests(observation: Observation, moment: Moment) -> Iterator[Family]:
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


def _of_commits(observation: Observation) -> Iterator[Family]:
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


def _of_calls(observation: Observation) -> Iterator[Family]:
    yield counter("kgserve_tool_calls", "Calls of tools over MCP", ("tool", "outcome"), observation.calls.counts())
    seconds = observation.call_seconds.measured()
    yield histogram("kgserve_tool_duration_seconds", "Time of calls of tools over MCP", ("tool",), seconds)


def _of_streams(observation: Observation, moment: Moment) -> Iterator[Family]:
    yield single("kgserve_event_streams", "Event streams that are open", "gauge", moment.streams)
    yield single("kgserve_event_streams_limit", "Event streams open at most", "gauge", moment.most_streams)
    dropped = {(reason,): 0.0 for reason in ("slow", "stalled", "failed")} | observation.streams_dropped.counts()
    yield counter(
        "kgserve_event_streams_dropped", "Event streams that the server ended, by reason", ("reason",), dropped
    )


def _of_embedding(indexer: Indexer, found: list[Standing]) -> Iterator[Family]:
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
