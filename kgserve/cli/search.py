"""``kgserve search``: nodes of a store by words, meaning and relations."""

from __future__ import annotations

from typing import get_args

import click

from kgserve.cli.remote import connect, server_options
from kgserve.cli.terminal import Column, as_json_option, show_json, show_table
from kgserve.model.requests import SearchMode

COLUMNS = (Column("Score"), Column("Type"), Column("Id"), Column("Content"))
_MOST_SHOWN = 200


@click.command()
@click.argument("store")
@click.argument("query")
@click.option(
    "--mode", type=click.Choice(get_args(SearchMode)), default="hybrid", show_default=True, help="How they are found."
)
@click.option("--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Most nodes.")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only nodes of this type; may be repeated.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Only nodes with this tag; may be repeated.")
@click.option("--as-of", metavar="WHEN", help="As it was: a sequence, or a time such as 2025-07-15T12:00:00Z.")
@click.option("--valid-at", metavar="TIME", help="Only what was true in the world then, or `now`.")
@as_json_option
@server_options
def search(
    store: str,
    query: str,
    *,
    mode: SearchMode,
    limit: int,
    types: tuple[str, ...],
    tags: tuple[str, ...],
    as_of: str | None,
    valid_at: str | None,
    as_json: bool,
    server: str | None,
    data_dir: str | None,
) -> None:
    """Find nodes of STORE by words, meaning and relations, best first.

    A QUERY in words is enough. What was written a moment ago may be missing until the indexes have seen it.
    """
    with connect(server, data_dir) as client:
        found = client.store(store).search(
            query,
            mode=mode,
            limit=limit,
            types=types or None,
            tags=tags or None,
            as_of=as_of,
            valid_at=valid_at,
        )
    if as_json:
        show_json(found)
        return
    if found.degraded:
        click.echo("kgserve: without an embedding model meaning is judged by words and letters alone", err=True)
    show_table(
        COLUMNS,
        [(f"{hit.score:.3f}", hit.node.type, hit.node.id, _beginning(hit.node.content or "")) for hit in found.hits],
    )


def _beginning(content: str) -> str:
    words = " ".join(content[: 2 * _MOST_SHOWN].split())
    return words if len(words) <= _MOST_SHOWN else f"{words[: _MOST_SHOWN - 1]}…"
