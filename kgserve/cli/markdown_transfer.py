"""Import and export of folders of Markdown notes, such as Obsidian vaults."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgserve.cli.terminal import TransferProgressBar, print_listed_texts
from kgserve.errors import NotFound
from kgserve.graph.answers import ImportAnswer, empty_import_answer
from kgserve.graph.transfer.formats.kb_notes_sqlite_import import is_kb_notes_folder
from kgserve.graph.transfer.formats.markdown_folder_import import (
    ImportedNotes,
    MarkdownFolderImport,
    read_imported_notes,
)
from kgserve.graph.transfer.formats.ndjson_exchange_lines import ImportLinesWithSourceMap

if TYPE_CHECKING:
    from kgserve.client import Store

_VAULT_FOLDER = ".obsidian"
_MAX_DELETED_IDS = 1_000
_MAX_LISTED_NOTES = 20


def is_markdown_folder(path: Path) -> bool:
    """Return whether a folder is an Obsidian vault, or has notes and no files of another format."""
    if not path.is_dir() or is_kb_notes_folder(path):
        return False
    if (path / _VAULT_FOLDER).is_dir():
        return True
    return _has_file(path, "*.md", "*/*.md") and not _has_file(path, "*.csv", "*.parquet")


def _has_file(folder: Path, *patterns: str) -> bool:
    return any(True for pattern in patterns for _ in folder.glob(pattern))


class MarkdownImportRun:
    """Import of one folder into a store: what differs from the store, and what to remove from it."""

    def __init__(self, folder: Path, export: AbstractContextManager[Iterable[bytes]], *, delete: bool) -> None:
        """Read which notes the store has. ``export`` yields its lines, or raises NotFound.

        delete: also delete the notes of earlier imports whose files are gone.
        """
        self._notes = MarkdownFolderImport(folder, _read_earlier_import(export))
        self._delete = delete
        self.conversion = ImportLinesWithSourceMap(self._notes.tables())

    def check(self) -> bool:
        """Print what an import would do, write nothing, and return whether all notes are valid."""
        from kgserve.graph.transfer.import_line_check import check_import_lines

        with TransferProgressBar("Checking") as progress:
            errors = check_import_lines(progress.count(self.conversion.blocks()))
        answer = empty_import_answer()
        answer.error_count, answer.errors = len(errors), errors
        answer = self.conversion.translate_answer(answer)
        notes = self._notes
        click.echo(
            f"nodes: {notes.new_notes:,} to create, {notes.changed_notes:,} to update, "
            f"{notes.unchanged_notes:,} unchanged"
        )
        click.echo(
            f"edges: {notes.sent_links:,} to write, {notes.unchanged_links:,} unchanged, "
            f"{len(notes.removed_links):,} to delete"
        )
        if self._delete:
            click.echo(f"notes without a file: {len(notes.missing_notes):,} to delete")
        click.echo("dry run: nothing was written")
        print_listed_texts("lines wrong", answer.error_count, [error.message for error in answer.errors])
        self._report_kept()
        return answer.ok

    def complete(self, store: Store, answer: ImportAnswer) -> ImportAnswer:
        """Delete the links that notes no longer have, and notes without a file; add the counts of unchanged rows."""
        notes = self._notes
        answer.nodes_unchanged += notes.unchanged_notes
        answer.edges_unchanged += notes.unchanged_links
        for source, target, relation in notes.removed_links:
            store.delete_edge(source, target, relation)
        missing = notes.missing_notes if self._delete else []
        for first in range(0, len(missing), _MAX_DELETED_IDS):
            store.delete_nodes(ids=missing[first : first + _MAX_DELETED_IDS])
        return answer

    def report(self) -> None:
        """Print what was deleted, which notes have no file, and which links name no note."""
        if removed := len(self._notes.removed_links):
            click.echo(f"links that their notes no longer have: {removed:,} deleted")
        if self._delete and (missing := len(self._notes.missing_notes)):
            click.echo(f"notes without a file: {missing:,} deleted")
        self._report_kept()

    def _report_kept(self) -> None:
        if self._notes.rejected_notes:
            click.echo("nothing was deleted, because a note could not be read", err=True)
        elif not self._delete:
            missing = self._notes.missing_notes
            print_listed_texts(
                "notes of the store have no file; --delete deletes them", len(missing), missing[:_MAX_LISTED_NOTES]
            )
        count, links = self._notes.unresolved
        print_listed_texts("links without a note; an import after the note was written adds them", count, links)


def _read_earlier_import(export: AbstractContextManager[Iterable[bytes]]) -> ImportedNotes:
    try:
        with export as blocks:
            return read_imported_notes(blocks)
    except NotFound:
        return ImportedNotes({}, {})


def write_markdown_folder(blocks: Iterable[bytes], folder: Path) -> list[Path]:
    """Write an export as notes into a folder, and return their paths. Files with the same content are left alone."""
    from kgserve.client.json_lines_stream import write_atomically
    from kgserve.graph.transfer.formats.markdown_folder_export import MarkdownFolderExport

    written: list[Path] = []
    for name, content in MarkdownFolderExport(blocks).files():
        path = folder / name
        written.append(path)
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as file:
            file.write(content)
    return written
