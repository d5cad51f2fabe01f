"""How much is made up: the same few inputs and requests among all other tests, many and others in `make fuzz`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("thorough", max_examples=2_000, deadline=None)
settings.register_profile("usual", derandomize=True, deadline=None)
settings.load_profile("usual")

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)


def examples(few: int) -> settings:
    """The same few examples each time; with `--hypothesis-profile thorough` twenty times as many, others each time."""
    thorough = settings.get_current_profile_name() == "thorough"
    return settings(
        max_examples=few * 20 if thorough else few,
        derandomize=not thorough,
        deadline=None,
        suppress_health_check=_SLOW,
    )
