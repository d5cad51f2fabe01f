"""A folder in which the benches of one run share what is slow to make: WordNet, loaded by server and bare engine."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import baseline, wordnet
from bench.server import Server

STORE = "wordnet"
BLOCK = 1 << 18


class Workspace:
    """The inputs and the loaded data of one run of benches; `data` is a server's data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.exchange_file = wordnet.exchange_file()
        self.database = folder / "bare.kuzu"

    def loaded_data(self) -> Path:
        """The server's data folder with WordNet in the store `wordnet`; imported now if no bench has done it."""
        if not (self.data / f"{STORE}_memory").exists():
            # The indexes of all of WordNet are put away when it stops, which takes its time.
            with Server(self.data, {"shutdown_grace": 60}) as server, server.client() as client:
                client.upload(STORE, blocks(self.exchange_file))
        return self.data

    def loaded_database(self) -> Path:
        """A database of the bare engine with WordNet in it; loaded now if no bench has done it."""
        if not self.database.exists():
            baseline.measure("load", exchange_file=str(self.exchange_file), database=str(self.database))
        return self.database

    def scratch(self, name: str) -> str:
        """A path for something that only one bench needs."""
        return str(self.folder / name)


def blocks(path: Path) -> Iterator[bytes]:
    """A file in blocks of 256 KiB."""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


@contextmanager
def workspace() -> Generator[Workspace]:
    """A Workspace that is gone afterwards. Raises wordnet.Unavailable."""
    with tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True) as folder:
        yield Workspace(Path(folder))
