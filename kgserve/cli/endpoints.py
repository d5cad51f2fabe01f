"""Where an import goes and an export comes from: a running server, or a data folder that nobody serves."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kgserve.cli.indexes import await_all, await_indexes
from kgserve.cli.options import load
from kgserve.cli.remote import check, connect, decode, find, store_path
from kgserve.model.answers import ImportAnswer

if TYPE_CHECKING:
    import httpx

    from kgserve.library import Library


class Endpoint(Protocol):
    """Takes and gives whole stores as lines of JSON."""

    def send(self, store: str, blocks: Iterable[bytes]) -> ImportAnswer:
        """Import lines, as they come."""
        ...

    def receive(self, store: str, as_of: str | None, valid_at: str | None) -> AbstractContextManager[Iterator[bytes]]:
        """Export lines, in blocks that may end anywhere."""
        ...

    def await_indexes(self, store: str, sequence: int) -> None:
        """Wait until search knows a commit."""
        ...


@contextmanager
def endpoint(server: str | None, data_dir: str | None, *, indexes: bool = False) -> Generator[Endpoint]:
    """The server that was named or serves the data folder; the folder itself if it was named and nobody serves it.

    ``indexes``: whether those are wanted, too; a folder's are filled by the next server otherwise. Raises Conflict when
    another process than a server has the folder.
    """
    if server is None and data_dir is not None and _is_idle(data_dir):
        from kgserve.library import Library

        settings = load({"data_dir": data_dir})
        with (
            _quietly(),
            Library(data_dir, history=settings.history, indexes=indexes and settings.indexes) as library,
        ):
            yield _Opened(library)
        return
    with connect(find(server, data_dir)) as client:
        yield _Served(client)


def _is_idle(data_dir: str) -> bool:
    from kgserve.server_file import read_server_file

    return Path(data_dir).is_dir() and read_server_file(load({"data_dir": data_dir}).data_dir) is None


@contextmanager
def _quietly() -> Generator[None]:
    """A command says itself how it went: slow commits are no news in it."""
    logger = logging.getLogger("kgserve")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


class _Served:
    """A running server."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def send(self, store: str, blocks: Iterable[bytes]) -> ImportAnswer:
        headers = {"Content-Type": "application/x-ndjson"}
        return decode(self._client.post(store_path(store, "import"), content=blocks, headers=headers), ImportAnswer)

    @contextmanager
    def receive(self, store: str, as_of: str | None, valid_at: str | None) -> Generator[Iterator[bytes]]:
        wanted = {"as_of": as_of, "valid_at": valid_at}
        query = {name: value for name, value in wanted.items() if value is not None}
        with self._client.stream("GET", store_path(store, "export"), params=query) as response:
            check(response)
            yield response.iter_bytes()

    def await_indexes(self, store: str, sequence: int) -> None:
        await_indexes(self._client, store, sequence)


class _Opened:
    """A data folder, opened in this process."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def send(self, store: str, blocks: Iterable[bytes]) -> ImportAnswer:
        return self._library.store(store).import_(blocks)

    @contextmanager
    def receive(self, store: str, as_of: str | None, valid_at: str | None) -> Generator[Iterator[bytes]]:
        from kgserve.client.streams import export

        with self._library.local.begun(export(store, as_of=as_of, valid_at=valid_at).call) as (_, blocks):
            yield blocks

    def await_indexes(self, store: str, sequence: int) -> None:
        await_all(self._library.store(store).stats, sequence)
