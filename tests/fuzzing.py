"""How much is made up and tried: the same few among all other tests, many and others in `make fuzz` and `make soak`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

Case = TypeVar("Case")

settings.register_profile("thorough", max_examples=2_000, deadline=None)
settings.register_profile("usual", derandomize=True, deadline=None)
settings.load_profile("usual")

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)


def is_thorough() -> bool:
    """Whether the profile of `make fuzz` and `make soak` was chosen; known by the time that modules of tests load."""
    return settings.get_current_profile_name() == "thorough"


def examples(few: int, steps: int = 50, times: int = 20) -> settings:
    """The same few examples each time; with `--hypothesis-profile thorough` so many ``times`` more, others each time.

    ``steps`` is how many rules of a machine are followed in each.
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
    """These few cases; with `--hypothesis-profile thorough` every one."""
    assert set(few) <= set(every)
    return every if is_thorough() else few
