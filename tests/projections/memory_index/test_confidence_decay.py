from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kgserve.platform.timestamps import DAY_MICROSECONDS
from kgserve.projections.memory_index.confidence_decay import (
    MIN_DECAY_KEY,
    ConfidenceAtTime,
    MemoryHalfLives,
    boost_decayed_confidence,
    boost_undecayed_confidence,
    compute_decay_key_of_min_confidence,
    compute_decay_sort_key,
    decayed_confidence,
    get_later_confidence,
)

MONTH = 30 * DAY_MICROSECONDS
NOW = 1_750_000_000_000_000
CONFIDENCES = st.floats(0, 1)
MOMENTS = st.integers(-(10**16), 10**16)
HALF_LIVES = st.none() | st.integers(1000, 10_000 * DAY_MICROSECONDS)


@pytest.mark.parametrize(("days", "expected"), [(0, 1.0), (15, 0.7071), (30, 0.5), (60, 0.25), (129, 0.0508)])
def test_confidence_halves_in_each_half_life(days: int, expected: float) -> None:
    assert decayed_confidence(ConfidenceAtTime(1.0, NOW - days * DAY_MICROSECONDS), NOW, MONTH) == pytest.approx(
        expected, abs=1e-4
    )


def test_no_decay_without_a_half_life() -> None:
    assert decayed_confidence(ConfidenceAtTime(0.7, 0), NOW, None) == 0.7
    assert compute_decay_sort_key(ConfidenceAtTime(0.7, 0), None) >= compute_decay_key_of_min_confidence(0.7, NOW, None)
    assert compute_decay_sort_key(ConfidenceAtTime(0.7, 0), None) < compute_decay_key_of_min_confidence(0.71, NOW, None)


def test_an_access_adds_to_the_remainder_and_restarts_decay() -> None:
    used = boost_decayed_confidence(ConfidenceAtTime(1.0, NOW - 15 * DAY_MICROSECONDS), NOW, MONTH, 0.1)
    assert used.confidence == pytest.approx(0.8071, abs=1e-4)
    assert used.since == NOW
    assert boost_decayed_confidence(ConfidenceAtTime(0.95, NOW), NOW, MONTH, 0.1) == ConfidenceAtTime(1.0, NOW)
    assert boost_decayed_confidence(ConfidenceAtTime(0.0, NOW), NOW, MONTH, 0.0) == ConfidenceAtTime(0.0, NOW)


def test_reinforcement_restores_the_stored_confidence_and_adds() -> None:
    assert boost_undecayed_confidence(ConfidenceAtTime(0.5, NOW - 60 * DAY_MICROSECONDS), NOW, 0.1) == ConfidenceAtTime(
        0.6, NOW
    )
    assert boost_undecayed_confidence(
        ConfidenceAtTime(0.95, NOW - 60 * DAY_MICROSECONDS), NOW, 0.1
    ) == ConfidenceAtTime(1.0, NOW)
    assert boost_undecayed_confidence(ConfidenceAtTime(0.4, NOW + DAY_MICROSECONDS), NOW, 0.1) == ConfidenceAtTime(
        0.5, NOW + DAY_MICROSECONDS
    )


def test_monthly_accesses_keep_full_confidence() -> None:
    worth = ConfidenceAtTime(1.0, NOW)
    for month in range(1, 25):
        at = NOW + month * MONTH
        assert decayed_confidence(worth, at, MONTH) == pytest.approx(0.5)
        worth = boost_undecayed_confidence(worth, at, 0.1)
        assert worth == ConfidenceAtTime(1.0, at)


def test_setting_the_clock_back_does_not_raise_confidence() -> None:
    later = ConfidenceAtTime(0.4, NOW + DAY_MICROSECONDS)
    assert decayed_confidence(later, NOW, MONTH) == 0.4
    assert boost_decayed_confidence(later, NOW, MONTH, 0.1) == ConfidenceAtTime(0.5, NOW + DAY_MICROSECONDS)


def test_the_later_of_access_and_stored_confidence_counts() -> None:
    stored = ConfidenceAtTime(0.9, NOW)
    assert get_later_confidence(stored, None) == stored
    assert get_later_confidence(stored, ConfidenceAtTime(0.5, NOW)) == stored
    assert get_later_confidence(stored, ConfidenceAtTime(0.5, NOW + 1)) == ConfidenceAtTime(0.5, NOW + 1)


def test_half_life_by_type_or_default() -> None:
    own = MemoryHalfLives(30, {"preference": None, "error": 7.0})
    assert own.of("fact") == MONTH
    assert own.of("error") == 7 * DAY_MICROSECONDS
    assert own.of("preference") is None
    assert own._replace(days=None).of("fact") is None


def test_zero_confidence_passes_only_a_zero_minimum() -> None:
    assert (
        compute_decay_sort_key(ConfidenceAtTime(0.0, NOW), MONTH)
        == compute_decay_sort_key(ConfidenceAtTime(0.0, NOW), None)
        == MIN_DECAY_KEY
    )
    assert compute_decay_sort_key(ConfidenceAtTime(0.0, NOW), MONTH) >= compute_decay_key_of_min_confidence(
        0.0, NOW, MONTH
    )
    assert compute_decay_sort_key(ConfidenceAtTime(0.0, NOW), MONTH) < compute_decay_key_of_min_confidence(
        1e-300, NOW, 10_000 * DAY_MICROSECONDS
    )


def test_confidence_is_capped_at_one() -> None:
    assert decayed_confidence(ConfidenceAtTime(1.0000001, NOW), NOW, MONTH) == 1.0
    assert (
        compute_decay_sort_key(ConfidenceAtTime(1.0000001, NOW), MONTH)
        == compute_decay_sort_key(ConfidenceAtTime(1.0, NOW), MONTH)
        == NOW
    )


def test_full_confidence_equals_one_set_at_that_moment() -> None:
    assert compute_decay_sort_key(ConfidenceAtTime(1.0, NOW), MONTH) >= compute_decay_key_of_min_confidence(
        1.0, NOW, MONTH
    )
    assert compute_decay_sort_key(ConfidenceAtTime(1.0, NOW - 1), MONTH) < compute_decay_key_of_min_confidence(
        1.0, NOW, MONTH
    )


@given(CONFIDENCES, MOMENTS, HALF_LIVES, CONFIDENCES, MOMENTS)
def test_key_order_equals_order_of_decayed_confidence(
    confidence: float, since: int, half_life: int | None, minimum: float, now: int
) -> None:
    assume(since <= now)
    worth = ConfidenceAtTime(confidence, since)
    left = decayed_confidence(worth, now, half_life)
    # At the boundary, either result may occur: a microsecond is below the rounding error of both sides. Keys end at the
    # smallest confidence that they distinguish.
    assume(not math.isclose(left, minimum, rel_tol=1e-3, abs_tol=1e-200) or minimum == 0)
    assert (
        compute_decay_sort_key(worth, half_life) >= compute_decay_key_of_min_confidence(minimum, now, half_life)
    ) == (left >= minimum or minimum == 0)
