"""Rate limits, and identification of clients. Numbers are rows of the abuse list."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kgserve.errors import InvalidInput, RateLimited
from kgserve.platform.access.authentication import LOCAL_CALLER, AuthenticatedCaller
from kgserve.platform.network_addresses import network_counted_as_one_client
from kgserve.platform.settings import Settings
from kgserve.server.http.rate_limits import FAILURE_BURST, RateLimiter, TokenBuckets
from kgserve.server.http.trusted_proxies import TrustedProxies
from tests.platform.access.keys import bearer, given
from tests.server.http.serving import PATIENCE, RunningServer, accepted, refusal, serving

KEYED = AuthenticatedCaller("robot", "read", key_id="k1")
FAR = "192.0.2.7"


class Clock:
    """Clock that is moved by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def admitted(rates: RateLimiter, caller: AuthenticatedCaller, address: str, times: int) -> int:
    """Return how many of ``count`` requests are admitted."""
    count = 0
    for _ in range(times):
        with contextlib.suppress(RateLimited):
            rates.admit(caller, address)
            count += 1
    return count


@pytest.mark.abuse(18)
def test_abuse_18_a_burst_and_then_the_rate() -> None:
    """ABUSE 18: a burst of twice the rate, then the rate."""
    clock = Clock()
    rates = RateLimiter(5, clock)
    assert admitted(rates, KEYED, FAR, 20) == 10
    clock.now += 1
    assert admitted(rates, KEYED, FAR, 20) == 5
    clock.now += 1000
    assert admitted(rates, KEYED, FAR, 20) == 10


@pytest.mark.abuse(18)
def test_abuse_18_each_caller_has_its_own_rate() -> None:
    """ABUSE 18: per key from any address, and per address without a key."""
    rates = RateLimiter(5, Clock())
    assert admitted(rates, KEYED, FAR, 20) == 10
    assert admitted(rates, KEYED, "192.0.2.8", 20) == 0
    assert admitted(rates, AuthenticatedCaller("other", "read", key_id="k2"), FAR, 20) == 10
    assert admitted(rates, LOCAL_CALLER, FAR, 20) == 10
    assert admitted(rates, LOCAL_CALLER, "192.0.2.8", 20) == 10


@pytest.mark.abuse(18)
def test_abuse_18_no_limit() -> None:
    """ABUSE 18: 0 means no limit."""
    assert admitted(RateLimiter(0, Clock()), KEYED, FAR, 5000) == 5000


@pytest.mark.abuse(18)
def test_abuse_18_memory_is_bounded() -> None:
    """ABUSE 18: a client that changes addresses gets no more memory."""
    buckets = TokenBuckets(1, 1, Clock(), most=100)
    for number in range(1000):
        assert buckets.take(str(number)) == 0
    assert len(buckets) == 100
    assert buckets.take("999") > 0
    assert (
        network_counted_as_one_client("2001:db8:1:2:3:4:5:6")
        == network_counted_as_one_client("2001:db8:1:2::9")
        == "2001:db8:1:2::/64"
    )
    assert network_counted_as_one_client("2001:db8:1:3::9") != network_counted_as_one_client("2001:db8:1:2::9")
    assert network_counted_as_one_client("::ffff:192.0.2.7") == FAR
    assert network_counted_as_one_client("fe80::1%eth0") == "fe80::/64"


@pytest.mark.abuse(20)
def test_abuse_20_wrong_keys_are_limited() -> None:
    """ABUSE 20: per address, with Retry-After."""
    clock = Clock()
    rates = RateLimiter(0, clock)
    for address in (FAR, "127.0.0.1"):
        for _ in range(int(FAILURE_BURST)):
            rates.count_wrong_key(address)
        with pytest.raises(RateLimited):
            rates.count_wrong_key(address)
    rates.count_wrong_key("192.0.2.8")
    with pytest.raises(RateLimited) as refused:
        rates.count_wrong_key(FAR)
    clock.now += refused.value.retry_after
    rates.count_wrong_key(FAR)


@pytest.mark.abuse(20)
def test_abuse_20_wrong_keys_do_not_lock_out_valid_keys(tmp_path: Path) -> None:
    """ABUSE 20: valid keys are accepted from an address that also sends wrong keys."""
    right, wrong = given(tmp_path / "data", "read"), f"kgs_abcdefgh_{'A' * 43}"
    with serving(tmp_path / "data", trusted_proxies="127.0.0.1", indexes=False) as running:

        def status(text: str) -> int:
            return client.get("/api/memory", headers={"x-forwarded-for": FAR, **bearer(text)}).status_code

        with httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
            statuses = [status(wrong) for _ in range(2 * int(FAILURE_BURST))]
            assert (statuses[0], statuses.count(429) > 0) == (401, True)
            assert status(right) == 200


