"""Content of incremental backups, reasons for new bases, and leftovers of interrupted backups."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

from kgserve.admin import backup as ops
from kgserve.errors import BackupDamaged, Conflict, InvalidInput, JournalDamaged, NotFound, Unavailable
from kgserve.platform.timestamps import format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.storage.journal.journal import journal_segment_path, list_journal_segments
from kgserve.storage.store_folder_layout import STORE_FORMAT, StoreLayout
from kgserve.storage.write_planner import MAX_CLOCK_DRIFT_MICROSECONDS
from kgserve.stores.backup.api import StoreBackupAnswer
from kgserve.stores.backup.create import BackupOptions, StoreToBackUp
from kgserve.stores.backup.create import back_up_all as stores_back_up
from kgserve.stores.backup.folder_layout import BACKUP_UNCHANGED_FILE, BackupFolder, find_backups_with_commits_since
from kgserve.stores.backup.restore import verify_backup
from kgserve.stores.pool import StorePool
from tests.stores.backup.holding import LONG, back_up, faults, manifest, restored
from tests.stores.writing import (
    NAME,
    PATIENCE,
    SYNC_SECONDS,
    batch,
    flip,
    frames,
    held,
    ids,
    newest_segment,
    settings,
    write,
)

YEAR = 365 * 86_400_000_000
"""One year in microseconds."""


@pytest.fixture
def pool(tmp_path: Path) -> Generator[StorePool]:
    with StorePool(settings(tmp_path / "data", journal_segment_mb=1, journal_retention_mb=0)) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def put(pool: StorePool, *names: str, content: str = "") -> None:
    with pool.lease(NAME, create=True) as store:
        write(store, *(batch(name, content=content) for name in names))


def test_a_second_backup_copies_only_new_data(pool: StorePool, folder: Path) -> None:
    put(pool, *(f"n{n}" for n in range(50)), content=LONG)
    first = back_up(pool, folder)
    assert first.new_base == "it is the first backup"
    assert first.bytes_copied == first.bytes_total > 50 * 1000
    put(pool, "new")
    second = back_up(pool, folder)
    assert (second.new_base, second.sequence, second.first) == ("", 51, 0)
    assert second.bytes_copied < 400
    assert second.bytes_total == first.bytes_total + second.bytes_copied
    third = back_up(pool, folder)
    assert third.bytes_copied == 0
    assert len(manifest(folder).bases[0].runs) == 2, "a backup of nothing leaves no files"
    assert third.taken_at > second.taken_at
    assert faults(folder) == []


def test_journal_segments_continue_across_runs(pool: StorePool, folder: Path) -> None:
    for turn in range(4):
        put(pool, *(f"{turn}-{n}" for n in range(6)), content=LONG * 30)
        back_up(pool, folder)
    with pool.lease(NAME) as store:
        assert len(list_journal_segments(store.layout.journal)) > 2
        assert ids(restored(pool, folder)) == ids(store)
    assert ids(restored(pool, folder, "12", "earlier")) == sorted(f"{t}-{n}" for t in range(2) for n in range(6))


def test_a_gap_in_the_journal_starts_a_new_base(pool: StorePool, folder: Path) -> None:
    put(pool, "a", content=LONG)
    back_up(pool, folder, live=False)
    with pool.lease(NAME) as store:
        for turn in range(3):
            write(store, *(batch(f"{turn}-{n}", content=LONG * 40) for n in range(7)))
            store.compactor.run()
        assert list_journal_segments(store.layout.journal)[0].first > 2, "nothing was dropped"
    made = back_up(pool, folder, live=False)
    assert made.new_base == "the journal no longer reaches back to the previous backup"
    assert made.bases == 2
    assert made.first > 1
    assert faults(folder) == []
    assert restored(pool, folder, "1", "first").state.sequence == 1
    with pytest.raises(InvalidInput, match=r"sequence 2 is not covered; this backup covers sequences 0 to 1 .*; sequ"):
        restored(pool, folder, "2", "between")


def test_commits_within_a_copied_snapshot_are_found(pool: StorePool, folder: Path) -> None:
    put(pool, *(f"n{n}" for n in range(6)), content=LONG * 30)
    with pool.lease(NAME) as store:
        last = store.state.sequence
        store.erase(store.end_segment(), [])
    made = back_up(pool, folder, live=False)
    assert (made.sequence, made.first) == (last, last)
    found = find_backups_with_commits_since(folder.parent, NAME, 1)
    assert [*found] == [(folder.name, f"it holds the store as of commit {last}")]
    assert not [*find_backups_with_commits_since(folder.parent, NAME, last + 1)]


def test_a_restored_store_keeps_what_is_written_at_once(
    pool: StorePool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(pool, "a")
    back_up(pool, folder)
    adopt = pool.adopt

    def adopt_and_write(name: str, restored_folder: Path) -> None:
        adopt(name, restored_folder)
        with pool.lease(name) as store:
            write(store, batch("b"))

    monkeypatch.setattr(pool, "adopt", adopt_and_write)
    [made] = ops.restore_stores(pool, folder, [ops.StoreRestoreSpec(NAME, "again")]).stores
    with pool.lease("again") as store:
        assert (made.sequence, ids(store)) == (1, ["a", "b"])


def test_a_restored_store_starts_a_new_base(pool: StorePool, folder: Path) -> None:
    put(pool, "a", "b", "c")
    back_up(pool, folder)
    pool.drop(NAME)
    ops.restore_stores(pool, folder, [ops.StoreRestoreSpec(NAME, NAME, "2")])
    put(pool, "other", "another")
    made = back_up(pool, folder)
    assert "changed before the end" in made.new_base
    assert ids(restored(pool, folder, "3", "x")) == ["a", "b", "other"]
    pool.drop(NAME)
    put(pool, "new")
    # A store that is behind its backup may have lost commits: only a full backup removes what reaches further.
    for reason in ("the store was created again; the store is at sequence 1, behind the 4 of the previous backup", ""):
        made = back_up(pool, folder, keep=1)
        assert (made.new_base or "").startswith(reason)
        assert made.bases == 3
    put(pool, *"vwxyz")
    assert back_up(pool, folder, keep=1).bases == 1
    assert faults(folder) == []


def test_a_full_backup_of_a_store_that_is_behind_removes_old_bases(pool: StorePool, folder: Path) -> None:
    put(pool, "a", "b")
    back_up(pool, folder)
    pool.drop(NAME)
    put(pool, "new")
    assert back_up(pool, folder, full=True, keep=1).bases == 1


def test_old_bases_are_removed(pool: StorePool, folder: Path) -> None:
    for name in "abc":
        put(pool, name)
        back_up(pool, folder, full=True)
    assert len(manifest(folder).bases) == 3
    put(pool, "d")
    made = back_up(pool, folder, keep=2)
    assert made.bases == 2
    runs = sorted(path.name for path in (folder / "stores" / NAME).glob("run-*"))
    assert runs == ["run-000002", "run-000003", "run-000004"]
    assert faults(folder) == []


def test_one_backup_at_a_time(pool: StorePool, folder: Path) -> None:
    put(pool, "a")
    back_up(pool, folder)
    with BackupFolder(folder).writing():
        with pytest.raises(Conflict, match="in use by another backup or restore"):
            back_up(pool, folder)
        assert "in use by a running backup" in faults(folder)[0]
    back_up(pool, folder)
    with BackupFolder(folder).reading(), pytest.raises(Conflict, match="another backup or restore"):
        back_up(pool, folder)


def test_leftovers_of_an_interrupted_backup_are_harmless(pool: StorePool, folder: Path) -> None:
    put(pool, "a")
    back_up(pool, folder)
    run = folder / "stores" / NAME / "run-000002"
    run.mkdir()
    (run / "00000000000000000001.999.log").write_bytes(b"half")
    (folder / "stores" / NAME / "manifest.json.new").write_bytes(b"{")
    (folder / "stores" / "unfinished" / "run-000001").mkdir(parents=True)
    assert faults(folder) == []
    assert restored(pool, folder).state.sequence == 1
    put(pool, "b")
    assert back_up(pool, folder).sequence == 2
    assert sorted(path.name for path in run.iterdir()) != ["00000000000000000001.999.log"]
    assert faults(folder) == []


def test_a_damaged_journal_is_not_backed_up(tmp_path: Path, folder: Path) -> None:
    options = {"journal_segment_mb": 1}
    with StorePool(settings(tmp_path / "data", **options)) as pool:
        put(pool, "a", "b", "c")
    flip(newest_segment(tmp_path / "data"), 60)
    with StorePool(settings(tmp_path / "data", **options)) as pool:
        with pytest.raises(JournalDamaged, match=r"00001\.log: a frame whose checksum does not fit at offset 0"):
            back_up(pool, folder)
        assert not (folder / "stores" / NAME / "manifest.json").exists()


def test_a_missing_file_of_the_previous_backup_is_reported(pool: StorePool, folder: Path) -> None:
    put(pool, "a")
    back_up(pool, folder)
    shutil.rmtree(folder / "stores" / NAME / "run-000001")
    put(pool, "b")
    with pytest.raises(Conflict, match=r"run-000001/.*: missing"):
        back_up(pool, folder)
    assert back_up(pool, folder, full=True, keep=1).bases == 1
    assert faults(folder) == []


def test_several_stores_in_one_folder(pool: StorePool, folder: Path) -> None:
    for name in ("a", "b", "c"):
        pool.create(name)
    done = ops.back_up_stores_to_folder(pool, folder, ["a", "gone", "c"], BackupOptions(live=True))
    assert [each.store for each in done.stores] == ["a", "c"]
    assert [(each.store, each.error) for each in done.failed] == [("gone", "there is no store 'gone'")]
    assert BackupFolder(folder).names() == ["a", "c"]
    with pytest.raises(NotFound, match="stores in it: a, c"):
        ops.restore_stores(pool, folder, [ops.StoreRestoreSpec("b", "x")])
    with pytest.raises(InvalidInput, match="holds 2 stores"):
        ops.select_backup_stores_to_restore(folder, None, "x", None)


def test_a_folder_with_other_files_is_rejected(pool: StorePool, tmp_path: Path) -> None:
    put(pool, "a")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(InvalidInput, match="holds other files and no backup"):
        back_up(pool, tmp_path / "home")
    assert [path.name for path in (tmp_path / "home").iterdir() if path.name != "backup.lock"] == ["letter.txt"]


def test_a_store_that_exists_is_not_replaced(pool: StorePool, folder: Path) -> None:
    put(pool, "a")
    back_up(pool, folder)
    put(pool, "b")
    with pytest.raises(Conflict, match="exists already"):
        restored(pool, folder, None, NAME)
    with pool.lease(NAME) as store:
        assert ids(store) == ["a", "b"]


def test_a_commit_made_while_files_are_copied_is_not_covered(pool: StorePool, folder: Path) -> None:
    put(pool, "a")

    def mark_then_write() -> int:
        put(pool, "b")
        return 1

    with pool.lease(NAME) as store:
        done = stores_back_up(
            BackupFolder(folder), [StoreToBackUp(store.layout, mark_then_write)], BackupOptions(live=True)
        ).stores[0]
        assert done.sequence == 1
        assert done.taken_at < format_rfc3339_timestamp(store.state.time)
        with pytest.raises(InvalidInput, match="is not covered"):
            restored(pool, folder, format_rfc3339_timestamp(store.state.time), "after")


def test_a_base_without_journal_continues_only_with_its_own_store(pool: StorePool, tmp_path: Path) -> None:
    before, folder, other = tmp_path / "before", tmp_path / "backup", tmp_path / "other"
    put(pool, *(f"a{n}" for n in range(3)))
    back_up(pool, before)
    put(pool, "b", "c")
    with pool.lease(NAME) as store:
        store.compactor.run()
    pool.close()
    with StorePool(pool.settings) as again:
        _forget_journal(again.layout(NAME), 5)
        back_up(again, folder, live=False)
        back_up(again, other, live=False)
        assert not manifest(folder).bases[0].pieces
        put(again, "goes on")
        assert back_up(again, folder, live=False).new_base == ""
        again.drop(NAME)
        ops.restore_stores(again, before, [ops.StoreRestoreSpec(NAME, NAME, None)])
        put(again, "x", "y", "z")
        assert "no journal in common" in back_up(again, other, live=False).new_base
        assert ids(restored(again, other)) == ["a0", "a1", "a2", "x", "y", "z"]


def _forget_journal(layout: StoreLayout, last: int) -> None:
    """Reduce a store to a snapshot, as after a restore from nothing else."""
    for segment in list_journal_segments(layout.journal):
        segment.path.unlink()
    journal_segment_path(layout.journal, last + 1).touch()
    (layout.root / "closed.json").unlink()


def test_concurrent_first_backups_into_one_folder_keep_each_other(folder: Path) -> None:
    with BackupFolder(folder).writing():
        pass
    (folder / "stores.json").unlink()
    with BackupFolder(folder).writing():
        mine = (folder / "stores.json").read_bytes()
        with pytest.raises(Conflict), BackupFolder(folder).writing():
            pytest.fail("two at once")
        assert (folder / "stores.json").read_bytes() == mine


def test_a_backup_folder_in_the_data_folder_is_rejected(pool: StorePool, tmp_path: Path) -> None:
    put(pool, "a")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for name in ("data/backup", "data/zoo_memory", f"data/{NAME}_memory/backup", "link/backup"):
        with pytest.raises(InvalidInput, match="lies in the data folder"):
            back_up(pool, tmp_path / name)
        assert not (tmp_path / name).exists()


def test_an_obstacle_at_a_backup_path_is_reported(pool: StorePool, folder: Path) -> None:
    put(pool, "a")
    back_up(pool, folder)
    (folder / "backup.lock").unlink()
    (folder / "backup.lock").mkdir()
    with pytest.raises(Unavailable, match="a file operation failed while making"):
        back_up(pool, folder)


def test_an_empty_backup_copied_without_folders_is_intact(pool: StorePool, folder: Path) -> None:
    ops.back_up_stores_to_folder(pool, folder, [], BackupOptions(live=True))
    (folder / "stores").rmdir()
    assert faults(folder) == []


def test_an_empty_backup_must_state_that_the_store_was_empty(pool: StorePool, folder: Path) -> None:
    pool.create(NAME)
    assert back_up(pool, folder).sequence == 0
    assert faults(folder) == []
    kept = BackupFolder(folder).store(NAME)
    base = kept.read().bases[0]
    # Older versions also wrote this for stores of another node.
    older = msgspec.structs.replace(base, marks=[msgspec.structs.replace(base.last, is_empty=False)])
    kept.write(msgspec.structs.replace(kept.read(), bases=[older]))
    assert b"is_empty" not in kept.path.read_bytes()
    assert "ends with sequence 0 without stating that the store was empty" in faults(folder)[0]
    with pytest.raises(BackupDamaged, match="Back up the store again"):
        restored(pool, folder)
    put(pool, "a")
    back_up(pool, folder)
    assert faults(folder) == []


def test_a_time_made_ambiguous_by_a_clock_ahead_is_not_restored(pool: StorePool, folder: Path) -> None:
    put(pool, "a")
    with pool.lease(NAME) as store:
        true_time = store.clock._read
        store.clock._read = lambda: true_time() + 2 * YEAR
        put(pool, "b")
        between = true_time()
        store.clock._read = true_time
        ahead = back_up(pool, folder)
        assert parse_rfc3339_timestamp(ahead.taken_at) < true_time() + MAX_CLOCK_DRIFT_MICROSECONDS
        with pytest.raises(
            InvalidInput, match=r"commit 2 was stamped .* by a clock that was ahead.*: 1 is the last one"
        ):
            restored(pool, folder, format_rfc3339_timestamp(between))
        put(pool, "c")
        right = back_up(pool, folder)
        with pytest.raises(InvalidInput, match="commit 2 was stamped"):
            restored(pool, folder, format_rfc3339_timestamp(between))
        assert restored(pool, folder, right.taken_at, "all").state.sequence == 3
        assert restored(pool, folder, "2", "two").state.sequence == 2


def test_foreign_folders_named_like_runs(pool: StorePool, folder: Path) -> None:
    put(pool, "a")
    back_up(pool, folder)
    (folder / "stores" / NAME / "run-²").mkdir()
    assert faults(folder) == []
    assert back_up(pool, folder).sequence == 1


def test_restore_fails_as_a_whole_if_one_store_exists(pool: StorePool, folder: Path) -> None:
    pool.create("a")
    pool.create("b")
    ops.back_up_stores_to_folder(pool, folder, ["a", "b"], BackupOptions(live=True))
    pool.drop("a")
    with pytest.raises(Conflict, match="'b' exists already"):
        ops.restore_stores(pool, folder, ops.select_backup_stores_to_restore(folder, None, None, None))
    assert pool.names() == ["b"]


def test_restore_by_time_within_the_covered_range(pool: StorePool, folder: Path) -> None:
    put(pool, "a", "b")
    made = back_up(pool, folder)
    assert restored(pool, folder, made.since, "empty").state.sequence == 0
    assert restored(pool, folder, made.taken_at, "full").state.sequence == 2
    for outside in ("2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "3"):
        with pytest.raises(InvalidInput, match="is not covered; this backup covers sequences 0 to 2"):
            restored(pool, folder, outside, "outside")
    with pytest.raises(InvalidInput, match="must be a sequence or an RFC 3339 time"):
        restored(pool, folder, "yesterday", "outside")


def test_restore_to_any_commit_within_a_packed_group(pool: StorePool, tmp_path: Path, folder: Path) -> None:
    with pool.lease(NAME, create=True) as store:
        with held(store):
            written = [store.submit(batch(*(f"{turn}-{n}" for n in range(200)), content="alike")) for turn in range(3)]
        for each in written:
            each.result(PATIENCE)
        [frame] = frames(tmp_path / "data")
        assert frame.packed
        assert (frame.first, frame.last) == (1, 3)
        back_up(pool, folder)
        assert faults(folder) == []
        for until in (1, 2, 3):
            again = restored(pool, folder, str(until), f"again-{until}")
            assert (again.state.sequence, again.state.nodes) == (until, 200 * until)
            assert ids(again) == sorted(f"{turn}-{n}" for turn in range(until) for n in range(200))
            assert again.description.format == store.description.format == STORE_FORMAT
        flip(newest_segment(tmp_path / "data"), frame.end // 2)
        with pytest.raises(JournalDamaged):
            back_up(pool, folder, full=True)


def test_writes_and_compactions_during_a_backup(pool: StorePool, folder: Path) -> None:
    stop = threading.Event()

    def write_on() -> None:
        number = 0
        with pool.lease(NAME, create=True) as store:
            while not stop.wait(SYNC_SECONDS):
                write(store, batch(f"n{number}", content=LONG * 20))
                number += 1
                if number % 15 == 0:
                    store.compactor.run()

    put(pool, "first")
    writing = threading.Thread(target=write_on)
    writing.start()
    try:
        made = [back_up(pool, folder, full=turn == 3) for turn in range(8)]
    finally:
        stop.set()
        writing.join()
    assert faults(folder) == []
    again = restored(pool, folder, str(made[-1].sequence))
    assert again.check().ok
    assert len(ids(again)) == made[-1].sequence


def test_damage_before_a_snapshot_only_shortens_the_covered_range(tmp_path: Path, folder: Path) -> None:
    data = tmp_path / "data"
    with StorePool(settings(data, journal_segment_mb=1)) as pool, pool.lease(NAME, create=True) as store:
        write(store, *(batch(f"n{n}", content=LONG * 40) for n in range(9)))
        store.compactor.run()
        segments = list_journal_segments(store.layout.journal)
        assert len(segments) > 1
        flip(segments[0].path, 100)
        write(store, batch("last"))
        made = back_up(pool, folder, live=False)
        assert (made.first, made.sequence) == (9, 10)
        assert faults(folder) == []
        assert ids(restored(pool, folder)) == ids(store)


def test_backups_of_unchanged_stores_write_one_list(tmp_path: Path, folder: Path) -> None:
    every, names = BackupOptions(live=True), ["a", "b", "c"]
    with StorePool(settings(tmp_path / "data", max_open_stores=1)) as pool:
        for name in names:
            with pool.lease(name, create=True) as store:
                write(store, batch("n"))

    def back_up_all(options: BackupOptions = every) -> dict[str, StoreBackupAnswer]:
        with StorePool(settings(tmp_path / "data")) as pool:
            done = ops.back_up_stores_to_folder(pool, folder, names, options)
            assert not done.failed
            return {each.store: each for each in done.stores}

    def manifests() -> dict[str, tuple[int, int]]:
        found = {name: (folder / "stores" / name / "manifest.json").stat() for name in names}
        return {name: (each.st_ino, each.st_mtime_ns) for name, each in found.items()}

    back_up_all()
    first, before = back_up_all(), manifests()
    second = back_up_all(BackupOptions(live=True, keep=1))
    assert manifests() == before
    assert all(second[name].taken_at > first[name].taken_at for name in names)
    assert [each.bases[0].until for each in verify_backup(BackupFolder(folder))] == [second[n].taken_at for n in names]
    with StorePool(settings(tmp_path / "data")) as pool:
        ops.restore_stores(pool, folder, [ops.StoreRestoreSpec("a", "again", second["a"].taken_at)])
        with pool.lease("b") as store:
            write(store, batch("m"))
    changed = back_up_all()
    assert {name for name in names if manifests()[name] != before[name]} == {"b"}
    assert (changed["b"].sequence, changed["b"].bytes_copied > 0, changed["a"].bytes_copied) == (2, True, 0)
    with newest_segment(tmp_path / "data", "a").open("ab") as segment:
        segment.write(b"a commit after an older mark of a clean close")
    back_up_all()
    assert manifests()["a"] != before["a"]
    (folder / BACKUP_UNCHANGED_FILE).write_bytes(b"damaged")
    assert faults(folder) == []
    assert back_up_all()["a"].new_base == ""
    flip(folder / "stores" / "c" / "run-000001" / f"{1:020d}.0.log", 20)
    assert [each.store for each in verify_backup(BackupFolder(folder)) if not each.ok] == ["c"]
    (folder / "stores" / "c" / "run-000001" / f"{1:020d}.0.log").unlink()
    with StorePool(settings(tmp_path / "data")) as pool:
        assert [each.store for each in ops.back_up_stores_to_folder(pool, folder, names, every).failed] == ["c"]
