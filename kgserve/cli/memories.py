"""``kgserve consolidate``: merging the memories of a store that say the same, and taking that back."""

from __future__ import annotations

import click

from kgserve.cli.remote import connect, server_options
from kgserve.cli.terminal import as_json_option, show_json
from kgserve.model.memories import ConsolidationReport, ConsolidationUndone


@click.command()
@click.argument("store")
@click.option("--dry-run", is_flag=True, help="Say what would be merged, and merge nothing.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    help="Cosine that all of a cluster have with each other.  [default: as the store's settings say]",
)
@click.option("--undo", metavar="RUN", help="Bring back what a run has merged.")
@as_json_option
@server_options
def consolidate(
    store: str,
    *,
    dry_run: bool,
    threshold: float | None,
    undo: str | None,
    as_json: bool,
    server: str | None,
    data_dir: str | None,
) -> None:
    """Merge the memories of STORE that say the same in other words.

    What differs in numbers, names or negations is kept apart, and told. Each run has a name, by which it is undone.
    """
    if undo is not None and (dry_run or threshold is not None):
        raise click.UsageError("--undo goes alone")
    with connect(server, data_dir) as client:
        there = client.store(store)
        if undo is not None:
            done = there.undo_consolidation(undo)
        else:
            done = there.consolidate(similarity_threshold=threshold, dry_run=dry_run)
    if as_json:
        show_json(done)
    elif isinstance(done, ConsolidationReport):
        _report(store, done)
    else:
        _undone(store, done)


def _report(store: str, found: ConsolidationReport) -> None:
    would = "would be " if found.dry_run else ""
    for cluster in found.clusters:
        click.echo(f"{cluster.primary} <- {', '.join(cluster.absorbed)}  ({cluster.similarity:.2f})")
    for pair in found.contradictions:
        click.echo(f"kept apart, they differ in {pair.differs}: {', '.join(pair.ids)}  ({pair.similarity:.2f})")
    merged = f"{_counted(found.memories_deleted)} {would}merged into {found.clusters_found:,}"
    undo = f"; kgserve consolidate {store} --undo {found.run} takes it back" if found.run else ""
    click.echo(f"{store}: {merged}{undo}")


def _undone(store: str, done: ConsolidationUndone) -> None:
    skipped = f", {len(done.skipped):,} left as they are, which were changed since" if done.skipped else ""
    verb = "is" if done.restored_count == 1 else "are"
    click.echo(f"{store}: {_counted(done.restored_count)} {verb} back{skipped}")


def _counted(number: int) -> str:
    return "1 memory" if number == 1 else f"{number:,} memories"
