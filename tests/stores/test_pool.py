"""Store pool: stores are opened and closed on demand, none is lost, and nothing stays open."""

from __future__ import annotations

import contextlib
import errno
import gc
import resource
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from kgserve.errors import Conflict, InvalidInput, KgserveError, NotFound, Unavailable
from kgserve.platform.file_descriptors import DESCRIPTORS_PER_STORE, count_free_descriptors, get_descriptor_limit
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.stores.writing import PATIENCE, ask, assert_whole, batch, ids, settings, until


def descriptors(folder: Path) -> list[str]:
    """Return the open files of a folder, ignoring those of other tests' servers in this process."""
    return [name for name in map(target, Path("/proc/self/fd").iterdir()) if name.startswith(str(folder))]


def target(descriptor: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return str(descriptor.readlink())
    return ""


def threads_of_stores(names: list[str]) -> set[threading.Thread]:
    """Return the threads of these stores and of pools, ignoring those of other tests' servers in this process."""
    own = {"checker", "copies", "tender", *(f"{kind}-{name}" for kind in ("fold", "writer") for name in names)}
    return {each for each in threading.enumerate() if each.name in own}


def write(pool: StorePool, name: str, *node_ids: str) -> None:
    with pool.lease(name, create=True) as store:
        store.submit(batch(*node_ids)).result(PATIENCE)


def test_more_stores_than_the_limit_can_be_used(tmp_path: Path) -> None:
    names = [f"store{number}" for number in range(12)]
    before = {*threading.enumerate()}
    failures: list[Exception] = []
    with StorePool(settings(tmp_path, max_open_stores=3)) as pool:

        def work(worker: int) -> None:
            try:
                for turn in range(2):
                    for name in names:
                        write(pool, name, f"{worker}-{turn}")
            except KgserveError as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert threads_of_stores(names) - before
        assert failures == []
        assert len(pool.open_stores()) <= 3
        assert pool.names() == sorted(names)
        for name in names:
            with pool.lease(name) as store:
                assert store.engine.rebuilds == 0
                assert ids(store) == [f"{worker}-{turn}" for worker in range(3) for turn in range(2)]
        with pool.lease(names[0]) as store:
            assert_whole(store)
    assert descriptors(tmp_path) == []
    until(lambda: not threads_of_stores(names) - before)


class UnsavableIndex:
    """Observer whose files cannot be saved, as on a full disk."""

    of_copies = False

    def __init__(self) -> None:
        self.closed = list[str]()

    def on_store_opened(self, store: OpenStore) -> None:
        """Observe nothing."""

    def on_store_closing(self, store: OpenStore) -> None:
        """Fail to save."""
        self.closed.append(store.name)
        raise OSError(errno.ENOSPC, "no space left")

    def halt(self) -> None:
        """Stop nothing."""


def test_a_store_whose_files_cannot_be_saved_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, indexes = {*threading.enumerate()}, (UnsavableIndex(), UnsavableIndex())

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with StorePool(settings(tmp_path)) as pool:
        pool.companions += indexes
        write(pool, "store", "a")
        with pool.lease("store") as store:
            ask(store)
            monkeypatch.setattr(store.layout, "mark_engine", refuse)
    assert [each.closed for each in indexes] == [["store"]] * 2
    assert descriptors(tmp_path) == []
    until(lambda: not threads_of_stores(["store"]) - before)
    monkeypatch.undo()
    with StorePool(settings(tmp_path)) as pool, pool.lease("store") as store:
        assert_whole(store)


def test_a_store_in_use_stays_open_beyond_the_limit(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path, max_open_stores=1)) as pool:
        with pool.lease("a", create=True) as first, pool.lease("b", create=True):
            assert set(pool.open_stores()) == {"a", "b"}
            first.submit(batch("n")).result(PATIENCE)
        write(pool, "c", "n")
        assert set(pool.open_stores()) == {"c"}


def test_the_most_recently_used_store_stays_open(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path, max_open_stores=2)) as pool:
        for name in ("a", "b", "a", "c"):
            write(pool, name, "n")
        assert set(pool.open_stores()) == {"a", "c"}


def test_reading_a_missing_store_does_not_create_it(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        with pytest.raises(NotFound), pool.lease("nothing"):
            pass
        assert pool.names() == []
        assert pool.open_stores() == {}
        assert not list(tmp_path.glob("*_memory"))


def test_create_returns_whether_the_store_was_created(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        assert [pool.create("a"), pool.create("a")] == [True, False]


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b", "a b", ".hidden", "-a", "_a", "demo\n", "ü", "a\0", "a" * 65, "CON", "nul", "Com1"]
)
def test_invalid_store_names_are_rejected(tmp_path: Path, name: str) -> None:
    with StorePool(settings(tmp_path)) as pool:
        for use in (pool.create, pool.drop, pool.acquire):
            with pytest.raises(InvalidInput):
                use(name)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith("_memory")]


