from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from typing import TextIO

import pytest
import structlog

from kgserve.platform import structured_log
from tests.cli.running import log_as_before

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
OWN = re.compile(r"request_id\S{0,2}[ =]\S?own-|of these tests")
WHO = structured_log.RequestCallerIdentity('a key\'s "name"', "::1")
PATHS = ("/health", "/api/memory/a/nodes/b%20c", "/a=b", "/'\"\\", "/kgs_abcdefgh_…", "/{}@1{0}", "/%s")


@pytest.fixture(autouse=True)
def _as_before(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    with log_as_before():
        yield


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the log lines of these tests; other tests' servers in this process write to the same stream."""
    return [line for line in TIME.sub("TIME", capsys.readouterr().err).splitlines() if OWN.search(line)]


@pytest.mark.parametrize("format_", ["json", "console"])
@pytest.mark.parametrize("path", PATHS)
def test_access_log_lines_equal_structlogs_output(
    capsys: pytest.CaptureFixture[str], format_: structured_log.LogFormat, path: str
) -> None:
    async def write() -> None:
        structured_log.log_request("own-1", WHO, "GET", path, 200, 0.25, 12)
        with structlog.contextvars.bound_contextvars(request_id="own-1"):
            structlog.get_logger().info(
                "request",
                method="GET",
                path=path,
                caller=WHO.caller,
                address=WHO.address,
                status=200,
                ms=0.25,
                bytes=12,
            )
            structured_log.log_request("own-1", WHO, "GET", path, None, 0.25, 12)

    structured_log.configure_logging(format_, "info")
    asyncio.run(write())
    short, usual, cut_off = lines(capsys)
    assert short == usual
    assert cut_off == short.replace("200", "null" if format_ == "json" else "None")


def test_log_lines_keep_their_order_and_none_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    async def write() -> None:
        for number in (1, 2):
            structured_log.log_request(f"own-{number}", WHO, "GET", "/", 200, 1.0, 1)
        assert lines(capsys) == []
        structlog.get_logger().warning("of these tests")
        structured_log.log_request("own-3", WHO, "GET", "/", 200, 1.0, 1)

    structured_log.configure_logging("json", "info")
    asyncio.run(write())
    structured_log.flush_buffered_log_lines()
    found = [event["event"] + event.get("request_id", "") for event in map(json.loads, lines(capsys))]
    assert found == ["requestown-1", "requestown-2", "of these tests", "requestown-3"]


def test_buffered_log_lines_are_flushed_automatically(capsys: pytest.CaptureFixture[str]) -> None:
    async def write() -> None:
        structured_log.log_request("own-1", WHO, "GET", "/", 200, 1.0, 1)
        await asyncio.sleep(2 * structured_log.LOG_FLUSH_DELAY_SECONDS)

    structured_log.configure_logging("json", "info")
    asyncio.run(write())
    assert '"request_id": "own-1"' in capsys.readouterr().err


def test_log_lines_below_the_level_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    async def write() -> None:
        structured_log.log_request("own-1", WHO, "GET", "/", 200, 1.0, 1)

    structured_log.configure_logging("json", "warning")
    asyncio.run(write())
    structured_log.flush_buffered_log_lines()
    assert lines(capsys) == []


def _open_broken(fault: str) -> TextIO:
    """Open a stream that takes no lines."""
    reader, writer = os.pipe()
    os.close(reader)
    if fault == "full-disk":
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer)
        os.close(full)
    stream = os.fdopen(writer, "w", encoding="utf-8")
    if fault == "closed":
        stream.close()
    return stream


@pytest.mark.parametrize("fault", ["closed", "no-reader", "full-disk"])
def test_a_stream_that_takes_no_lines_fails_no_request(fault: str) -> None:
    stream = _open_broken(fault)
    with pytest.raises((OSError, ValueError)):
        print("a line", file=stream, flush=True)

    async def write() -> None:
        structured_log.log_request("own-1", WHO, "GET", "/health", 200, 0.25, 12)
        structlog.get_logger().info("of these tests")
        structured_log.flush_buffered_log_lines()

    with redirect_stderr(stream):
        structured_log.configure_logging("json", "info")
        asyncio.run(write())
    with suppress(OSError):
        stream.close()
