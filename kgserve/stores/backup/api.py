"""Backups: what callers ask for, and the answers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kgserve.storage.model.store_names import MAX_STORE_NAME_CHARS, STORE_NAME_REGEX

_Folder = Annotated[
    str, Meta(max_length=1024, description="Folder below the server's backup_dir; left out: that folder itself")
]
_Full = Annotated[bool, Meta(description="Copy everything, not only what is new")]
_Keep = Annotated[int, Meta(ge=1, le=10_000, description="Bases to keep, the newest; left out: all")] | None
_StoreName = Annotated[str, Meta(pattern=f"^{STORE_NAME_REGEX}", max_length=MAX_STORE_NAME_CHARS)]
_Until = (
    Annotated[
        str,
        Meta(max_length=64, description="A sequence or an RFC 3339 time; left out: the end of the newest backup"),
    ]
    | None
)


class StoreBackupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where to back one store up to."""

    to: _Folder = ""
    full: _Full = False
    keep: _Keep = None


class BackupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which stores to back up, and where to."""

    stores: Annotated[list[_StoreName], Meta(description="Left out: all that the caller sees")] | None = None
    to: _Folder = ""
    full: _Full = False
    keep: _Keep = None


class StoreBackupAnswer(msgspec.Struct, kw_only=True):
    """The backup of one store. What it covers ends with ``sequence``, and begins with ``first`` on its newest base.

    ``new_base`` says why everything was copied; it is empty when only what was new was. ``since`` and ``taken_at`` are
    the times between which every moment can be restored.
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


class BackupFailure(msgspec.Struct, kw_only=True):
    """A store that could not be backed up; its former backup is as it was."""

    store: str
    error: str


class BackupAnswer(msgspec.Struct, kw_only=True):
    """What was backed up into ``folder``, and what was not. A server names the folder from its `backup_dir` on."""

    folder: str
    stores: list[StoreBackupAnswer]
    failed: list[BackupFailure]
    bytes_copied: int


class PreparedStore(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A store's folder that a local command has made in the data folder, and the state that it must open with."""

    folder: Annotated[str, Meta(max_length=128)]
    store: _StoreName
    sequence: Annotated[int, Meta(ge=0, lt=1 << 53)]
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class RestoreBackupRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which store to restore, as what, and as of when; all stores of the backup when ``store`` is left out."""

    source: _Folder = msgspec.field(default="", name="from")
    store: _StoreName | None = None
    into: Annotated[_StoreName, Meta(description="Another name for it")] | None = msgspec.field(default=None, name="as")
    until: _Until = None
    prepared: Annotated[PreparedStore, Meta(description="For `kgserve restore` on the server's own machine")] | None = (
        None
    )


class RestoredStore(msgspec.Struct, kw_only=True):
    """A store that was made out of the backup of ``source``; ``sequence`` is the commit as of which it is."""

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


class BaseAnswer(msgspec.Struct, kw_only=True):
    """One base of a backup: whether it is whole, the sequences and times that it covers, and its runs."""

    ok: bool
    first: int
    last: int
    since: str
    until: str
    runs: int
    bytes: int


class VerifiedStore(msgspec.Struct, kw_only=True):
    """What was found in the backup of one store; it is whole when there are no ``faults``."""

    store: str
    ok: bool
    bases: list[BaseAnswer]
    faults: list[str]
    leftovers: int
