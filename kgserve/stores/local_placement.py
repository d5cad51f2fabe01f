"""Placement of stores: where they are, and how commits become durable. Implements the single-server case."""

from __future__ import annotations

import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog
from typing_extensions import override

from kgserve.errors import Conflict, KgserveError, NoStore, ServedElsewhere
from kgserve.platform.access.audit import read_newest_audit_records
from kgserve.platform.access.audit_api import AuditRecord
from kgserve.platform.durable_files import fsync_folder
from kgserve.platform.file_permissions import create_private_folder
from kgserve.platform.metrics.app_metrics_and_request_context import ClusterNodeMetrics
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.storage.data_folder_store_index import DataFolderStoreIndex
from kgserve.storage.journal.journal import Journal, JournalFrame
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.store_incarnations import begin_store_incarnation
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.store_folder_layout import (
    PLAIN_STORE_FORMAT,
    StoreDescription,
    StoreLayout,
    read_closed_store_state,
    read_store_settings_records,
)
from kgserve.stores.cluster_models import ClusterFormatUpgradeAnswer, ClusterStatus, StoreMoveAnswer
from kgserve.stores.dropped_store_names import DroppedStoreNames

log = structlog.get_logger()

NODE_FILE = "cluster.json"
"""File that marks a data folder as a node of a cluster; its journals are replicas of the cluster's logs."""
FOLLOWER_FILE = "following.json"
"""File that marks a data folder as a read-only copy that follows a replication target."""
NOT_CLUSTERED_MESSAGE = "this server is not a node of a cluster; start it with --cluster to join one"
_DROPPED_STORE_PREFIX = ".dropped-"
_PROVISIONAL_STORE_PREFIX = ".creating-"


class CommitLog:
    """Durable log of an open store's commits; in this base class a commit is durable once on the local disk."""

    is_copy = False
    """True if the store is a read replica of a store served by another server."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    @property
    def is_current(self) -> bool:
        """True if the store may be read and written; if not, `confirm` decides. Never blocks. Raises Unavailable."""
        return True

    @property
    def age(self) -> float:
        """Seconds since a replica was known to contain every acknowledged commit; 0.0 for the serving node."""
        return 0.0

    def require_log_contact(self) -> None:
        """Check that a replica can be updated now.

        Raises ServedElsewhere, or Unavailable if the serving node is out of reach as well.
        """

    def confirm(self) -> bool:
        """Return whether this server still serves the store. If not, the store has to be placed and opened again.

        May block. Raises Unavailable.
        """
        return True

    def catch_up(self, store: ReplicaStore) -> None:
        """Apply the commits that a replica is missing. May block. Raises StorageFull and Unavailable."""

    def append(self, changes: list[ChangeSet]) -> None:
        """Make consecutive change sets durable, all or none. Raises StorageFull and Unavailable."""
        self.journal.append(changes)

    def begin_segment(self) -> None:
        """Start a new segment of the journal, so that all commits before it can be erased.

        Raises StorageFull and Unavailable.
        """
        self.journal.begin_segment()

    def replicate_snapshot(self, *, alone: bool = False) -> AbstractContextManager[None]:  # noqa: ARG002 - used by cluster nodes
        """Replicate the snapshot taken within the block, and trim the log before it.

        With ``alone``, older log entries are removed from the replicas entirely. Raises StorageFull and Unavailable.
        """
        return nullcontext()

    def note(self) -> None:
        """Record what speeds up the next open, before the journal is closed. Raises StorageFull.

        A single server needs nothing: the clean-close marker is enough.
        """


class CopyCommitLog(CommitLog, ABC):
    """Commit log of a copy, which accepts only the commits of the serving server that are being applied."""

    is_copy = True

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self._incoming: tuple[list[ChangeSet], bytes] | None = None

    def apply_frame(self, store: ReplicaStore, frame: JournalFrame, data: bytes) -> None:
        """Apply a frame of the serving server, of which ``data`` is the encoding, to the open store.

        Raises StorageFull and Unavailable.
        """
        changes = frame.changes()
        self._incoming = changes, data
        try:
            store.follow(changes)
        finally:
            self._incoming = None

    @abstractmethod
    def build_write_refusal(self) -> KgserveError:
        """Return the error for a caller's write, or raise it."""

    @override
    def append(self, changes: list[ChangeSet]) -> None:
        # Compared by identity: the writer thread may plan a caller's write meanwhile.
        if self._incoming is None or self._incoming[0] is not changes:
            raise self.build_write_refusal()
        self.journal.append_frame(self._incoming[1], changes[0].sequence, changes[-1].sequence)


