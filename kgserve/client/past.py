"""What a client can ask about the past of a store."""

from __future__ import annotations

from kgserve.client.wire import Call, Route
from kgserve.model.answers import ChangesPage, EntityVersion, InjectAnswer, NodeHistory, RestoreAnswer
from kgserve.model.requests import RestoreRequest, RevertRequest
from kgserve.model.stores import PruneAnswer, PruneRequest

_STORE = "/api/memory/{store}"

HISTORY = Route("GET", f"{_STORE}/nodes/{{id}}/history", NodeHistory)
REVERT = Route("POST", f"{_STORE}/nodes/{{id}}/revert", InjectAnswer)
CHANGES = Route("GET", f"{_STORE}/changes", ChangesPage)
PRUNE = Route("POST", f"{_STORE}/history/prune", PruneAnswer)
ENTITY_HISTORY = Route("GET", "/api/v1/entities/{id}/history", list[EntityVersion])
RESTORE = Route("POST", f"{_STORE}/restore", RestoreAnswer)


def history(store: str, node_id: str, *, limit: int = 50, before: int | None = None) -> Call[NodeHistory]:
    """The states that a node has had, newest first, each with what it changed. ``before`` asks for the next page."""
    return HISTORY.call({"store": store, "id": node_id}, {"limit": limit, "before": before})


def revert(store: str, node_id: str, version: int) -> Call[InjectAnswer]:
    """Write a node as it was in a version, as a new state. Raises NotFound."""
    return REVERT.call({"store": store, "id": node_id}, body=RevertRequest(version=version))


def changes(store: str, *, since: int = 0, limit: int = 50) -> Call[ChangesPage]:
    """The writes after a sequence, oldest first. Raises Gone when the journal no longer has them."""
    return CHANGES.call({"store": store}, {"since": since, "limit": limit})


def restore(store: str, as_of: int | str, into: str) -> Call[RestoreAnswer]:
    """Make a new store of what the store was. Raises Conflict when it exists, Gone when that is no longer known."""
    body = RestoreRequest(as_of=as_of, into=into)
    return RESTORE.call({"store": store}, body=body, wait=None, idempotent=False)


def entity_history(
    store: str, entity_id: str, *, limit: int = 1000, after_sequence: int | None = None
) -> Call[list[EntityVersion]]:
    """The versions of an entity, oldest first; ``after_sequence`` asks for those after the last one of a page."""
    query = {"store": store, "limit": limit, "after_sequence": after_sequence}
    return ENTITY_HISTORY.call({"id": entity_id}, query)


def prune_history(store: str, before: str | int | None = None) -> Call[PruneAnswer]:
    """Forget the states that had ended by a sequence, an RFC 3339 time, or so many days ago, such as ``30d``.

    Without ``before``, those that the store's settings let go of. Raises Conflict when no history is kept.
    """
    body = PruneRequest(before=None if before is None else str(before))
    return PRUNE.call({"store": store}, body=body, wait=None)
