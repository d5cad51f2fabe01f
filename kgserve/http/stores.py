"""Stores under /api/memory: list, create, drop, stats."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, patch, post, put

from kgserve.http import examples
from kgserve.http.body import read_json, read_json_if_any
from kgserve.http.operation import ALWAYS, READ, WRITE, Body, Operation, described
from kgserve.http.parameters import path_text, query
from kgserve.http.service import answer, service_of
from kgserve.model.answers import ReindexAnswer
from kgserve.model.stores import (
    DropAnswer,
    StoreAnswer,
    StoreList,
    StoreSettingsAnswer,
    StoreSettingsRequest,
    StoreStats,
)
from kgserve.ops import stores as ops


class DropQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a drop."""

    confirm: Annotated[str, msgspec.Meta(description="The store's name once more")] | msgspec.UnsetType = msgspec.UNSET


_LIST = Operation(
    id="listStores",
    role="read",
    tag="stores",
    summary="All stores, with counts and sizes",
    answer=Body(StoreList, examples.STORES),
)
_CREATE = Operation(
    id="createStore",
    role="write",
    tag="stores",
    summary="Create a store",
    request=Body(StoreSettingsRequest, examples.SETTINGS, optional=True),
    answer=Body(StoreAnswer, examples.STORE),
    errors=WRITE,
    statuses=(200, 201),
)
_SETTINGS = Operation(
    id="storeSettings",
    role="read",
    tag="stores",
    summary="The settings of a store",
    answer=Body(StoreSettingsAnswer, examples.SETTINGS_SET),
    errors=(*ALWAYS, "not_found"),
)
_UPDATE = Operation(
    id="updateStore",
    role="admin",
    tag="stores",
    summary="Change the settings of a store",
    request=Body(StoreSettingsRequest, examples.SETTINGS),
    answer=Body(StoreSettingsAnswer, examples.SETTINGS_SET),
    errors=(*WRITE, "not_found"),
)
_DROP = Operation(
    id="dropStore",
    role="admin",
    tag="stores",
    summary="Delete a store and everything in it",
    query=DropQuery,
    answer=Body(DropAnswer, examples.DROPPED),
    errors=(*ALWAYS, "not_found", "conflict"),
)
_STATS = Operation(
    id="storeStats",
    role="read",
    tag="stores",
    summary="What one store holds and how it is doing",
    answer=Body(StoreStats, examples.STATS),
    errors=READ,
)


_REINDEX = Operation(
    id="reindex",
    role="admin",
    tag="search",
    summary="Make the indexes of a store anew",
    answer=Body(ReindexAnswer, examples.REINDEXING),
    errors=READ,
    statuses=(202,),
)


@get("/api/memory", opt=described(_LIST))
async def list_stores(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Stores are listed by name. Listing opens none of them."""
    service = service_of(request)
    return await service.read(ops.list_stores, service.pool, service.indexer, service.historian)


@put("/api/memory/{store:str}", status_code=200, opt=described(_CREATE))
async def create_store(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answers 201 when the store is new and 200 when it was there. The first inject creates a store as well.

    A body gives the new store its settings. A store that was there keeps its own, whatever the body says; PATCH changes
    them.
    """
    service, store = service_of(request), path_text(request, "store")
    wanted = await read_json_if_any(request, StoreSettingsRequest)
    made = await service.call(ops.create_store, service.pool, store, wanted)
    return answer(msgspec.json.encode(made), 201 if made.created else 200)


@get("/api/memory/{store:str}", opt=described(_SETTINGS))
async def store_settings(request: Request[Any, Any, Any]) -> Response[bytes]:
    """What was chosen for the store, when it was created, and its last sequence. `stats` says what it holds."""
    service = service_of(request)
    return await service.read(ops.store_settings, service.pool, path_text(request, "store"))


@patch("/api/memory/{store:str}", opt=described(_UPDATE))
async def update_store(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Changes what is named. What is left out, or null, stays; an empty text, list or object clears.

    Listeners get a `store_changed` event, unless nothing changes. With `history` "none" the history of the store is
    removed; turned on again it begins with the present. A number of days lets go of the states that ended earlier.
    """
    service, store = service_of(request), path_text(request, "store")
    wanted = await read_json(request, StoreSettingsRequest)
    return await service.read(ops.update_store, service.pool, store, wanted)


@delete("/api/memory/{store:str}", status_code=200, opt=described(_DROP))
async def drop_store(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Removes the store's graph, journal and files for good.

    The name has to be given twice: in the path and as `confirm`.
    """
    confirm = query(request, DropQuery).confirm or None
    service = service_of(request)
    return await service.read(ops.drop_store, service.pool, path_text(request, "store"), confirm)


@get("/api/memory/{store:str}/stats", opt=described(_STATS))
async def store_stats(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Counts by type, sizes on disk, and the state of the store's journal and engine."""
    service = service_of(request)
    store = path_text(request, "store")
    return await service.read(ops.stats, service.pool, store, service.indexer, service.historian)


@post("/api/memory/{store:str}/reindex", status_code=202, opt=described(_REINDEX))
async def reindex(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Makes both indexes anew, vectors with the present model. Searches go on, with what is there so far.

    `stats` shows how far it is.
    """
    service = service_of(request)
    begun = await service.call(ops.reindex, service.pool, path_text(request, "store"), service.indexer)
    return answer(msgspec.json.encode(begun), 202)