class ReplicaStore(Protocol):
    """An open store that can apply replicated commits."""

    @property
    def commits(self) -> CommitLog:
        """Log that makes its commits durable."""
        ...

    def follow(self, changes: list[ChangeSet]) -> None:
        """Apply commits of another server, and block until readers see them."""
        ...


class OpenStoreLookup(Protocol):
    """Lookup of the stores that are open in this process."""

    def peek_open(self, name: str) -> AbstractContextManager[ReplicaStore | None]:
        """Yield the named store if it is open, else None."""
        ...

    def reserve_if_closed(self, name: str) -> AbstractContextManager[bool]:
        """Yield whether a store is closed; if so, it stays closed within the block."""
        ...


class RemoteStore(NamedTuple):
    """A store served by another node of the cluster."""

    node: str
    description: StoreDescription


class StorePlacement:
    """Placement of stores; this base class keeps them in a data folder owned by this server alone. Thread-safe."""

    counts: ClusterNodeMetrics | None = None
    """Counters of cluster activity; None outside a cluster."""
    is_shared = False
    """True if other servers may have replicas of its stores."""

    def __init__(self, data_dir: Path, settings: Settings) -> None:
        """Open the data folder. Raises Conflict if it belongs to a cluster node, since local writes would be lost."""
        self.data_dir = data_dir
        self._settings = settings
        self._making = threading.Lock()
        self.index = DataFolderStoreIndex(data_dir)
        self._dropped_names = DroppedStoreNames(data_dir)
        # Called with the name of a store whose local replica is obsolete. Callbacks must not block.
        self.outdated: list[Callable[[str], object]] = []
        self._check_folder()

    @property
    def age(self) -> float | None:
        """Seconds since the moment of which all stores have every commit; None if they are not copies."""
        return None

    def names(self) -> list[str]:
        """Return the names of all stores, sorted."""
        return self.local_store_names()

    def local_store_names(self) -> list[str]:
        """Return the names of the stores whose current state is in this folder, sorted."""
        return self.index.names()

    def layout(self, name: str) -> StoreLayout:
        """Return the file layout of a store, whether it exists or not."""
        return StoreLayout(self.data_dir, name)

    def exists(self, name: str) -> bool:
        """Return whether the store exists."""
        return self.layout(name).exists

    def is_here(self, name: str) -> bool:
        """Return whether this folder holds the current state of a store."""
        return self.exists(name)

    def find_remote_store(self, name: str) -> RemoteStore | None:  # noqa: ARG002 - used by cluster nodes
        """Return what is known of a store served by another node, or None for a local store."""
        return None

    def find_redirect(self, name: str) -> ServedElsewhere | None:  # noqa: ARG002 - as above
        """Return which other node serves a store, from cached knowledge that may be outdated."""
        return None

    def place(self, name: str, chosen: StoreSettings | None) -> bool:
        """Make the files of a store available for opening, and return whether the store was created with ``chosen``.

        Raises NoStore if it does not exist and ``chosen`` is None, and Conflict if the name is not available.
        """
        layout = self.layout(name)
        if layout.exists:
            return False
        if chosen is None:
            raise NoStore(name)
        self._make(layout, new_store_description(chosen, was_dropped=name in self._dropped_names))
        return True

    def place_replica(self, name: str) -> None:
        """Make replica files of a store that another server serves available for opening. Raises NoStore."""
        raise NoStore(name)

    def begin(self, pool: OpenStoreLookup) -> None:
        """Start following the replicas of other servers' stores, until `close`."""

    def close(self) -> None:
        """Stop following replicas."""

    def status(self, *, look: bool = True) -> ClusterStatus:  # noqa: ARG002 - as above
        """Return the nodes of the cluster; without ``look``, as last seen. Raises Conflict outside a cluster."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def find_disconnection(self) -> str:
        """Return what this node is cut off from, its log or its peers, as a sentence; empty if from neither."""
        return ""

    def hand_over(self, name: str, node: str) -> StoreMoveAnswer:  # noqa: ARG002 - as above
        """Transfer a closed store, placed here, to another node. Raises Conflict, and the errors of `describe`."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def await_opened(self, name: str, node: str, until: float) -> str:  # noqa: ARG002 - as above
        """Wait until another node has opened a store handed over to it. Return the reason if it has not, else "".

        until: deadline as a `time.monotonic` reading. Raises Conflict.
        """
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def drain(self, *, undo: bool) -> list[str]:  # noqa: ARG002 - as above
        """Stop this node from taking over stores, or undo that. Return the stores it owns. Blocks. Raises Conflict."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def choose_successor(self, name: str) -> str:  # noqa: ARG002 - as above
        """Return the node that should serve a store instead of this one. Raises Conflict and Unavailable."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def repair(self, name: str) -> int:  # noqa: ARG002 - as above
        """Rebuild a store's damaged log from its local files, once it is placed and opened.

        Return the number of log frames compared. Raises Conflict, NoStore and Unavailable.
        """
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def finalize_cluster_upgrade(self) -> ClusterFormatUpgradeAnswer:
        """Switch all nodes to writing the newest format. Raises Conflict and Unavailable."""
        raise Conflict(NOT_CLUSTERED_MESSAGE)

    def read_audit_records(self, node: str | None, limit: int) -> list[AuditRecord]:
        """Return the newest audit records of this server, of all cluster nodes, or of one ``node``; oldest first.

        Raises Conflict, NotFound and Unavailable.
        """
        if node is not None:
            raise Conflict(NOT_CLUSTERED_MESSAGE)
        return read_newest_audit_records(self.data_dir, limit)

    def token_of(self, node: str) -> str:  # noqa: ARG002 - as above
        """Return the token that authorizes all requests to another node, or "" for an unknown node."""
        return ""

    def other_node_urls(self) -> dict[str, str]:
        """Return the URLs of the other live nodes, by name."""
        return {}

    def open_commit_log(self, name: str, journal: Journal) -> CommitLog:  # noqa: ARG002 - as above
        """Return the log for the commits of a store that was placed and is being opened."""
        return CommitLog(journal)

    def describe(self, layout: StoreLayout, description: StoreDescription) -> StoreDescription:
        """Write the description of an open store durably. Raises OSError and Unavailable."""
        return layout.describe(description)

    def adopt(self, name: str, folder: Path) -> None:
        """Turn a finished folder within the data folder into the named store. Raises Conflict if the store exists."""
        with self._making:
            root = self.layout(name).root
            if root.exists() or root.is_symlink():
                raise Conflict(f"store {name!r} exists already")
            self._refuse_twin(name)
            folder.rename(root)
            fsync_folder(self.data_dir)

    def drop(self, name: str) -> None:
        """Delete a closed store that was placed here."""
        with suppress(OSError):
            self._dropped_names.add(name)
        self.remove(name)
        try:
            self._dropped_names.add(name)  # again, where the disk was full before
        except OSError as error:
            log.warning("drop_not_recorded", store=name, error=str(error))

    def list_set_aside_copies(self, name: str) -> list[Path]:  # noqa: ARG002 - used by cluster nodes
        """Return the folders that were files of a store until they were replaced by its replica."""
        return []

    def forget_outdated(self, name: str) -> bool:  # noqa: ARG002 - as above
        """Remove an obsolete replica. Return whether its store, served by another server, was dropped."""
        return False

    def mark_provisional(self, name: str) -> None:
        """Mark a store that is about to be created: if it is still empty at the next start, it is removed."""
        if not self.is_shared:
            self._provisional_mark(name).touch(0o600)

    def confirm_creation(self, name: str) -> None:
        """Durably remove the mark of a store that was created provisionally."""
        self._provisional_mark(name).unlink(missing_ok=True)
        fsync_folder(self.data_dir)

    def _provisional_mark(self, name: str) -> Path:
        return self.data_dir / f"{_PROVISIONAL_STORE_PREFIX}{name}"

    def remove(self, name: str) -> None:
        """Remove a store's files."""
        self._provisional_mark(name).unlink(missing_ok=True)
        trash = self.staging(name)
        self.layout(name).root.rename(trash)
        # The rename is durable before any file is removed, so that a crash never leaves half a store.
        fsync_folder(self.data_dir)
        shutil.rmtree(trash, ignore_errors=True)

    def staging(self, name: str) -> Path:
        """Return a path in the data folder for a store that is being prepared or removed."""
        return self.data_dir / f"{_DROPPED_STORE_PREFIX}{name}-{time.time_ns()}"

    def clear_trash(self) -> None:
        """Remove what an earlier process left half prepared or half removed, and provisional stores without content."""
        for mark in self.data_dir.glob(f"{_PROVISIONAL_STORE_PREFIX}*"):
            layout = self.layout(mark.name.removeprefix(_PROVISIONAL_STORE_PREFIX))
            if layout.exists and _is_without_content(layout):
                log.warning("empty_store_removed", store=layout.name, reason="its first import was interrupted")
                self.remove(layout.name)
            mark.unlink(missing_ok=True)
        for path in self.data_dir.glob(f"{_DROPPED_STORE_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _check_folder(self) -> None:
        if (self.data_dir / FOLLOWER_FILE).exists():
            raise Conflict(
                f"{self.data_dir} is a read-only copy that follows a replication target; serve it with `kgserve "
                "follow`, or make it writable with `kgserve promote`"
            )
        if (self.data_dir / NODE_FILE).exists():
            raise Conflict(
                f"{self.data_dir} belongs to a cluster node, and only that node may write to its stores; "
                "start the node with --cluster and send requests to it"
            )

    def _make(self, layout: StoreLayout, description: StoreDescription) -> None:
        """Create the files of a new, empty store. Raises Conflict."""
        with self._making:
            self._refuse_twin(layout.name)
            create_private_folder(layout.root)
        create_store_files(layout, self._settings.journal_segment_mb, description)

    def _others(self) -> Iterable[str]:
        """Return all names in use, including those of incomplete stores."""
        return self.index.folder_names()

    def _refuse_twin(self, name: str) -> None:
        """Raise Conflict if another store's name differs only in case: some file systems fold case."""
        folded = name.lower()
        for other in self._others():
            if other.lower() == folded and other != name:
                raise Conflict(f"a store named {other!r} exists, and names must differ in more than case")


def _is_without_content(layout: StoreLayout) -> bool:
    """Return whether a closed store has no commit, and the settings that it was created with."""
    try:
        return (
            read_closed_store_state(layout).sequence == 0 and len([*read_store_settings_records(layout.journal)]) <= 1
        )
    except (KgserveError, OSError):
        return False


def new_store_description(chosen: StoreSettings, *, was_dropped: bool = False) -> StoreDescription:
    """Return the description of a store created now with the ``chosen`` settings.

    was_dropped: another store had its name, so that positions in its events need the tag of an incarnation.
    """
    incarnations = (begin_store_incarnation(),) if was_dropped else ()
    return StoreDescription(PLAIN_STORE_FORMAT, time.time_ns() // 1000, incarnations=incarnations).with_settings(
        chosen, 0
    )


def create_store_files(layout: StoreLayout, segment_mb: int, description: StoreDescription) -> None:
    """Create the files of a new, empty store."""
    create_private_folder(layout.root)
    # Written before the journal, whose presence makes the folder a store, so that its settings always exist.
    layout.describe(description)
    Journal.create(layout.journal, segment_mb * MEBIBYTE).close()
