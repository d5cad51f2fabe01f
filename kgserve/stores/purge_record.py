"""What is to be erased, noted beside the journal before anything goes: begun once, it is completed after any crash."""

from __future__ import annotations

import msgspec
import structlog

from kgserve.platform.codecs import decode_json
from kgserve.platform.durable_files import sync_folder, write_whole
from kgserve.storage.layout import Layout
from kgserve.storage.model.rows import NodeRow

log = structlog.get_logger()

_PURGE_RECORD_FILE = "erasing.json"


class PurgeTargets(msgspec.Struct, frozen=True):
    """Nodes that are to be erased: those that are there, the ids of others that were, the first commit of any."""

    rows: list[NodeRow] = []
    gone: list[str] = []
    first: int = 0

    @property
    def ids(self) -> list[str]:
        """Of all that are to be erased."""
        return [*(row.id for row in self.rows), *self.gone]


class PurgeResult(msgspec.Struct, frozen=True):
    """What was erased: anybody else may have it from between the commits ``first`` and ``through``."""

    first: int
    through: int


class Intention(msgspec.Struct, frozen=True):
    """Nodes of which nothing from up to a commit is to stay, and ``former``, of which nothing that is over by then.

    The journal goes on behind ``before``. ``texts`` names the vectors of theirs that are kept, in hexadecimal.
    """

    ids: list[str]
    former: list[str]
    before: int
    through: int
    texts: list[str]


def intend(layout: Layout, intention: Intention) -> None:
    """Put down what is to be erased; durable afterwards. Raises OSError."""
    write_whole(layout.root / _PURGE_RECORD_FILE, msgspec.json.encode(intention))


def intended(layout: Layout) -> Intention | None:
    """What was begun, and is not known to be completed."""
    try:
        return decode_json((layout.root / _PURGE_RECORD_FILE).read_bytes(), Intention)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.error("erasing_unreadable", store=layout.name, file=_PURGE_RECORD_FILE, error=str(error))
        return None


def settled(layout: Layout) -> None:
    """There is nothing to be completed any more; durable afterwards. Raises OSError."""
    (layout.root / _PURGE_RECORD_FILE).unlink(missing_ok=True)
    sync_folder(layout.root)
