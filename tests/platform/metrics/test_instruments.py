from __future__ import annotations

import threading

import pytest

from kgserve.platform.metrics.app_metrics_and_request_context import Histogram, LabeledCounter, LabeledHistograms
from kgserve.platform.metrics.exposition import (
    MetricsScrape,
    count_process_threads,
    create_counter_family,
    encode_metrics_scrape_response,
    estimate_histogram_quantile,
    gauge_family,
    histogram_family,
)

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def test_a_counter_by_labels_is_thread_safe() -> None:
    tally = LabeledCounter()
    threads = [threading.Thread(target=lambda: [tally.add("a", "x") for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.add("b", count=0.5)
    assert tally.counts() == {("a", "x"): 4000, ("b",): 0.5}
    assert tally.total() == 4000.5


def test_histogram_bounds_are_inclusive() -> None:
    measured = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        measured.observe(value)
    assert measured.measured().counts == (2, 2, 1)
    assert measured.measured().sum == 12.0


def test_exposed_metrics_can_be_parsed() -> None:
    seconds = LabeledHistograms((0.1, 1.0))
    seconds.observe("/a", value=0.05)
    seconds.observe("/a", value=5.0)
    families = [
        create_counter_family("kgserve_things", "Things", ("name",), {('say "so"\n\\',): 3}),
        gauge_family("kgserve_level", "Level", (), {(): 1.5}),
        histogram_family("kgserve_seconds", "Seconds", ("route",), seconds.measured()),
    ]
    body, media_type = encode_metrics_scrape_response(families, "", process=False)
    scrape = MetricsScrape.read(body.decode())
    assert media_type.startswith("text/plain")
    assert scrape.by("name", "kgserve_things_total") == {'say "so"\n\\': 3}
    assert scrape.value("kgserve_level") == 1.5
    assert scrape.by("le", "kgserve_seconds_bucket", route="/a") == {"0.1": 1, "1.0": 1, "+Inf": 2}
    assert scrape.value("kgserve_seconds_count", route="/a") == 2
    assert scrape.value("kgserve_seconds_sum") == pytest.approx(5.05)
    assert scrape.value("kgserve_nothing") is None


def test_openmetrics_format_is_negotiated() -> None:
    families = [create_counter_family("kgserve_things", "Things", (), {(): 3})]
    body, media_type = encode_metrics_scrape_response(families, OPENMETRICS, process=False)
    assert media_type.startswith("application/openmetrics-text")
    assert body.endswith(b"kgserve_things_total 3.0\n# EOF\n")


def test_process_metrics_are_included_on_request() -> None:
    shown, _ = encode_metrics_scrape_response([], "", process=True)
    hidden, _ = encode_metrics_scrape_response([], "", process=False)
    assert (MetricsScrape.read(shown.decode()).value("process_resident_memory_bytes") or 0) > 1 << 20
    assert hidden.strip() == b""


def test_process_threads_are_counted() -> None:
    count, end = 8, threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        assert count_process_threads() > count
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_quantiles_match_prometheus() -> None:
    assert estimate_histogram_quantile(0.95, {}) is None
    assert estimate_histogram_quantile(0.95, {"0.1": 0, "+Inf": 0}) is None
    assert estimate_histogram_quantile(0.5, {"1.0": 10, "2.0": 20, "+Inf": 20}) == pytest.approx(1.0)
    assert estimate_histogram_quantile(0.75, {"1.0": 10, "2.0": 20, "+Inf": 20}) == pytest.approx(1.5)
    assert estimate_histogram_quantile(0.99, {"1.0": 1, "+Inf": 100}) == pytest.approx(1.0)
