"""Durable record of a purge, written before any data is removed.

A purge interrupted by a crash is completed from it.
"""

from __future__ import annotations

import msgspec
import structlog

from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import fsync_folder, write_file_atomically
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.store_folder_layout import StoreLayout

log = structlog.get_logger()

_PURGE_RECORD_FILE = "erasing.json"
PURGE_COUNT_FILE = "purges.json"


class PurgeTargets(msgspec.Struct, frozen=True):
    """Nodes whose data a purge removes.

    ``rows`` are current nodes, ``gone`` the ids of nodes already deleted, ``first`` the earliest commit of any of them.
    The nodes ``former`` stay, but lose their past states. With ``drops_deletion`` the journal does not keep the commit
    of the deletion either, because it contains the ids.
    """

    rows: list[NodeRow] = []
    gone: list[str] = []
    first: int = 0
    former: list[str] = []
    drops_deletion: bool = False

    @property
    def ids(self) -> list[str]:
        """Ids of all nodes to purge."""
        return [*(row.id for row in self.rows), *self.gone]


class PurgedCommitRange(msgspec.Struct, frozen=True):
    """Range of commits that contained the purged data. Backups and followers may still hold it from this range."""

    first: int
    through: int


class PurgeRecord(msgspec.Struct, frozen=True):
    """Purge that was decided but may not be complete.

    Everything about the nodes ``ids`` is removed up to commit ``through``. For the nodes ``former``, only versions that
    are no longer current by then are removed. The journal is kept from the commit after ``before`` on. ``texts`` lists
    the cached embeddings to delete, as hexadecimal text hashes. With ``drops_deletion`` the journal is kept from the
    end of the purge on.
    """

    ids: list[str]
    former: list[str]
    before: int
    through: int
    texts: list[str]
    drops_deletion: bool = False


def write_purge_record(layout: StoreLayout, intention: PurgeRecord) -> None:
    """Record a purge durably before it begins. Raises OSError."""
    write_file_atomically(layout.root / _PURGE_RECORD_FILE, msgspec.json.encode(intention))


def read_purge_record(layout: StoreLayout) -> PurgeRecord | None:
    """Return the recorded purge that is not known to be complete, or None."""
    try:
        return decode_json((layout.root / _PURGE_RECORD_FILE).read_bytes(), PurgeRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.error("erasing_unreadable", store=layout.name, file=_PURGE_RECORD_FILE, error=str(error))
        return None


def count_completed_purges(layout: StoreLayout) -> int:
    """Return the number of purges whose data has left the files of a store; a crash may count one twice."""
    try:
        return decode_json((layout.root / PURGE_COUNT_FILE).read_bytes(), int)
    except FileNotFoundError:
        return 0
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.error("purge_count_unreadable", store=layout.name, file=PURGE_COUNT_FILE, error=str(error))
        return -1


def delete_purge_record(layout: StoreLayout) -> None:
    """Count a completed purge, so that copies of the store follow, and delete its record durably. Raises OSError.

    Saved answers to requests, which may contain the purged data, are deleted as well.
    """
    layout.idempotent_answers.unlink(missing_ok=True)
    write_file_atomically(layout.root / PURGE_COUNT_FILE, msgspec.json.encode(count_completed_purges(layout) + 1))
    (layout.root / _PURGE_RECORD_FILE).unlink(missing_ok=True)
    fsync_folder(layout.root)
