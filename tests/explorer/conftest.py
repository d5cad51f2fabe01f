from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser

from tests.explorer.looking import ExplorerBrowser, browsing
from tests.explorer.stores import library
from tests.server.http.serving import RunningServer


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Start one browser for the tests of this folder. It ends with them: other tests run event loops of their own."""
    with browsing() as running:
        yield running


@pytest.fixture
def looking(browser: Browser, served: RunningServer) -> Iterator[ExplorerBrowser]:
    """Pages of the shared server."""
    pages = ExplorerBrowser(browser, served.url)
    try:
        yield pages
    finally:
        pages.close()


@pytest.fixture
def books(http: httpx.Client, store: str, api: str) -> str:
    """The name of a store with a few books."""
    library(http, api)
    return store
