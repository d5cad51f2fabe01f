"""Numbers with names, as a scrape shows them: written in Prometheus' format or OpenMetrics', and read back.

prometheus_client writes them, from a registry that lives for one scrape: several applications in a process share
nothing, and each caller is shown its own stores. What is read back is for a live view and for tests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from typing_extensions import override

from kgserve.platform.metrics.observation import Labels, Measured

_STAT = Path("/proc/self/stat")

Kind = Literal["counter", "gauge", "histogram"]


class Family(msgspec.Struct, frozen=True):
    """A metric: all values of one name. A counter's name is without its ``_total``."""

    name: str
    help: str
    kind: Kind
    labels: tuple[str, ...] = ()
    values: Mapping[Labels, float | Measured] = {}


def counter(name: str, text: str, labels: Iterable[str], values: Mapping[Labels, float]) -> Family:
    """What only grows while the server, or the store, stays up."""
    return Family(name, text, "counter", tuple(labels), values)


def gauge(name: str, text: str, labels: Iterable[str], values: Mapping[Labels, float]) -> Family:
    """What goes up and down."""
    return Family(name, text, "gauge", tuple(labels), values)


def histogram(name: str, text: str, labels: Iterable[str], values: Mapping[Labels, Measured]) -> Family:
    """How values are distributed."""
    return Family(name, text, "histogram", tuple(labels), values)


def single(name: str, text: str, kind: Literal["counter", "gauge"], value: float) -> Family:
    """One number without labels."""
    return Family(name, text, kind, (), {(): value})


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

    @override
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


class Sample(msgspec.Struct, frozen=True):
    """One line of a scrape."""

    labels: Mapping[str, str]
    value: float


class Scrape:
    """All samples of a scrape, by name."""

    def __init__(self, samples: Mapping[str, list[Sample]]) -> None:
        self.samples = samples

    @classmethod
    def read(cls, text: str) -> Scrape:
        """Read Prometheus' text format. Raises ValueError for text that is none."""
        samples: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(Sample(sample.labels, float(sample.value)))
        return cls(samples)

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples that bear these labels; None when there are none."""
        found = [sample.value for sample in self.samples.get(name, ()) if labels.items() <= sample.labels.items()]
        return sum(found) if found else None

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """The samples that bear these labels, added up by another label."""
        sums: dict[str, float] = {}
        for sample in self.samples.get(name, ()):
            if labels.items() <= sample.labels.items() and label in sample.labels:
                sums[sample.labels[label]] = sums.get(sample.labels[label], 0.0) + sample.value
        return sums


def quantile(share: float, buckets: Mapping[str, float]) -> float | None:
    """The value that a share of all lies below, from counts by upper bound as text, each with all below it.

    Between two bounds values are taken to be spread evenly, as Prometheus does. None when nothing was counted.
    """
    ordered = sorted((float(bound), count) for bound, count in buckets.items())
    total = ordered[-1][1] if ordered else 0
    if not total:
        return None
    wanted, before, lower = share * total, 0.0, 0.0
    for bound, count in ordered:
        if count >= wanted:
            inside = count - before
            return lower if bound == float("inf") else lower + (bound - lower) * ((wanted - before) / inside)
        before, lower = count, bound
    return lower
