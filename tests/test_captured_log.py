"""A test captures only its own log lines, despite other tests' servers in the same process."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import structlog

from tests.captured_log import capture_log
from tests.cli.running import log_as_before

log = structlog.get_logger()


def in_another_thread(**line: Any) -> None:
    thread = threading.Thread(target=log.warning, args=("other",), kwargs=line)
    thread.start()
    thread.join()


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_lines_of_this_thread_are_collected_at_every_level(level: int) -> None:
    with log_as_before():
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
        before = structlog.get_config()
        with capture_log() as lines:
            in_another_thread()
            log.debug("own", store="hens")
        assert lines == [{"event": "own", "store": "hens", "log_level": "debug"}]
        assert structlog.get_config() == before


def test_lines_with_given_fields_are_collected_from_every_thread() -> None:
    with (
        capture_log(store={"hens", "ducks"}, event="other") as lines,
        structlog.contextvars.bound_contextvars(store="hens"),
    ):
        in_another_thread(store="geese")
        in_another_thread(store="ducks")
        log.info("other")
        log.info("own")
    assert [(line["store"], line["log_level"]) for line in lines] == [("ducks", "warning"), ("hens", "info")]
