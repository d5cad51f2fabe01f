"""Files that a data folder has for replication: its identity, what it follows, and the progress of shipping."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

import msgspec

from kgserve.errors import Conflict
from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import fsync_folder, translate_storage_errors, write_file_atomically
from kgserve.stores.local_placement import FOLLOWER_FILE, NODE_FILE

IDENTITY_FILE = "replication.json"
_STATUS_PREFIX = "replication-status-"


class DataFolderIdentity(msgspec.Struct, frozen=True):
    """Identity of a data folder, by which a target knows whose stores it holds."""

    id: str


class ReplicationStatus(msgspec.Struct):
    """Progress of the process that ships a data folder.

    ``covered`` is in microseconds: all commits up to then are in the target. ``pending`` counts the stores whose bases
    are being made, ``bytes`` the shipped journal since the process began.
    """

    target: str
    pid: int
    covered: int = 0
    pending: int = 0
    bytes: int = 0
    error: str = ""


class FollowedTarget(msgspec.Struct):
    """Target that a data folder follows, and the lineage of each store in it."""

    target: str
    lineages: dict[str, int] = {}


def get_or_create_data_folder_identity(data_dir: Path) -> str:
    """Return the identity of a data folder. Raises Conflict for one that may not be replicated, StorageFull."""
    if (data_dir / NODE_FILE).exists():
        raise Conflict(f"{data_dir} belongs to a cluster node; the cluster replicates its stores. Use `kgserve backup`")
    if (data_dir / FOLLOWER_FILE).exists():
        raise Conflict(f"{data_dir} is a copy that follows another target; run `kgserve promote` before replicating it")
    return read_or_create_identity(data_dir)


def read_or_create_identity(data_dir: Path) -> str:
    """Return the identity of any data folder. Raises Conflict for an unreadable file, StorageFull."""
    path = data_dir / IDENTITY_FILE
    try:
        return decode_json(path.read_bytes(), DataFolderIdentity).id
    except FileNotFoundError:
        identity = DataFolderIdentity(token_hex(16))
        with translate_storage_errors(f"writing {path}"):
            write_file_atomically(path, msgspec.json.encode(identity))
        return identity.id
    except msgspec.MsgspecError as error:
        raise Conflict(
            f"{path} cannot be read ({error}); restore the file, or delete it and pass --take-over"
        ) from error


def _name_of(target: str) -> str:
    return hashlib.sha256(target.encode()).hexdigest()[:12]


@contextmanager
def lock_replication(data_dir: Path, target: str) -> Generator[None]:
    """Lock a data folder against a second process that ships it to the same target. Raises Conflict."""
    path = data_dir / f"replication-{_name_of(target)}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another process replicates {data_dir} to {target} already; stop it first") from None
        yield
    finally:
        os.close(descriptor)


def write_replication_status(data_dir: Path, status: ReplicationStatus) -> None:
    """Replace the progress of shipping, without a sync. Raises StorageFull."""
    path = data_dir / f"{_STATUS_PREFIX}{_name_of(status.target)}.json"
    with translate_storage_errors(f"writing {path}"):
        aside = path.with_name(f"{path.name}.new")
        aside.write_bytes(msgspec.json.encode(status))
        aside.replace(path)


def list_replication_statuses(data_dir: Path) -> list[ReplicationStatus]:
    """Return the progress of each process that ships, or shipped, a data folder."""
    found: list[ReplicationStatus] = []
    for path in sorted(data_dir.glob(f"{_STATUS_PREFIX}*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            found.append(decode_json(path.read_bytes(), ReplicationStatus))
    return found


def read_followed_target(data_dir: Path) -> FollowedTarget | None:
    """Return what a data folder follows, or None. Raises Conflict for an unreadable file."""
    path = data_dir / FOLLOWER_FILE
    try:
        return decode_json(path.read_bytes(), FollowedTarget)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise Conflict(f"{path} cannot be read ({error}); empty the folder and follow the target again") from error


def write_followed_target(data_dir: Path, followed: FollowedTarget) -> None:
    """Record durably what a data folder follows. Raises StorageFull."""
    with translate_storage_errors(f"writing {data_dir / FOLLOWER_FILE}"):
        write_file_atomically(data_dir / FOLLOWER_FILE, msgspec.json.encode(followed))


def delete_followed_target(data_dir: Path) -> None:
    """Make a data folder follow nothing, durably. Raises StorageFull."""
    with translate_storage_errors(f"deleting {data_dir / FOLLOWER_FILE}"):
        (data_dir / FOLLOWER_FILE).unlink(missing_ok=True)
        fsync_folder(data_dir)
