"""Set-up of the test process, whose loss no other test would report."""

from __future__ import annotations

import httpx
from hypothesis import settings

from tests.fuzzing import is_thorough


def test_profiles_of_generated_tests_are_registered() -> None:
    assert settings.get_profile("thorough").max_examples > settings.get_profile("usual").max_examples
    assert is_thorough() or settings.default is settings.get_profile("usual")


def test_clients_share_a_tls_context() -> None:
    with httpx.Client() as first, httpx.Client() as second:
        contexts = [each._transport._pool._ssl_context for each in (first, second)]  # pyright: ignore[reportAttributeAccessIssue]
    assert contexts[0] is contexts[1]
