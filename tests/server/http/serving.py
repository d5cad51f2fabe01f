"""The real application behind the real HTTP server, on a free port, in a thread of the test process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from kgserve.admin.composition_root import create_configured_connectors_worker, create_fact_extraction_worker
from kgserve.embedding.embedder import load_embedder
from kgserve.graph.store_handle import CallerStoreHandles
from kgserve.memory.erasure import StoreErasureManager
from kgserve.platform.settings import Settings
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.server.app import HttpServer, bind_listener, create_app, uvicorn_config
from kgserve.server.http.error_responses import ERROR_RESPONSE_KINDS
from kgserve.server.readers.reader_supervisor import create_reader_supervisor
from kgserve.stores.pool import StorePool
from tests.engines import ENGINE
from tests.leak_checks import assert_no_internals

PATIENCE = 30


class RunningServer(msgspec.Struct, frozen=True):
    """A running server."""

    url: str
    port: int
    settings: Settings
    server: HttpServer
    pool: StorePool

    @property
    def data(self) -> Path:
        return self.settings.data_dir


class Reply(msgspec.Struct, frozen=True):
    """Response that was read from a bare socket."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        return problem(self.status, self.headers, self.body)


@contextmanager
def serving(data: Path, **options: Any) -> Generator[RunningServer]:
    """Run a server on ``data`` until the end of the block."""
    words: dict[str, Any] = {"embedding_provider": "hashing", "engine": ENGINE, "readers": "0", **options}
    settings = Settings(data_dir=data, port=0, buffer_pool_mb=64, check_interval=0, **words)
    with (
        closing(bind_listener(settings.host, 0)) as listener,
        closing(TextIndexWorker(load_embedder(settings))) as indexer,
        closing(HistoryWorker()) as historian,
    ):
        port = listener.getsockname()[1]
        started = threading.Event()
        pool = StorePool(settings)  # The application's lifespan closes it.
        extractor = create_fact_extraction_worker(settings, indexer)
        syncers = create_configured_connectors_worker(settings)
        others = [each for each in (extractor, syncers) if each]
        pool.companions += [indexer, historian, *others, StoreErasureManager(indexer, historian)]
        app = create_app(CallerStoreHandles(pool, indexer, historian, extractor=extractor, syncers=syncers))
        if syncers is not None:
            syncers.catch_up(pool)
        readers = create_reader_supervisor(settings, "", pool)
        server = HttpServer(uvicorn_config(app, settings, None, readers), settings.shutdown_grace, started.set)
        server.readers = readers
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name=f"server-{port}")
        thread.start()
        try:
            assert started.wait(PATIENCE)
            yield RunningServer(f"http://127.0.0.1:{port}", port, settings, server, pool)
        finally:
            server.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            if readers is not None:
                readers.close()
            if extractor is not None:
                extractor.close()
            if syncers is not None:
                syncers.close()


def exchange(port: int, request: bytes, *, patience: float = PATIENCE) -> Reply:
    """Send raw bytes, and read the response until the server closes or the response is complete."""
    with socket.create_connection(("127.0.0.1", port), patience) as connection:
        connection.sendall(request)
        return read_reply(connection)


def read_reply(connection: socket.socket) -> Reply:
    """Read one response with a Content-Length."""
    with connection.makefile("rb") as stream:
        status = int(stream.readline().split()[1])
        headers: dict[str, str] = {}
        while line := stream.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return Reply(status, headers, stream.read(int(headers.get("content-length", "0"))))


def problem(status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Return the problem document of a response; checks that it is complete and matches the headers."""
    assert headers["content-type"] == "application/problem+json"
    document = msgspec.json.decode(body, type=dict[str, Any])
    assert ERROR_RESPONSE_KINDS[document["type"].removeprefix("urn:kgserve:error:")] == (status, document["title"])
    assert_no_internals(body.decode())
    assert document["instance"] == f"urn:kgserve:request:{headers['x-request-id']}"
    assert document["status"] == status
    assert document["detail"]
    return document


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    """Return the problem document of a response that must have this status."""
    assert response.status_code == status, response.text
    return problem(response.status_code, response.headers, response.content)


def accepted(response: httpx.Response, status: int = 200, media: str = "application/json") -> dict[str, Any]:
    """Return the JSON of a response that must have this status and media type."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == media
    return msgspec.json.decode(response.content, type=dict[str, Any])
