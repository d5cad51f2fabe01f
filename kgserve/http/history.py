"""What became of a node and of a store, going back, and letting go: history, changes, revert, restore, prune."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post

from kgserve.http import examples
from kgserve.http.body import read_json, read_json_if_any
from kgserve.http.operation import READ, WRITE, Body, Operation, described
from kgserve.http.parameters import path_text, query
from kgserve.http.service import service_of
from kgserve.model.answers import ChangesPage, InjectAnswer, NodeHistory, RestoreAnswer
from kgserve.model.requests import RestoreRequest, RevertRequest
from kgserve.model.stores import PruneAnswer, PruneRequest
from kgserve.ops import history as ops
from kgserve.ops import past_export


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a node's history."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=ops.MAX_STATES, description="Most states on the page")] = 50
    before: (
        Annotated[int, msgspec.Meta(ge=1, lt=1 << 53, description="`next_before` of the page before")]
        | msgspec.UnsetType
    ) = msgspec.UNSET


class ChangesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a store's changes."""

    since: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53, description="Only writes after this sequence")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=ops.MAX_CHANGES, description="Most writes on the page")] = 50


_HISTORY = Operation(
    id="nodeHistory",
    role="read",
    tag="history",
    summary="The states that a node has had",
    query=HistoryQuery,
    answer=Body(NodeHistory, examples.HISTORY),
    errors=(*READ, "conflict"),
)
_REVERT = Operation(
    id="revertNode",
    role="write",
    tag="history",
    summary="Write a node as it was in an earlier version",
    request=Body(RevertRequest, examples.REVERT),
    answer=Body(InjectAnswer, examples.INJECTED),
    errors=(*WRITE, "not_found"),
)
_CHANGES = Operation(
    id="changes",
    role="read",
    tag="history",
    summary="The writes after a sequence",
    query=ChangesQuery,
    answer=Body(ChangesPage, examples.CHANGES),
    errors=(*READ, "gone"),
)
_RESTORE = Operation(
    id="restoreStore",
    role="admin",
    tag="history",
    summary="Make a new store of what a store was",
    request=Body(RestoreRequest, examples.RESTORE),
    answer=Body(RestoreAnswer, examples.RESTORED),
    errors=(*WRITE, "not_found", "gone"),
)
_PRUNE = Operation(
    id="pruneHistory",
    role="admin",
    tag="history",
    summary="Forget former states for good",
    request=Body(PruneRequest, examples.PRUNE, optional=True),
    answer=Body(PruneAnswer, examples.PRUNED),
    errors=(*WRITE, "not_found"),
)


@get("/api/memory/{store:str}/nodes/{id:str}/history", opt=described(_HISTORY))
async def node_history(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Newest first, each with the commits and times between which it held, and with what it changed.

    A node that was deleted has a history, too.
    """
    wanted = query(request, HistoryQuery)
    service = service_of(request)
    before = None if isinstance(wanted.before, msgspec.UnsetType) else wanted.before
    return await service.read(
        ops.node_history,
        service.pool,
        service.historian,
        path_text(request, "store"),
        path_text(request, "id"),
        wanted.limit,
        before,
    )


@post("/api/memory/{store:str}/nodes/{id:str}/revert", status_code=200, opt=described(_REVERT))
async def revert_node(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Writes the type, content and attributes of that version as a new state; a node that was deleted comes back.

    Its edges stay as they are.
    """
    store, node_id = path_text(request, "store"), path_text(request, "id")
    wanted = await read_json(request, RevertRequest)
    service = service_of(request)
    return await service.write(ops.revert, service.pool, service.historian, store, node_id, wanted)


@get("/api/memory/{store:str}/changes", opt=described(_CHANGES))
async def changes(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Oldest first, with the rows as each write left them; of one that changed over 1,000 rows only their number."""
    wanted = query(request, ChangesQuery)
    service = service_of(request)
    return await service.read(ops.changes, service.pool, path_text(request, "store"), wanted.since, wanted.limit)


@post("/api/memory/{store:str}/restore", status_code=200, opt=described(_RESTORE))
async def restore(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Makes a store that must not be there yet, with versions and times kept. The store itself stays as it is."""
    store = path_text(request, "store")
    wanted = await read_json(request, RestoreRequest)
    service = service_of(request)
    done = await service.transfer(past_export.restore, service.pool, service.historian, store, wanted)
    return Response(msgspec.json.encode(done), media_type="application/json")


@post("/api/memory/{store:str}/history/prune", status_code=200, opt=described(_PRUNE))
async def prune_history(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Forgets the states that had ended by `before`; without it, those that the store's settings let go of.

    What holds at present always stays, and so does what held at `before`: earlier moments are 410 from then on. The
    journal is not concerned: `changes` reach as far back as it does.
    """
    store = path_text(request, "store")
    wanted = await read_json_if_any(request, PruneRequest) or PruneRequest()
    service = service_of(request)
    done = await service.transfer(ops.prune_history, service.pool, service.historian, store, wanted)
    return Response(msgspec.json.encode(done), media_type="application/json")
