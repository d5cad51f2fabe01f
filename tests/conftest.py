from __future__ import annotations

import gc
import signal
from collections.abc import Generator, Iterator
from itertools import count
from random import Random

import httpx
import pytest
from threadpoolctl import threadpool_limits

import tests.authorities  # pyright: ignore[reportUnusedImport]  # before clients are made
import tests.engines  # pyright: ignore[reportUnusedImport]  # before anything of the engine is imported
import tests.fuzzing  # noqa: F401  # pyright: ignore[reportUnusedImport]  # what `examples` reads must be there before tests are collected
from kgserve.platform import log
from tests.patience import REQUEST_SECONDS, be_patient, wait_long_for_answers
from tests.platform.access.keys import client, given
from tests.scratch import move_to_memory
from tests.server.http.serving import Served, serving

move_to_memory()
be_patient()
wait_long_for_answers()
# As in a server's process: threads of numpy would spin at the cost of other tests, rows be looked through for garbage.
threadpool_limits(1, user_api="blas")
gc.set_threshold(100_000, 50, 100)
_numbers = count(1)

# A run that was put into the background ignores it, and so would every program that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="modules in another order, and the tests of each, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("--shuffle")) is not None:
        order = Random(seed)
        places = {item.path: order.random() for item in items}
        # Those of a module stay together: they share what it has started.
        items.sort(key=lambda item: (places[item.path], order.random()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting makes stays to the end, and two fifths of its time went into looking for garbage among it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    """Garbage is found once; whoever looks for it after that, again and again, need not look at all that is left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One HTTP server for all tests of a worker process; each test uses stores of its own."""
    log.configure("json", "info")
    # A busy machine has not always carried out a statement in 10 s.
    with serving(tmp_path_factory.mktemp("served") / "data", query_timeout=REQUEST_SECONDS) as running:
        yield running


@pytest.fixture(scope="session")
def http(served: Served) -> Iterator[httpx.Client]:
    """A client of that server."""
    with httpx.Client(base_url=served.url, timeout=REQUEST_SECONDS) as client:
        yield client


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that asks for keys."""
    data = tmp_path_factory.mktemp("keyed") / "data"
    given(data, "read", name="the first")
    with serving(data) as running:
        yield running


@pytest.fixture(scope="module")
def admin(keyed: Served) -> Iterator[httpx.Client]:
    """A client of that server that may do anything."""
    with client(keyed.url, given(keyed.data, "admin", name="admin")) as http:
        yield http


@pytest.fixture
def store() -> str:
    """The name of a store that no other test uses."""
    return f"store-{next(_numbers)}"


@pytest.fixture
def api(store: str) -> str:
    """The path of that store."""
    return f"/api/memory/{store}"
