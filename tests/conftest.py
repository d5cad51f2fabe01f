from __future__ import annotations

import gc
import signal
from collections.abc import Generator, Iterator
from itertools import count
from random import Random

import httpx
import pytest
from threadpoolctl import threadpool_limits

from kgserve.platform import structured_log
from tests.fuzzing import load_usual_profile
from tests.platform.access.keys import client, given
from tests.ram_tmp import move_to_memory
from tests.server.http.serving import RunningServer, serving
from tests.timeouts import REQUEST_SECONDS, be_patient, wait_long_for_answers
from tests.tls_contexts import share_tls_context

move_to_memory()
be_patient()
wait_long_for_answers()
share_tls_context()
load_usual_profile()
# As in a server process: numpy's threads would spin at the expense of other tests, and garbage collection would scan
# rows.
threadpool_limits(1, user_api="blas")
gc.set_threshold(100_000, 50, 100)
_numbers = count(1)

# A run in the background ignores SIGINT, and would pass that on to every program that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="random order of modules, and of tests within each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("--shuffle")) is not None:
        order = Random(seed)
        places = {item.path: order.random() for item in items}
        # Tests of a module stay together, because they share fixtures.
        items.sort(key=lambda item: (places[item.path], order.random()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, which would take two fifths of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    """Freeze the remaining objects after one collection, so that later collections need not scan them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield one HTTP server for all tests of a worker process; each test uses its own stores."""
    structured_log.configure_logging("json", "info")
    # A busy machine may take more than 10 s for a statement.
    with serving(tmp_path_factory.mktemp("served") / "data", query_timeout=REQUEST_SECONDS) as running:
        yield running


@pytest.fixture(scope="session")
def http(served: RunningServer) -> Iterator[httpx.Client]:
    """Yield a client of the shared server."""
    with httpx.Client(base_url=served.url, timeout=REQUEST_SECONDS) as client:
        yield client


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server that requires API keys."""
    data = tmp_path_factory.mktemp("keyed") / "data"
    given(data, "read", name="the first")
    with serving(data) as running:
        yield running


@pytest.fixture(scope="module")
def admin(keyed: RunningServer) -> Iterator[httpx.Client]:
    """Yield an administrator's client of that server."""
    with client(keyed.url, given(keyed.data, "admin", name="admin")) as http:
        yield http


@pytest.fixture
def store() -> str:
    """Return the name of a store that no other test uses."""
    return f"store-{next(_numbers)}"


@pytest.fixture
def api(store: str) -> str:
    """Return the API path of that store."""
    return f"/api/memory/{store}"


@pytest.fixture
def unindexed(http: httpx.Client, api: str) -> str:
    """Create that store without indexes, for many rows, whose indexing would delay the searches of other tests."""
    http.put(api, json={"indexes": "none"}).raise_for_status()
    return api