def test_store_names_that_differ_only_in_case_conflict(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        pool.create("Demo")
        with pytest.raises(Conflict):
            pool.create("demo")
        assert pool.names() == ["Demo"]


def test_drop_removes_all_files_and_frees_the_name(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        write(pool, "a", "old")
        pool.drop("a")
        assert (pool.names(), list(tmp_path.glob("*a*"))) == ([], [])
        for use in (pool.drop, pool.acquire):
            with pytest.raises(NotFound):
                use("a")
        write(pool, "a", "new")
        with pool.lease("a") as store:
            assert (ids(store), store.state.sequence) == (["new"], 1)


def test_drop_waits_for_leases_of_the_store(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        store = pool.acquire("a", create=True)
        dropping = threading.Thread(target=pool.drop, args=("a",))
        dropping.start()
        store.submit(batch("n")).result(PATIENCE)
        assert dropping.is_alive()
        pool.release(store)
        dropping.join(PATIENCE)
        assert pool.names() == []


def test_concurrent_drop_and_use_of_a_store(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        stop = threading.Event()
        unexpected: list[Exception] = []

        def work(number: int) -> None:
            while not stop.wait(0.05):
                try:
                    write(pool, "a", f"n{number}")
                except (Unavailable, NotFound, Conflict):
                    pass
                except Exception as error:  # noqa: BLE001  # shown at the end
                    unexpected.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            with contextlib.suppress(NotFound, Conflict):
                pool.drop("a")
            stop.wait(0.1)
        stop.set()
        for thread in threads:
            thread.join()
        assert unexpected == []
        write(pool, "a", "last")
        with pool.lease("a") as store:
            assert_whole(store)


def test_a_symlink_as_store_folder_is_refused(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with StorePool(settings(elsewhere)) as pool:
        write(pool, "a", "n")
    data.mkdir()
    (data / "a_memory").symlink_to(elsewhere / "a_memory")
    with StorePool(settings(data)) as pool:
        assert pool.names() == []
        for use in (pool.acquire, pool.create, pool.drop):
            with pytest.raises(NotFound):
                use("a")
        assert (data / "a_memory").is_symlink()
    assert (elsewhere / "a_memory" / "journal").is_dir()


@pytest.mark.parametrize("name", ["it's", 'say "hi"', "back\\slash", "new\nline", "a*", "a?", "[a]"])
def test_folder_names_that_the_engine_cannot_open_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        StorePool(settings(tmp_path / name))
    assert not (tmp_path / name).exists()


def test_unusual_but_valid_folder_names(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path / "with space & ümlaut; 日本")) as pool:
        write(pool, "a", "n")
        with pool.lease("a") as store:
            store.compactor.run()
            assert store.compactor.done == 1
            assert_whole(store)


def test_a_closed_pool_rejects_requests(tmp_path: Path) -> None:
    pool = StorePool(settings(tmp_path))
    write(pool, "a", "n")
    pool.close()
    pool.close()
    with pytest.raises(Unavailable):
        pool.acquire("a")


def test_an_interrupted_drop_is_completed_at_the_next_start(tmp_path: Path) -> None:
    left = tmp_path / ".dropped-a-1"
    left.mkdir()
    (left / "file").touch()
    StorePool(settings(tmp_path)).close()
    assert not left.exists()


def test_a_folder_without_a_journal_is_not_a_store(tmp_path: Path) -> None:
    (tmp_path / "a_memory").mkdir()
    with StorePool(settings(tmp_path)) as pool:
        assert pool.names() == []
        write(pool, "a", "n")
        assert pool.names() == ["a"]


def test_open_stores_are_checked_periodically(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path, check_interval=0.1)) as pool:
        write(pool, "a", "n")
        store = pool.open_stores()["a"]
        until(lambda: store.last_check is not None)
        assert store.last_check is not None
        assert store.last_check.ok


@contextlib.contextmanager
def few_descriptors(free: int) -> Generator[None]:
    gc.collect()  # what earlier tests left must not free descriptors later on
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (get_descriptor_limit() - count_free_descriptors() + free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_idle_stores_close_when_descriptors_are_short(tmp_path: Path) -> None:
    """A store that finds no descriptors is refused while others are in use, and opens once they are idle."""
    names = [f"s{number}" for number in range(60)]
    with few_descriptors(2 * DESCRIPTORS_PER_STORE + 10), StorePool(settings(tmp_path)) as pool:
        for name in names:
            write(pool, name, "a")
        assert 0 < len(pool.open_stores()) < len(names)
        with contextlib.ExitStack() as held:

            def hold_all() -> None:
                for name in names:
                    held.enter_context(pool.lease(name))

            with pytest.raises(Unavailable, match="LimitNOFILE") as refused:
                hold_all()
            assert refused.value.retry_after
        for name in names:
            with pool.lease(name) as store:
                assert ids(store) == ["a"]
