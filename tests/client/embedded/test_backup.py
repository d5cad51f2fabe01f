"""Backups made by the library, into any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import kgserve
from kgserve.errors import InvalidInput, NotFound


def test_backup_and_restore(tmp_path: Path) -> None:
    folder = str(tmp_path / "backup")
    with kgserve.open(tmp_path / "data", indexes=False) as library:
        store = library.store("a")
        store.inject([{"id": "one", "type": "t"}])
        first = store.backup(folder)
        store.inject([{"id": "two", "type": "t"}])
        done = library.backup_stores(folder)
        assert (first.sequence, done.stores[0].sequence, done.failed) == (1, 2, [])
        assert library.restore_backup(folder, store="a", into="b", until=1).stores[0].nodes == 1
        assert [node.id for node in library.store("b").nodes()] == ["one"]
        with pytest.raises(InvalidInput, match="the folder of the backup"):
            store.backup()
        with pytest.raises(NotFound):
            library.store("nothing").backup(folder)
