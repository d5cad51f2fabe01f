"""Where the stores of a pool are, and how their commits become durable: in one folder, and nowhere else."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from kgserve.errors import Conflict, InvalidInput, NoStore, ServedElsewhere
from kgserve.platform.access.audit import newest_records
from kgserve.platform.access.audit_api import AuditRecord
from kgserve.platform.durable_files import sync_folder
from kgserve.platform.metrics.observation import NodeCounts
from kgserve.platform.permissions import private_folder
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.storage.journal.journal import Journal
from kgserve.storage.layout import PLAIN_STORE_FORMAT, STORE_FOLDER_SUFFIX, Layout, StoreFile, holds_store
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.stores.cluster_api import ClusterStatus, MoveAnswer, UpgradeAnswer

log = structlog.get_logger()

NODE_FILE = "cluster.json"
"""What says that the journals of a data folder are copies of what a cluster has."""
NOT_CLUSTERED_MESSAGE = "this server is no node of a cluster; --cluster makes it one"
_DROPPED_STORE_PREFIX = ".dropped-"


class CommitLog:
    """How the commits of an open store become durable: here, once this machine's disk has them."""

    is_copy = False
    """Whether the store is another server's, and this one has its commits after that."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    @property
    def is_current(self) -> bool:
        """Whether the store may be asked and written to; if not, `confirm` says more. At once. Raises Unavailable."""
        return True

    def confirm(self) -> bool:
        """Whether the store is still this server's to be asked; if not, it has to be placed and opened anew.

        May wait. Raises Unavailable.
        """
        return True

    def catch_up(self, store: CommittingStore) -> None:
        """Have a copy take in what its store has come to by now. May wait. Raises StorageFull and Unavailable."""

    def append(self, changes: list[ChangeSet]) -> None:
        """Make consecutive change sets durable, all or none of them. Raises StorageFull and Unavailable."""
        self.journal.append(changes)

    def keeping(self, *, alone: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002 - a cluster has to know
        """Have the snapshot that is taken within the block wherever the store is kept, and less of what came before.

        With ``alone`` nothing that is over is kept there any more. Raises StorageFull and Unavailable.
        """
        return nullcontext()

    def note(self) -> None:
        """Put down what makes the next opening quick, before the journal is closed. Raises StorageFull.

        Here the mark of a clean close says it.
        """


class CommittingStore(Protocol):
    """A store that is open."""

    @property
    def commits(self) -> CommitLog:
        """What makes its commits durable."""
        ...

    def follow(self, changes: list[ChangeSet]) -> None:
        """Take in commits of another server, and wait until readers see them."""
        ...


class HeldStores(Protocol):
    """The stores that are open here."""

    def held_open(self, name: str) -> AbstractContextManager[CommittingStore | None]:
        """The store of a name, if it is open."""
        ...

    def unopened(self, name: str) -> AbstractContextManager[bool]:
        """Whether nobody has a store open; within the block nobody opens it then."""
        ...


class Away(NamedTuple):
    """A store that another node of the cluster serves."""

    node: str
    description: StoreFile


class Placement:
    """The stores of a data folder that is nobody else's. Made by a pool, used by any thread."""

    counts: NodeCounts | None = None
    """What a node of a cluster has done."""
    is_shared = False
    """Whether other servers may have copies of its stores."""

    def __init__(self, data_dir: Path, settings: Settings) -> None:
        """Raises Conflict for a folder whose journals are copies: to write there would be to lose it."""
        self.data_dir = data_dir
        self._settings = settings
        self._making = threading.Lock()
        # Called with the name of a store whose copy here is to be kept no more: for waking, not for work.
        self.outdated: list[Callable[[str], object]] = []
        self._check_folder()

    def names(self) -> list[str]:
        """All stores that there are, in order."""
        return self.here()

    def here(self) -> list[str]:
        """The stores whose present state is in this folder, in order."""
        found = (
            (path.name.removesuffix(STORE_FOLDER_SUFFIX), path)
            for path in self.data_dir.glob(f"*{STORE_FOLDER_SUFFIX}")
        )
        return sorted(name for name, path in found if _is_name(name) and holds_store(path))

    def layout(self, name: str) -> Layout:
        """Where a store's files are, or would be."""
        return Layout(self.data_dir, name)

    def exists(self, name: str) -> bool:
        """Whether there is such a store."""
        return self.layout(name).exists

    def is_here(self, name: str) -> bool:
        """Whether the files of a store in this folder are its present state."""
        return self.exists(name)

    def away(self, name: str) -> Away | None:  # noqa: ARG002 - a node of a cluster looks it up
        """What is known of a store that another node serves, or would be asked for; None for one that is here."""
        return None

    def elsewhere(self, name: str) -> ServedElsewhere | None:  # noqa: ARG002 - as above
        """Who else serves a store, as far as is known without asking anybody; it may have moved since."""
        return None

    def place(self, name: str, chosen: StoreSettings | None) -> bool:
        """Have the files of a store in this folder, to be opened; whether it was made, with the ``chosen`` settings.

        Raises NoStore for one that is not there when nothing was chosen, Conflict for a name that cannot be had.
        """
        layout = self.layout(name)
        if layout.exists:
            return False
        if chosen is None:
            raise NoStore(name)
        self._make(layout, described(chosen))
        return True

    def place_copy(self, name: str) -> None:
        """Have files of a store that another server serves in this folder, to be opened as a copy. Raises NoStore."""
        raise NoStore(name)

    def begin(self, pool: HeldStores) -> None:
        """Go on with the copies of stores that other servers serve, until `close`."""

    def close(self) -> None:
        """Go on with no copies any more."""

    def status(self, *, look: bool = True) -> ClusterStatus:  # noqa: ARG002 - as above
        """The nodes of the cluster; without a ``look`` as they were last seen. Raises Conflict where there is none."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def hand_over(self, name: str, node: str) -> MoveAnswer:  # noqa: ARG002 - as above
        """Have another node serve a store, which is closed and was placed here. Raises Conflict, and as `describe`."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def await_opened(self, name: str, node: str, until: float) -> str:  # noqa: ARG002 - as above
        """Wait until another node has opened a store that was handed over to it; why it has not, else empty.

        until: a reading of `time.monotonic`. Raises Conflict.
        """
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def drain(self, *, undo: bool) -> list[str]:  # noqa: ARG002 - as above
        """Have this node take no stores over, or again; those that it claims. Blocks. Raises Conflict."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def successor(self, name: str) -> str:  # noqa: ARG002 - as above
        """The node that is to serve a store in the place of this one. Raises Conflict and Unavailable."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def repair(self, name: str) -> int:  # noqa: ARG002 - as above
        """Have a store's log, which was torn, begin anew with its files here, once it is placed and opened.

        How many frames of the log were compared. Raises Conflict, NoStore and Unavailable.
        """
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def finish_upgrade(self) -> UpgradeAnswer:
        """Have all nodes write in the newest format. Raises Conflict and Unavailable."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def recorded(self, node: str | None, limit: int) -> list[AuditRecord]:
        """The newest of what this server, the nodes of its cluster, or one ``node`` put on record; oldest first.

        Raises Conflict, NotFound and Unavailable.
        """
        if node is not None:
            raise Conflict(NOT_CLUSTERED_MESSAGE)
        return newest_records(self.data_dir, limit)

    def token_of(self, node: str) -> str:  # noqa: ARG002 - as above
        """What opens everything at another node, empty for one that is not known."""
        return ""

    def others(self) -> dict[str, str]:
        """The other nodes of the cluster that are alive, and where each is reached."""
        return {}

    def commits(self, name: str, journal: Journal) -> CommitLog:  # noqa: ARG002 - as above
        """How the journal of a store that was placed and is being opened is written from now on."""
        return CommitLog(journal)

    def describe(self, layout: Layout, description: StoreFile) -> StoreFile:
        """Put down what an open store is; durable afterwards. Raises OSError and Unavailable."""
        return layout.describe(description)

    def adopt(self, name: str, folder: Path) -> None:
        """Make a finished folder within the data folder the store of a name. Raises Conflict when there is one."""
        with self._making:
            root = self.layout(name).root
            if root.exists() or root.is_symlink():
                raise Conflict(f"store {name!r} exists already")
            self._refuse_twin(name)
            folder.rename(root)
            sync_folder(self.data_dir)

    def drop(self, name: str) -> None:
        """Have a store be no more, which is closed and was placed here."""
        self.remove(name)

    def forget_outdated(self, name: str) -> bool:  # noqa: ARG002 - as above
        """Remove a copy that is to be kept no more; whether the store, which another server had, was dropped."""
        return False

    def remove(self, name: str) -> None:
        """Remove a store's files."""
        trash = self.staging(name)
        self.layout(name).root.rename(trash)
        # Before anything in it goes: it is there as a whole, or not at all.
        sync_folder(self.data_dir)
        shutil.rmtree(trash, ignore_errors=True)

    def staging(self, name: str) -> Path:
        """A path in the data folder for what is being made, or removed."""
        return self.data_dir / f"{_DROPPED_STORE_PREFIX}{name}-{time.time_ns()}"

    def clear_trash(self) -> None:
        """Remove what a process that ended has left half made, or half removed."""
        for path in self.data_dir.glob(f"{_DROPPED_STORE_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _check_folder(self) -> None:
        if (self.data_dir / NODE_FILE).exists():
            raise Conflict(
                f"{self.data_dir} belongs to a node of a cluster, whose stores are written through their node alone: "
                "start it with --cluster, and ask it"
            )

    def _make(self, layout: Layout, description: StoreFile) -> None:
        """Make the files of a new, empty store. Raises Conflict."""
        with self._making:
            self._refuse_twin(layout.name)
            private_folder(layout.root)
        create_store(layout, self._settings.journal_segment_mb, description)

    def _others(self) -> Iterable[str]:
        """The names that are taken, also by what is no store yet."""
        return (path.name[: -len(STORE_FOLDER_SUFFIX)] for path in self.data_dir.glob(f"*{STORE_FOLDER_SUFFIX}"))

    def _refuse_twin(self, name: str) -> None:
        """Names that differ in case alone would be one folder where file systems fold case."""
        for other in self._others():
            if other.lower() == name.lower() and other != name:
                raise Conflict(f"there is a store {other!r} whose name differs in case alone")


def described(chosen: StoreSettings) -> StoreFile:
    """What a store is that is made now with the ``chosen`` settings."""
    return StoreFile(PLAIN_STORE_FORMAT, time.time_ns() // 1000).with_settings(chosen, 0)


def create_store(layout: Layout, segment_mb: int, description: StoreFile) -> None:
    """Make the files of a new, empty store."""
    private_folder(layout.root)
    # Before the journal, which makes it a store: there is no moment at which it has other settings.
    layout.describe(description)
    Journal.create(layout.journal, segment_mb * MEBIBYTE).close()


def _is_name(name: str) -> bool:
    try:
        check_store_name(name)
    except InvalidInput:
        return False
    return True
