"""``kgserve reindex``, and waiting for the indexes of a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from kgserve.cli.remote import connect, decode, find, server_options, store_path
from kgserve.cli.terminal import IndexProgress
from kgserve.model.answers import ReindexAnswer
from kgserve.model.stores import IndexStatus, StoreStats

if TYPE_CHECKING:
    import httpx

POLL_SECONDS = 0.25
PATIENCE_SECONDS = 5.0
"""How long an index may stand still with an error: it tries again by itself, and mostly overcomes it."""


@click.command()
@click.argument("store")
@server_options
def reindex(store: str, server: str | None, data_dir: str | None) -> int:
    """Make both indexes of STORE anew, vectors with the server's present model, and wait until they are there.

    The server goes on when the waiting is interrupted. The exit code is 1 if an index cannot be made.
    """
    with connect(find(server, data_dir)) as client:
        begun = decode(client.post(store_path(store, "reindex")), ReindexAnswer)
        for index in await_indexes(client, store, begun.sequence):
            click.echo(f"{index.name}: {index.entities:,} entities, model {index.model}, sequence {index.sequence:,}")
    return 0


def await_indexes(client: httpx.Client, store: str, sequence: int) -> list[IndexStatus]:
    """Wait, with progress on a terminal, until both indexes have seen a commit and have nothing left to do.

    Raises ClickException when indexes are turned off, or one stands still with an error.
    """
    return await_all(lambda: decode(client.get(store_path(store, "stats")), StoreStats), sequence)


def await_all(stats: Callable[[], StoreStats], sequence: int) -> list[IndexStatus]:
    """As `await_indexes`, of a store of which ``stats`` tells how it stands."""
    with IndexProgress() as progress:
        patience = _Patience()
        while True:
            indexes = _indexes(stats())
            progress.show(indexes)
            if all(_is_through(index, sequence) for index in indexes):
                return indexes
            patience.check(indexes)
            time.sleep(POLL_SECONDS)


def _indexes(stats: StoreStats) -> list[IndexStatus]:
    found = stats.indexes
    if not found:
        raise click.ClickException("indexes are turned off on this server")
    # Those of the past follow the history, a moment later; a search that looks back waits for them by itself.
    return [index for index in found if index.name in ("keyword", "vector")]


def _is_through(index: IndexStatus, sequence: int) -> bool:
    return index.sequence >= sequence and not index.pending and index.error is None


class _Patience:
    """Ends the waiting for an index that stands still with an error."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[object, ...], float]] = {}

    def check(self, indexes: Sequence[IndexStatus]) -> None:
        now = time.monotonic()
        for index in indexes:
            state = (index.sequence, index.entities, index.pending, index.error)
            before, since = self._seen.get(index.name, ((), now))
            if state != before:
                self._seen[index.name] = (state, now)
            elif index.error is not None and now - since > PATIENCE_SECONDS:
                raise click.ClickException(f"the {index.name} index: {index.error}")
