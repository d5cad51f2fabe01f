"""Families as text, in Prometheus' format or OpenMetrics', whichever a scraper accepts.

prometheus_client writes it, from a registry that lives for one scrape: several applications in a process share nothing,
and each caller is shown its own stores.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kgserve.metrics.families import Family
from kgserve.metrics.instruments import Measured

_STAT = Path("/proc/self/stat")


def exposed(families: Iterable[Family], accept: str, *, process: bool) -> tuple[bytes, str]:
    """A scrape's answer and its media type; with ``process`` also memory, files, threads and start of the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    if process:
        ProcessCollector(registry=registry)
    encode, media_type = choose_encoder(accept)
    return cast("Any", encode)(registry), media_type


def process_threads() -> int:
    """Threads of this process, those of native libraries included where the system tells."""
    try:
        # After the process's name, which may hold blanks, the 18th field: proc(5).
        return int(_STAT.read_text().rpartition(")")[2].split()[17])
    except (OSError, ValueError, IndexError):
        return threading.active_count()


class _Collected(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._families)

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not collect."""
        return iter(())


def _metric(family: Family) -> Metric:
    metric = Metric(family.name, family.help, family.kind)
    add = metric.add_sample
    name = family.name + "_total" if family.kind == "counter" else family.name
    for values, value in family.values.items():
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(value, Measured):
            _add_buckets(metric, labels, value)
        else:
            add(name, labels, value)
    return metric


def _add_buckets(metric: Metric, labels: dict[str, str], measured: Measured) -> None:
    count = 0
    for bound, here in zip((*measured.bounds, float("inf")), measured.counts, strict=True):
        count += here
        le = "+Inf" if bound == float("inf") else str(bound)
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": le}, count)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, measured.sum)
