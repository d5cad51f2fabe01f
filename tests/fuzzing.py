"""Sizes of generated tests: few fixed examples in ordinary runs, many random ones in `make fuzz` and `make soak`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

Case = TypeVar("Case")

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)


def load_usual_profile() -> None:
    """Register the profiles and load the usual one, before hypothesis reads `--hypothesis-profile`."""
    settings.register_profile("thorough", max_examples=2_000, deadline=None)
    settings.register_profile("usual", derandomize=True, deadline=None)
    settings.load_profile("usual")


def is_thorough() -> bool:
    """Return True under the profile of `make fuzz` and `make soak`; available when test modules are imported."""
    return settings.get_current_profile_name() == "thorough"


def examples(few: int, steps: int = 50, times: int = 20) -> settings:
    """Return settings for ``few`` fixed examples; under `--hypothesis-profile thorough`, ``times`` as many random ones.

    ``steps`` is the number of rules per run of a state machine.
    """
    return settings(
        max_examples=few * times if is_thorough() else few,
        stateful_step_count=steps,
        derandomize=not is_thorough(),
        deadline=None,
        database=None,
        suppress_health_check=_SLOW,
    )


def some(every: Sequence[Case], *few: Case) -> Sequence[Case]:
    """Return these few cases; with `--hypothesis-profile thorough`, every case."""
    assert set(few) <= set(every)
    return every if is_thorough() else few
