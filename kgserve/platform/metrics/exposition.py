"""Metric families: exposition in the Prometheus and OpenMetrics formats, and parsing of scrapes.

prometheus_client encodes them from a registry that lives for one scrape. Several applications in a process therefore
share nothing, and each caller sees only its own stores. Parsing serves the live view and tests.
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

from kgserve.platform.metrics.app_metrics_and_request_context import HistogramSnapshot, MetricLabels

_STAT = Path("/proc/self/stat")

MetricKind = Literal["counter", "gauge", "histogram"]


class MetricFamily(msgspec.Struct, frozen=True):
    """A metric with all its values. The name of a counter omits the suffix ``_total``."""

    name: str
    help: str
    kind: MetricKind
    labels: tuple[str, ...] = ()
    values: Mapping[MetricLabels, float | HistogramSnapshot] = {}


def create_counter_family(
    name: str, text: str, labels: Iterable[str], values: Mapping[MetricLabels, float]
) -> MetricFamily:
    """Create a counter, which only grows while the server or store is up."""
    return MetricFamily(name, text, "counter", tuple(labels), values)


def gauge_family(name: str, text: str, labels: Iterable[str], values: Mapping[MetricLabels, float]) -> MetricFamily:
    """Create a gauge, which goes up and down."""
    return MetricFamily(name, text, "gauge", tuple(labels), values)


def histogram_family(
    name: str, text: str, labels: Iterable[str], values: Mapping[MetricLabels, HistogramSnapshot]
) -> MetricFamily:
    """Create a histogram of a distribution."""
    return MetricFamily(name, text, "histogram", tuple(labels), values)


def single_value_metric_family(name: str, text: str, kind: Literal["counter", "gauge"], value: float) -> MetricFamily:
    """Create a metric with one value without labels."""
    return MetricFamily(name, text, kind, (), {(): value})


def encode_metrics_scrape_response(
    families: Iterable[MetricFamily], accept: str, *, process: bool
) -> tuple[bytes, str]:
    """Return the body of a scrape response and its media type; with ``process``, process metrics are included."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FamilyCollector(families))
    if process:
        ProcessCollector(registry=registry)
    encode, media_type = choose_encoder(accept)
    return cast("Any", encode)(registry), media_type


def count_process_threads() -> int:
    """Return the number of threads of this process, including those of native libraries where available."""
    try:
        # The 18th field after the process name, which may contain spaces: proc(5).
        return int(_STAT.read_text().rpartition(")")[2].split()[17])
    except (OSError, ValueError, IndexError):
        return threading.active_count()


class _FamilyCollector(Collector):
    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self._families = families

    @override
    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._families)

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering does not collect."""
        return iter(())


def _metric(family: MetricFamily) -> Metric:
    metric = Metric(family.name, family.help, family.kind)
    add = metric.add_sample
    name = family.name + "_total" if family.kind == "counter" else family.name
    for values, value in family.values.items():
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(value, HistogramSnapshot):
            _add_buckets(metric, labels, value)
        else:
            add(name, labels, value)
    return metric


def _add_buckets(metric: Metric, labels: dict[str, str], measured: HistogramSnapshot) -> None:
    count = 0
    for bound, here in zip((*measured.bounds, float("inf")), measured.counts, strict=True):
        count += here
        le = "+Inf" if bound == float("inf") else str(bound)
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": le}, count)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, measured.sum)


class MetricSample(msgspec.Struct, frozen=True):
    """One line of a scrape."""

    labels: Mapping[str, str]
    value: float


class MetricsScrape:
    """Samples of a scrape, by metric name."""

    def __init__(self, samples: Mapping[str, list[MetricSample]]) -> None:
        self.samples = samples

    @classmethod
    def read(cls, text: str) -> MetricsScrape:
        """Parse Prometheus' text format. Raises ValueError if the text is invalid."""
        samples: dict[str, list[MetricSample]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(MetricSample(sample.labels, float(sample.value)))
        return cls(samples)

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples with these labels, or None if no sample matches."""
        found = [sample.value for sample in self.samples.get(name, ()) if labels.items() <= sample.labels.items()]
        return sum(found) if found else None

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the samples with these labels, summed by another label."""
        sums: dict[str, float] = {}
        for sample in self.samples.get(name, ()):
            if labels.items() <= sample.labels.items() and label in sample.labels:
                sums[sample.labels[label]] = sums.get(sample.labels[label], 0.0) + sample.value
        return sums


def estimate_histogram_quantile(share: float, buckets: Mapping[str, float]) -> float | None:
    """Return an estimated quantile from cumulative counts by upper bound, or None if the histogram is empty.

    Values are assumed to be spread evenly within a bucket, as Prometheus does.
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
