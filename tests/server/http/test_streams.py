"""Limits of event streams per caller. Numbers are rows of the abuse list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.platform.access.keys import bearer, given
from tests.server.http.serving import PATIENCE, RunningServer, accepted, refusal, serving
from tests.server.http.sockets import eventually

MOST = 2


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server behind a proxy that allows each client two streams, and five in total."""
    data = tmp_path_factory.mktemp("narrow") / "data"
    options = {"max_event_streams_per_key": MOST, "max_event_streams": 5, "trusted_proxies": "127.0.0.1"}
    options["insecure_no_auth"] = True
    with serving(data, **options, indexes=False) as running:
        accepted(httpx.post(f"{running.url}/api/memory/events/inject", json={"nodes": [{"id": "a", "type": "t"}]}))
        yield running


def check_two_each(served: RunningServer, one: dict[str, str], other: dict[str, str]) -> None:
    """Assert that a client gets two streams but not a third, and that a closed one frees its slot."""
    paths = ("/api/memory/events/events", "/api/events")
    with httpx.Client(base_url=served.url, timeout=PATIENCE) as client, ExitStack() as stack:

        def opened(headers: dict[str, str], path: str) -> httpx.Response:
            return stack.enter_context(client.stream("GET", path, headers=headers))

        streams = [opened(one, path) for path in paths]
        assert [stream.status_code for stream in streams] == [200] * MOST
        for path in paths:
            answer = client.get(path, headers=one)
            assert "of your event streams" in refusal(answer, 429)["detail"]
            assert int(answer.headers["retry-after"]) > 0
        assert opened(other, paths[0]).status_code == 200
        streams[0].close()
        eventually(lambda: opened(one, paths[0]).status_code == 200)


@pytest.mark.abuse(16)
def test_abuse_16_more_streams_of_an_address_than_allowed(narrow: RunningServer) -> None:
    """ABUSE 16: one more → 429; a closed one frees its slot."""
    check_two_each(narrow, {"x-forwarded-for": "192.0.2.1"}, {"x-forwarded-for": "192.0.2.2"})


@pytest.mark.abuse(16)
def test_abuse_16_more_streams_of_a_key_than_allowed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """ABUSE 16: a key counts from any address, and each key separately."""
    data = tmp_path_factory.mktemp("keyed") / "data"
    keys = [bearer(given(data, "write", name=name)) for name in ("one", "other")]
    with serving(data, max_event_streams_per_key=MOST, indexes=False) as keyed:
        batch = {"nodes": [{"id": "a", "type": "t"}]}
        accepted(httpx.post(f"{keyed.url}/api/memory/events/inject", json=batch, headers=keys[0]))
        check_two_each(keyed, *keys)


@pytest.mark.abuse(18)
def test_abuse_18_the_rate_of_a_key(tmp_path_factory: pytest.TempPathFactory) -> None:
    """ABUSE 18: per key, from any address; and wrong keys are limited."""
    data = tmp_path_factory.mktemp("rates") / "data"
    keys = [bearer(given(data, "read", name=name)) for name in ("one", "other")]
    with serving(data, rate_limit=0.01, indexes=False) as keyed, httpx.Client(base_url=keyed.url) as client:
        for key in keys:
            accepted(client.get("/api/memory", headers=key))
            answer = client.get("/api/memory", headers=key)
            refusal(answer, 429)
            assert int(answer.headers["retry-after"]) > 1
        statuses = [client.get("/api/memory", headers=bearer("kgs_wrong")).status_code for _ in range(100)]
        assert statuses[0] == 401
        assert set(statuses) == {401, 429}
