"""Number of reader processes by load and by server, and the rate limits that they share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kgserve.platform.access.authentication import LOCAL_CALLER
from kgserve.platform.settings import Settings
from kgserve.server.http.rate_limits import RateLimiter
from kgserve.server.readers import reader_count_controller
from kgserve.server.readers.leased_rate_limiter import LeasedRateLimiter, RateLeaseMissing
from kgserve.server.readers.reader_count_controller import (
    BUSY_SECONDS_BEFORE_START,
    IDLE_SECONDS_BEFORE_END,
    ReaderCountController,
    count_allowed_readers,
)
from tests.captured_log import capture_log

BUSY, SLOW, IDLE = (0.9, 2_000), (0.2, 2_000), (0.9, 10)
"""Share of a core, and reads per second."""


def test_readers_start_one_by_one_under_load_and_end_together_when_idle() -> None:
    controller, count = ReaderCountController(2), 0

    def pass_seconds(load: tuple[float, int], seconds: int) -> int:
        nonlocal count
        for _ in range(seconds):
            count = controller.choose_count(count, *load)
        return count

    assert pass_seconds(BUSY, BUSY_SECONDS_BEFORE_START - 1) == 0
    assert pass_seconds(SLOW, 1) == 0
    assert pass_seconds(BUSY, 2) == 1
    assert [pass_seconds(BUSY, BUSY_SECONDS_BEFORE_START) for _ in range(3)] == [2, 2, 2]
    assert pass_seconds(IDLE, IDLE_SECONDS_BEFORE_END - 1) == 2
    assert pass_seconds(SLOW, 60) == 2
    assert pass_seconds(IDLE, IDLE_SECONDS_BEFORE_END) == 0


@pytest.mark.parametrize(
    ("options", "cores", "count", "level"),
    [
        ({}, 1, 0, "debug"),
        ({}, 2, 1, None),
        ({}, 16, 4, None),
        ({"tls_cert": Path("cert.pem")}, 2, 0, "debug"),
        ({"readers": "9"}, 1, 9, None),
        ({"readers": "0"}, 2, 0, None),
        ({"readers": "2", "cluster": "nats://host"}, 2, 0, "warning"),
        ({"readers": "2", "follow": "folder"}, 2, 0, "warning"),
        ({"readers": "2", "otel_endpoint": "http://host"}, 2, 0, "warning"),
    ],
)
def test_readers_are_off_where_unsupported(
    options: dict[str, Any], cores: int, count: int, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_count_controller, "_count_cores", lambda: cores)
    with capture_log() as lines:
        assert count_allowed_readers(Settings(**options)) == count
    assert [line["log_level"] for line in lines] == ([level] if level else [])


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("150000 100000", 1), ("300000 100000", 3), ("50000 100000", 0), (None, 8)]
)
def test_a_container_quota_counts_as_fewer_cores(
    quota: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(f"{quota}\n")
    assert reader_count_controller._count_cores(file) == cores


def test_leased_tokens_come_from_one_bucket() -> None:
    now = [0.0]
    server = RateLimiter(50, clock=lambda: now[0])
    requested = list[str]()
    readers = [LeasedRateLimiter(50, requested.append) for _ in range(2)]
    admitted = 0
    for number in range(400):
        reader = readers[number % 2]
        try:
            reader.admit(LOCAL_CALLER, "192.0.2.7")
            admitted += 1
        except RateLeaseMissing as missing:
            reader.grant(missing.bucket, server.take_lease(missing.bucket))
    assert admitted == 100
