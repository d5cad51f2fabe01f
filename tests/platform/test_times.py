from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_rfc3339_timestamp

LAST = (datetime.max.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@given(st.integers(-62_135_596_800_000_000, LAST))
def test_a_time_round_trips(microseconds: int) -> None:
    assert parse_rfc3339_timestamp(format_rfc3339_timestamp(microseconds)) == microseconds


@given(st.integers(0, LAST), st.integers(0, LAST))
def test_formatted_times_sort_chronologically(one: int, other: int) -> None:
    assert (format_rfc3339_timestamp(one) < format_rfc3339_timestamp(other)) == (one < other)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01 00:00:01+00:00", 1_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:30:00.5-00:30", 500_000),
        ("1970-01-01T00:00:00.123456Z", 123_456),
        ("1970-01-01T00:00:00.1234567Z", 123_456),
        ("2024-02-29T12:00:00Z", 1_709_208_000_000_000),
    ],
)
def test_accepted_forms_of_a_time(text: str, microseconds: int) -> None:
    assert parse_rfc3339_timestamp(text) == microseconds


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2025-07-15", "2025-07-15T12:00:00", "2025-13-01T00:00:00Z", "2025-02-29T00:00:00Z",
        "2025-07-15T24:00:01Z", "2025-07-15T12:00Z", "20250715T120000Z", "2025-07-15T12:00:00Z ",
        "2025-07-15T12:00:00Z\n", '2025-07-15T12:00:00"Z', "2025-07-15T12:00:00+0100", "٢٠٢٥-07-15T12:00:00Z",
    ],
)  # fmt: skip
def test_invalid_times_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_rfc3339_timestamp(text)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"])
def test_a_time_outside_the_utc_range_is_rejected(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        parse_rfc3339_timestamp(text)
