"""A scrape read back: what a live view and the tests make of the text."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families


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