def test_requests_without_a_key_are_limited(tmp_path: Path) -> None:
    given(tmp_path / "data", "read")
    with (
        serving(tmp_path / "data", trusted_proxies="127.0.0.1", rate_limit=0.01, indexes=False) as running,
        httpx.Client(base_url=running.url, timeout=PATIENCE) as client,
    ):
        statuses = [client.get("/api/memory", headers={"x-forwarded-for": FAR}).status_code for _ in range(3)]
        assert statuses == [401, 429, 429]
        assert client.get("/api/memory", headers={"x-forwarded-for": "192.0.2.8"}).status_code == 401


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Server that trusts this machine as a proxy, and allows a burst of 20 requests per client."""
    data = tmp_path_factory.mktemp("proxied") / "data"
    options = {"trusted_proxies": "127.0.0.1, 10.0.0.0/8", "allowed_hosts": "graph.example", "rate_limit": 0.01}
    options["insecure_no_auth"] = True
    with serving(data, **options, indexes=False) as running:
        yield running


@pytest.mark.abuse(18)
def test_abuse_18_local_programs_are_not_limited(proxied: RunningServer) -> None:
    """ABUSE 18: without a key they are not counted."""
    with httpx.Client(base_url=proxied.url, timeout=PATIENCE) as client:
        assert [client.get("/health").status_code for _ in range(5)] == [200] * 5


@pytest.mark.parametrize("path", ["/health", "/api/memory/none/events", "/mcp", "/docs", "/nothing"])
@pytest.mark.abuse(18)
def test_abuse_18_rate_exceeded(proxied: RunningServer, path: str) -> None:
    """ABUSE 18: one more → 429 with Retry-After, for any path; other clients are served."""
    headers = {"x-forwarded-for": f"192.0.2.{1 + len(path)}"}
    with httpx.Client(base_url=proxied.url, timeout=PATIENCE) as client:
        assert client.get(path, headers=headers).status_code != 429
        answer = client.get(path, headers=headers)
        refusal(answer, 429)
        assert 1 <= int(answer.headers["retry-after"]) <= 100
        accepted(client.get("/health", headers={"x-forwarded-for": f"192.0.2.{100 + len(path)}"}))
        accepted(client.get("/health"))


def test_local_clients_are_not_limited(proxied: RunningServer) -> None:
    with httpx.Client(base_url=proxied.url, timeout=PATIENCE) as client:
        assert {client.get("/health").status_code for _ in range(50)} == {200}


def test_client_supplied_forwarded_for_is_ignored(proxied: RunningServer) -> None:
    """The last address that is not a proxy counts; the client could have sent the ones before."""
    with httpx.Client(base_url=proxied.url, timeout=PATIENCE) as client:
        for number in range(3):
            headers = {"x-forwarded-for": f"198.51.100.{number}, 192.0.2.200, 10.1.2.3"}
            assert client.get("/health", headers=headers).status_code == (429 if number else 200)


def test_allowed_hosts_behind_a_proxy(proxied: RunningServer) -> None:
    for host, status in (("graph.example", 200), ("graph.example:443", 200), ("evil.example", 421)):
        assert httpx.get(f"{proxied.url}/health", headers={"host": host}).status_code == status


@pytest.mark.abuse(18)
def test_abuse_18_rate_recovers_after_retry_after(tmp_path_factory: pytest.TempPathFactory) -> None:
    """ABUSE 18: a client that waits for Retry-After is served again."""
    data = tmp_path_factory.mktemp("rate") / "data"
    with serving(data, trusted_proxies="127.0.0.1", rate_limit=0.5, insecure_no_auth=True, indexes=False) as slow:
        headers = {"x-forwarded-for": FAR}
        with httpx.Client(base_url=slow.url, headers=headers, timeout=PATIENCE) as client:
            accepted(client.get("/health"))
            answer = client.get("/health")
            if answer.status_code != 429:  # The first request took two seconds on this machine.
                return
            time.sleep(int(answer.headers["retry-after"]))
            accepted(client.get("/health"))


def test_default_rate_limit() -> None:
    assert Settings().rate_limit >= 100


@pytest.mark.parametrize(
    ("peer", "header", "client"),
    [
        ("127.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("127.0.0.1", "192.0.2.1:4711", "192.0.2.1"),
        ("127.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("127.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("127.0.0.1", "::ffff:192.0.2.1", "192.0.2.1"),
        ("127.0.0.1", "192.0.2.1, 10.0.0.1", "192.0.2.1"),
        ("127.0.0.1", "192.0.2.9, 192.0.2.1, 10.0.0.1,10.0.0.2", "192.0.2.1"),
        ("127.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("127.0.0.1", "unknown", "127.0.0.1"),
        ("127.0.0.1", "192.0.2.1, garbage", "127.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("192.0.2.1", "192.0.2.5", "192.0.2.1"),
        ("::ffff:127.0.0.1", "192.0.2.5", "192.0.2.5"),
    ],
)
def test_client_address_behind_proxies(peer: str, header: str, client: str) -> None:
    proxies = TrustedProxies.parse("127.0.0.1,10.0.0.0/8")
    assert proxies.client(peer, [(b"host", b"x"), (b"x-forwarded-for", header.encode())]) == client
    assert TrustedProxies.parse("").client(peer, [(b"x-forwarded-for", header.encode())]) == peer


def test_forwarded_for_headers_are_joined() -> None:
    proxies = TrustedProxies.parse("127.0.0.1")
    headers = [(b"x-forwarded-for", b"192.0.2.9"), (b"x-forwarded-for", b"192.0.2.1")]
    assert proxies.client("127.0.0.1", headers) == "192.0.2.1"


@pytest.mark.parametrize("text", ["localhost", "10.0.0.1/8", "1.2.3", "*"])
def test_invalid_trusted_proxies_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--trusted-proxies"):
        TrustedProxies.parse(text)
