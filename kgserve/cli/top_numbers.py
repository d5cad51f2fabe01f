"""What ``kgserve top`` shows, worked out of two scrapes of the server's metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from kgserve.metrics.exposition import Scrape, quantile

Order = Literal["name", "nodes", "writes", "queue", "lag", "journal", "engine"]
ORDERS: tuple[Order, ...] = ("writes", "lag", "queue", "engine", "nodes", "journal", "name")

_LEAST_ERROR = 400
_ANSWERED = "kgserve_requests_total"
_OWN = "/metrics"


class Reading(msgspec.Struct, frozen=True):
    """A scrape, and when it was taken on the monotonic clock."""

    at: float
    scrape: Scrape


class StoreLine(msgspec.Struct, frozen=True):
    """An open store. ``writes`` is per second; ``lag`` is in commits; ``check`` is None while there was none.

    ``engine`` are the bytes of its engine's process, 0 while there is none; ``waiting`` are statements that wait
    for it, ``lost`` counts those that ended by themselves or hung.
    """

    name: str
    nodes: int
    edges: int
    sequence: int
    writes: float
    queue: int
    lag: int
    journal: int
    check: bool | None
    engine: int = 0
    waiting: int = 0
    lost: int = 0


class Overview(msgspec.Struct, frozen=True):
    """The server as a whole; None is what the key does not show. Rates are per second, sizes in bytes."""

    version: str
    stores: Sequence[StoreLine]
    requests: float | None
    errors: float | None
    p95: float | None
    writes: float
    in_progress: float | None
    streams: float | None
    memory: float | None
    cpu: float | None
    threads: float | None
    started: float | None
    slow: float | None
    engines: float | None
    most_engines: float | None
    engine_memory: float


def overview(before: Reading, now: Reading) -> Overview:
    """The present, with rates and quantiles of the time between two readings."""
    scrape = now.scrape
    stores = _stores(before, now)
    versions = scrape.by("version", "kgserve_build_info")
    return Overview(
        version=next(iter(versions), "?"),
        stores=stores,
        requests=_grown(before, now, _requests),
        errors=_grown(before, now, _errors),
        p95=_p95(before, now),
        writes=sum(store.writes for store in stores),
        in_progress=scrape.value("kgserve_requests_in_progress"),
        streams=scrape.value("kgserve_event_streams"),
        memory=scrape.value("process_resident_memory_bytes"),
        cpu=_rate(before, now, "process_cpu_seconds_total"),
        threads=scrape.value("process_threads"),
        started=scrape.value("process_start_time_seconds"),
        slow=scrape.value("kgserve_slow_operations_total"),
        engines=scrape.value("kgserve_engine_processes"),
        most_engines=scrape.value("kgserve_engine_processes_limit"),
        engine_memory=sum(store.engine for store in stores),
    )


def ordered(stores: Sequence[StoreLine], order: Order) -> list[StoreLine]:
    """Stores by name, or those with the most first."""
    by_name = sorted(stores, key=lambda store: store.name)
    if order == "name":
        return by_name
    return sorted(by_name, key=lambda store: getattr(store, order), reverse=True)


def _stores(before: Reading, now: Reading) -> list[StoreLine]:
    columns = {name: now.scrape.by("store", f"kgserve_store_{name}") for name in _PER_STORE}
    written = _rates(before, now, "kgserve_store_writes_total")
    checks = now.scrape.by("store", "kgserve_store_last_check_ok")
    lags: dict[str, float] = {}
    for sample in now.scrape.samples.get("kgserve_store_view_lag_commits", ()):
        name = sample.labels["store"]
        lags[name] = max(lags.get(name, 0.0), sample.value)
    return [
        StoreLine(
            name=name,
            nodes=int(columns["nodes"][name]),
            edges=int(columns["edges"].get(name, 0)),
            sequence=int(columns["sequence"].get(name, 0)),
            writes=written.get(name, 0.0),
            queue=int(columns["queued_writes"].get(name, 0)),
            lag=int(lags.get(name, 0)),
            journal=int(columns["journal_bytes"].get(name, 0)),
            check=bool(checks[name]) if name in checks else None,
            engine=int(columns["engine_process_bytes"].get(name, 0)),
            waiting=int(columns["waiting_statements"].get(name, 0)),
            lost=int(columns["engine_losses_total"].get(name, 0)),
        )
        for name in columns["nodes"]
    ]


_PER_STORE = (
    "nodes",
    "edges",
    "sequence",
    "queued_writes",
    "journal_bytes",
    "engine_process_bytes",
    "waiting_statements",
    "engine_losses_total",
)


def _rates(before: Reading, now: Reading, name: str) -> dict[str, float]:
    seconds = max(now.at - before.at, 1e-3)
    earlier = before.scrape.by("store", name)
    # What is less than before has begun anew: the store was closed and opened, or the server was.
    return {
        store: max(value - earlier.get(store, value), 0.0) / seconds
        for store, value in now.scrape.by("store", name).items()
    }


def _rate(before: Reading, now: Reading, name: str) -> float | None:
    return _grown(before, now, lambda scrape: scrape.value(name))


def _grown(before: Reading, now: Reading, count: Callable[[Scrape], float | None]) -> float | None:
    """By how much a count has grown per second."""
    value = count(now.scrape)
    if value is None:
        return None
    return max(value - (count(before.scrape) or 0.0), 0.0) / max(now.at - before.at, 1e-3)


def _requests(scrape: Scrape) -> float | None:
    """Requests, but for those that ask for just this."""
    total = scrape.value(_ANSWERED)
    return None if total is None else total - (scrape.value(_ANSWERED, route=_OWN) or 0.0)


def _errors(scrape: Scrape) -> float | None:
    if _ANSWERED not in scrape.samples:
        return None
    by_status = scrape.by("status", _ANSWERED)
    return sum(count for status, count in by_status.items() if int(status) >= _LEAST_ERROR)


def _p95(before: Reading, now: Reading) -> float | None:
    """In seconds, of the requests between two readings."""
    counts, earlier = _buckets(now.scrape), _buckets(before.scrape)
    grown = {bound: count - earlier.get(bound, 0.0) for bound, count in counts.items()}
    return quantile(0.95, grown) if all(count >= 0 for count in grown.values()) else None


def _buckets(scrape: Scrape) -> dict[str, float]:
    """Requests by the time they took at most, but for those that ask for just this."""
    name = "kgserve_request_duration_seconds_bucket"
    own = scrape.by("le", name, route=_OWN)
    return {bound: count - own.get(bound, 0.0) for bound, count in scrape.by("le", name).items()}
