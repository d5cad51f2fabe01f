"""Tree of the errors that kgserve raises deliberately.

KgserveError
 +-- InvalidInput              invalid           the input cannot be accepted
 |    +-- KindNotAllowed       kind_not_allowed  a node type that the store does not accept
 +-- Unauthenticated           unauthenticated   no key, or an unknown one
 +-- Forbidden                 forbidden         a known caller without permission
 +-- NotFound                  not_found         no such store, node or page
 |    +-- NoStore                                no such store
 +-- TimedOut                  timeout           the query exceeded its time limit
 +-- Conflict                  conflict          the current state does not allow it
 |    +-- ConflictManual       conflict_manual   the write was kept as a conflicting version
 |    +-- BackupDamaged                          a backup differs from what was written
 +-- IdempotencyKeyReused      idempotency_key_reused  the key was used for another request
 +-- Gone                      gone              no longer in the journal
 +-- TooLarge                  too_large         over a documented limit
 +-- UnsupportedMediaType      unsupported       media type or encoding
 +-- RateLimited               limited           too many requests
 +-- ServedElsewhere           elsewhere         another node of the cluster serves this store
 +-- Internal                  internal          a defect of kgserve; details only in the log
 |    +-- EngineFailed                           the engine rejected or lost a statement
 +-- Unavailable               unavailable       temporarily unavailable; try again
 |    +-- StoreOpenQueueFull                     another caller is opening this store
 |    +-- OwnerUnreachable                       the node that serves this store may be down
 |    +-- JournalDamaged                         the journal needs `kgserve doctor --salvage`
 |    +-- Fenced                                 another node owns this store now
 |    +-- OutcomeUnknown                         the outcome of a request is unknown
 |    +-- ReplicatedLogCorrupt                   the replicated log lost acknowledged data
 |    +-- ReplicaBehindLogStart                  a replica is too old to follow the log
 +-- StorageFull               storage_full      no disk space
 |    +-- DiskFull                               no disk space for a file
 |    +-- QuotaExceeded                          a store has reached its quota

Each class has a stable ``code``. Transports map codes, never classes, to their own terms.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec


class FieldError(msgspec.Struct, frozen=True):
    """Fault at one place of an input: ``path`` such as ``nodes[3].id``, and what is wrong with it."""

    path: str
    message: str


class KgserveError(Exception):
    """Base class of the errors that kgserve raises. ``str(error)`` is a message for the caller."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def reword(self, message: str) -> None:
        """Replace the message."""
        self.args, self.message = (message,), message


class InvalidInput(KgserveError):
    """The input cannot be accepted; ``errors`` lists every fault found."""

    code = "invalid"

    def __init__(self, message: str, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        self.errors = errors

    @classmethod
    def at(cls, path: str, message: str) -> Self:
        """Create the error for one place of a request."""
        return cls(f"{path}: {message}", (FieldError(path, message),))


class KindNotAllowed(InvalidInput):
    """A node has a type that the store's settings do not allow."""

    code = "kind_not_allowed"


class Unauthenticated(KgserveError):
    """The request has no key, or an unknown one."""

    code = "unauthenticated"


class Forbidden(KgserveError):
    """The caller is known and lacks permission."""

    code = "forbidden"


class NotFound(KgserveError):
    """The store, node or page does not exist."""

    code = "not_found"


class NoStore(NotFound):
    """No store has this name."""

    def __init__(self, store: str) -> None:
        super().__init__(f"there is no store {store!r}")
        self.store = store


class TimedOut(KgserveError):
    """The request or statement exceeded its time limit, or was interrupted."""

    code = "timeout"


class Conflict(KgserveError):
    """The current state does not allow the request."""

    code = "conflict"


class ConflictManual(Conflict):
    """Error: a write based on a superseded version was kept as a conflicting head, to be resolved by hand.

    ``node`` is the node as callers see it, with its ``conflicts``.
    """

    code = "conflict_manual"

    def __init__(self, message: str, node: Any) -> None:
        super().__init__(message)
        self.node = node


class BackupDamaged(Conflict):
    """A backup differs from what was written; the message names the file and the place in it."""


class IdempotencyKeyReused(KgserveError):
    """The idempotency key was used for another request."""

    code = "idempotency_key_reused"


class Gone(KgserveError):
    """The requested commits are no longer in the journal; ``oldest`` is the first sequence that is."""

    code = "gone"

    def __init__(self, message: str, oldest: int) -> None:
        super().__init__(message)
        self.oldest = oldest


class TooLarge(KgserveError):
    """A documented limit is exceeded."""

    code = "too_large"


class UnsupportedMediaType(KgserveError):
    """The resource does not accept this media type or encoding."""

    code = "unsupported"


class RateLimited(KgserveError):
    """Too many requests; ``retry_after`` is in seconds."""

    code = "limited"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServedElsewhere(KgserveError):
    """Another node of the cluster serves the store; ``url`` is its address."""

    code = "elsewhere"

    def __init__(self, message: str, node: str = "", url: str = "") -> None:
        super().__init__(message)
        self.node = node
        self.url = url


class Internal(KgserveError):
    """Defect of kgserve. The message goes to the log only; callers get a generic one."""

    code = "internal"


class EngineFailed(Internal):
    """The engine rejected a statement that should have worked, or lost one."""


class Unavailable(KgserveError):
    """Temporarily unavailable; ``retry_after`` is in seconds."""

    code = "unavailable"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoreOpenQueueFull(Unavailable):
    """Another caller is opening this store, and enough callers are waiting for it."""


class OwnerUnreachable(Unavailable):
    """The cluster node that serves the store does not respond; waiting for it may be in vain."""


class JournalDamaged(Unavailable):
    """A journal file is damaged before its end; the message names file and offset."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=60)


class Fenced(Unavailable):
    """Another node has taken over a store that this node believed to own."""


class OutcomeUnknown(Unavailable):
    """No answer came in time: the request may or may not have been carried out."""


class ReplicatedLogCorrupt(Unavailable):
    """Acknowledged data of the replicated log, or of a file next to it, is missing or damaged."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=60)


class ReplicaBehindLogStart(Unavailable):
    """Files of a replica end before the oldest entry of the log; newer files must be fetched."""


class StorageFull(KgserveError):
    """There is no room on the disk for this write."""

    code = "storage_full"


class DiskFull(StorageFull):
    """There is no room on the disk for a file; reads that need none go on."""


class QuotaExceeded(StorageFull):
    """The store has reached its quota of nodes or bytes; deletions are still accepted."""


def error_class_named(name: str) -> type[KgserveError]:
    """Return the error class with a name sent by another process; Internal if it is unknown."""
    kinds = [KgserveError]
    for kind in kinds:
        if kind.__name__ == name:
            return kind
        kinds += kind.__subclasses__()
    return Internal
