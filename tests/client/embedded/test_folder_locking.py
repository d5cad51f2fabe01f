"""Locking of a data folder, and the errors of other users."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kgserve
from kgserve.client import Client
from kgserve.client.embedded import Library
from kgserve.errors import Conflict, InvalidInput, Unavailable
from kgserve.platform.data_folder_lock import DataFolderLock
from tests.cli.running import serving
from tests.client.embedded.running import OPENING, Program


def opened(folder: Path, *, history: bool = True) -> Library:
    return kgserve.open(folder, history=history, indexes=False)


def assert_free(folder: Path) -> None:
    with DataFolderLock(folder):
        pass


def test_a_closed_library_is_reported(library: Library, folder: Path) -> None:
    store = library.store("s")
    store.inject([{"id": "a", "type": "t"}])
    nodes, events = store.nodes(), store.events()
    library.close()
    library.close()
    assert library.closed
    sentence = rf"data was closed; open it again with kgserve\.open\('{folder}'\)"
    for ask in (
        library.stores,
        store.stats,
        lambda: store.inject([]),
        lambda: next(nodes),
        lambda: next(store.export()),
        store.events,
        lambda: store.import_([]),
    ):
        with pytest.raises(Conflict, match=sentence):
            ask()
    assert list(events) == []
    assert_free(folder)


def test_written_data_survives_reopening(folder: Path) -> None:
    with opened(folder) as library:
        library.store("s").inject([{"id": "a", "type": "t"}])
    with opened(folder) as library:
        assert library.store("s").node("a").node.type == "t"
        assert library.store("s").stats().engine_rebuilds == 0


def test_a_folder_opened_twice_in_one_process_is_shared(folder: Path, tmp_path: Path) -> None:
    one = opened(folder)
    other = opened(tmp_path / "x" / ".." / "data")
    one.store("s").inject([{"id": "a", "type": "t"}])
    one.close()
    assert other.store("s").node("a")
    with pytest.raises(Conflict, match="was closed"):
        one.store("s").node("a")
    with pytest.raises(Conflict, match="in use by process"), DataFolderLock(folder):
        pass
    other.close()
    assert_free(folder)


def test_a_garbage_collected_handle_keeps_nothing_open(folder: Path) -> None:
    library = opened(folder)
    library = opened(folder)
    library.close()
    assert_free(folder)


def test_other_options_for_an_open_folder_are_rejected(folder: Path) -> None:
    with opened(folder), pytest.raises(Conflict, match="open in this process with other options; close it first"):
        opened(folder, history=False)
    with opened(folder, history=False) as library:
        library.create("s")
        with pytest.raises(Conflict, match="histories are turned off"):
            library.store("s").history("a")
        with pytest.raises(Unavailable, match="indexes are turned off"):
            library.store("s").search("a")


def test_a_folder_with_a_server_is_rejected_with_a_hint(folder: Path) -> None:
    with serving(folder) as server:
        sentence = (
            rf"served by process {server.process.pid} at {server.url}; use kgserve\.client\.Client\(data='{folder}'\)"
        )
        with pytest.raises(Conflict, match=sentence):
            opened(folder)
        with Client(data=folder) as client:
            client.create("of-the-server")
    with opened(folder) as library:
        assert [each.name for each in library.stores().stores] == ["of-the-server"]


def test_a_folder_of_another_process_is_rejected(folder: Path) -> None:
    with Program(folder, "print('ready', flush=True); input()") as other:
        assert other.line() == "ready"
        with pytest.raises(Conflict, match=rf"in use by process {other.pid}; close it there, or serve the folder"):
            opened(folder)
        assert other.end("\n").code == 0
    with opened(folder):
        pass


def test_a_forked_process_cannot_use_the_library(folder: Path) -> None:
    program = """
        store.inject([{"id": "a", "type": "t"}])
        child = os.fork()
        if child == 0:
            for ask in (store.stats, lambda: kgserve.open(FOLDER, embedding_provider="hashing")):
                try:
                    ask()
                except kgserve.errors.Conflict as error:
                    print(error, flush=True)
            library.close()
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), store.node("a").node.id)
    """
    opening = f"import warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\n{OPENING}"
    with Program(folder, program, opening=opening) as forking:
        done = forking.end()
    first, second, last = done.out.splitlines()
    assert "before it forked this one; to use the folder from several processes, run `kgserve serve`" in first
    assert f"in use by process {forking.pid}" in second
    assert last == "7 a"


@pytest.mark.parametrize("name", ["file", "file/below", "data*"])
def test_an_invalid_folder_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"cannot be a data folder|must not contain"):
        opened(tmp_path / name)


def test_models_are_located_as_by_the_server(folder: Path, tmp_path: Path) -> None:
    # A model that is not prepared is reported with its expected location.
    for options, place in (("", folder / "models"), (f", models_dir={str(tmp_path / 'm')!r}", tmp_path / "m")):
        program = f"with kgserve.open(FOLDER{options}) as again: pass"
        with Program(folder, program, opening="") as run:
            assert f"{place}{os.sep}sentence-transformers--all-MiniLM-L6-v2" in run.end().err
