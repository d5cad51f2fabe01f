"""Requests and answers of backup and restore."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kgserve.storage.model.store_names import MAX_STORE_NAME_CHARS, STORE_NAME_REGEX

_Folder = Annotated[
    str, Meta(max_length=1024, description="Folder below the server's backup_dir; if omitted, backup_dir itself")
]
_Full = Annotated[bool, Meta(description="Copy everything instead of only new data")]
_Keep = Annotated[int, Meta(ge=1, le=10_000, description="Newest bases to keep; if omitted, all")] | None
_StoreName = Annotated[str, Meta(pattern=f"^{STORE_NAME_REGEX}", max_length=MAX_STORE_NAME_CHARS)]
_Until = (
    Annotated[
        str,
        Meta(max_length=64, description="A sequence or an RFC 3339 time; if omitted, the end of the newest backup"),
    ]
    | None
)


class StoreBackupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options for backing up one store."""

    to: _Folder = ""
    full: _Full = False
    keep: _Keep = None


class BackupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Stores to back up, and options."""

    stores: (
        Annotated[list[_StoreName], Meta(description="If omitted, all stores that the caller may access")] | None
    ) = None
    to: _Folder = ""
    full: _Full = False
    keep: _Keep = None


class StoreBackupAnswer(msgspec.Struct, kw_only=True):
    """Result of backing up one store.

    Its newest base covers the commits from ``first`` to ``sequence``; any moment from ``since`` to ``taken_at`` can be
    restored. ``new_base`` says why everything was copied; it is empty if only new data was.
    """

    store: str
    sequence: int
    first: int
    since: str
    taken_at: str
    digest: str
    nodes: int
    edges: int
    new_base: str
    bytes_copied: int
    bytes_total: int
    bases: int
    took_ms: float


class FailedStoreBackup(msgspec.Struct, kw_only=True):
    """A store that could not be backed up. Its previous backup is unchanged."""

    store: str
    error: str


class BackupAnswer(msgspec.Struct, kw_only=True):
    """Stores that were backed up into ``folder``, and failures.

    A server names the folder relative to its `backup_dir`.
    """

    folder: str
    stores: list[StoreBackupAnswer]
    failed: list[FailedStoreBackup]
    bytes_copied: int


class PreparedStoreFolder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A store folder that a local command prepared in the data folder, and the state it must open with."""

    folder: Annotated[str, Meta(max_length=128)]
    store: _StoreName
    sequence: Annotated[int, Meta(ge=0, lt=1 << 53)]
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class RestoreBackupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Store to restore, its new name and the point in time.

    Without ``store``, all stores of the backup are restored.
    """

    source: _Folder = msgspec.field(default="", name="from")
    store: _StoreName | None = None
    into: (
        Annotated[_StoreName, Meta(description="Name of the restored store; if omitted, its original name")] | None
    ) = msgspec.field(default=None, name="as")
    until: _Until = None
    prepared: (
        Annotated[PreparedStoreFolder, Meta(description="For `kgserve restore` on the server's own machine")] | None
    ) = None


class RestoredStore(msgspec.Struct, kw_only=True):
    """A store restored from the backup of ``source``, as of commit ``sequence``."""

    store: str
    source: str
    sequence: int
    digest: str
    nodes: int
    edges: int
    took_ms: float


class RestoreBackupAnswer(msgspec.Struct, kw_only=True):
    """The stores that were restored."""

    stores: list[RestoredStore]


class BackupChainVerification(msgspec.Struct, kw_only=True):
    """Verification result of one chain of a backup: whether it is intact, and the sequences and times it covers."""

    ok: bool
    first: int
    last: int
    since: str
    until: str
    runs: int
    bytes: int


class BackupVerification(msgspec.Struct, kw_only=True):
    """Verification result of one store's backup; ``ok`` if there are no ``faults``."""

    store: str
    ok: bool
    bases: list[BackupChainVerification]
    faults: list[str]
    leftovers: int
