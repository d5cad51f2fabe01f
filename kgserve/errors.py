"""Every error that kgserve raises on purpose, in one tree.

KgserveError
 +-- InvalidInput          invalid           what was sent cannot be accepted
 +-- Unauthenticated       unauthenticated   no key, or none that is known
 +-- Forbidden             forbidden         known, but not allowed
 +-- NotFound              not_found         no such store, node or page
 |    +-- NoStore                            no such store
 +-- TimedOut              timeout           the query ran into its time limit
 +-- Conflict              conflict          the state does not allow it now
 |    +-- BackupDamaged                      a backup is not as it was written
 +-- Gone                  gone              was there once; the journal no longer holds it
 +-- TooLarge              too_large         over a documented limit
 +-- Unsupported           unsupported       media type or encoding
 +-- Limited               limited           too many requests
 +-- ServedElsewhere       elsewhere         another node of the cluster serves this store
 +-- Internal              internal          a defect of ours; details only in the log
 |    +-- EngineFailed                       the engine refused or lost a statement
 +-- Unavailable           unavailable       cannot serve this now; try again
 |    +-- Opening                            somebody else is just opening this store
 |    +-- OwnerQuiet                         the node that serves this store may be gone
 |    +-- JournalDamaged                     the journal needs `kgserve doctor --salvage`
 |    +-- Fenced                             another node writes to this store now
 |    +-- Unconfirmed                        nobody could say whether a write was taken
 |    +-- LogTorn                            the replicated log lacks what it had acknowledged
 +-- StorageFull           storage_full      no room on the disk

Each class has a stable ``code``; transports map codes, never classes, to their own words.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec


class FieldError(msgspec.Struct, frozen=True):
    """One fault of an input: ``path`` such as ``nodes[3].id``, and what is wrong with it."""

    path: str
    message: str


class KgserveError(Exception):
    """Root of the tree. ``str(error)`` is a sentence for the person who called."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def reword(self, message: str) -> None:
        """Say the same in other words."""
        self.args, self.message = (message,), message


class InvalidInput(KgserveError):
    """What was sent cannot be accepted; ``errors`` names every place found."""

    code = "invalid"

    def __init__(self, message: str, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        self.errors = errors

    @classmethod
    def at(cls, path: str, message: str) -> Self:
        """Of what stands at one place of a request."""
        return cls(f"{path}: {message}", (FieldError(path, message),))


class KindNotAllowed(InvalidInput):
    """A node is of a kind that the store's settings do not take."""

    code = "kind_not_allowed"


class Unauthenticated(KgserveError):
    """No key, or none that is known."""

    code = "unauthenticated"


class Forbidden(KgserveError):
    """The caller is known and may not do this."""

    code = "forbidden"


class NotFound(KgserveError):
    """There is no such store, node or page."""

    code = "not_found"


class NoStore(NotFound):
    """There is no store of this name."""

    def __init__(self, store: str) -> None:
        super().__init__(f"there is no store {store!r}")
        self.store = store


class TimedOut(KgserveError):
    """The query ran into its time limit and was stopped."""

    code = "timeout"


class Conflict(KgserveError):
    """The present state does not allow it."""

    code = "conflict"


class ConflictManual(Conflict):
    """A node was written, but based on a version that is no head any more: it is kept beside the other heads.

    ``node`` is the node as callers see it, with its ``conflicts``.
    """

    code = "conflict_manual"

    def __init__(self, message: str, node: Any) -> None:
        super().__init__(message)
        self.node = node


class BackupDamaged(Conflict):
    """A backup is not as it was written; the message names the file, and the place in it."""


class Gone(KgserveError):
    """What was asked for is no longer in the journal; ``oldest`` is the first sequence that is."""

    code = "gone"

    def __init__(self, message: str, oldest: int) -> None:
        super().__init__(message)
        self.oldest = oldest


class TooLarge(KgserveError):
    """Something is over a documented limit."""

    code = "too_large"


class Unsupported(KgserveError):
    """The media type or encoding is not one that this resource takes."""

    code = "unsupported"


class Limited(KgserveError):
    """Too many requests; ``retry_after`` is in seconds."""

    code = "limited"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServedElsewhere(KgserveError):
    """Another node of the cluster serves a store; ``url`` is where that one is reached."""

    code = "elsewhere"

    def __init__(self, message: str, node: str = "", url: str = "") -> None:
        super().__init__(message)
        self.node = node
        self.url = url


class Internal(KgserveError):
    """A defect of ours. The message goes to the log; callers see only that it happened."""

    code = "internal"


class EngineFailed(Internal):
    """The engine refused a statement that should have worked, or lost one."""


class Unavailable(KgserveError):
    """Cannot be served at this moment; ``retry_after`` is in seconds."""

    code = "unavailable"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Opening(Unavailable):
    """Somebody else is just opening this store, and enough others wait for it."""


class OwnerUnreachable(Unavailable):
    """The node of the cluster that serves a store has not been heard of: who asks it may wait in vain."""


class JournalDamaged(Unavailable):
    """A journal file is damaged before its end; the message names file and offset."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=60)


class Fenced(Unavailable):
    """Somebody else has written where this node believed to be the only one: it owns the store no longer."""


class Unconfirmed(Unavailable):
    """No answer came in time: what was asked for may have been done, or not."""


class ReplicatedLogCorrupt(Unavailable):
    """What the replicated log, or a file beside it, had acknowledged is missing or damaged."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=60)


class CopyTooOld(Unavailable):
    """A store's files are a copy of a log that has let go of what comes next; other files are fetched."""


class StorageFull(KgserveError):
    """There is no room on the disk for this write."""

    code = "storage_full"


def kind_named(name: str) -> type[KgserveError]:
    """The class of a name, as another process says it; Internal for none of them."""
    kinds = [KgserveError]
    for kind in kinds:
        if kind.__name__ == name:
            return kind
        kinds += kind.__subclasses__()
    return Internal
