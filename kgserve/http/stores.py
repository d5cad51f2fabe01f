"""Stores under /api/memory: list, create, drop, stats."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post, put

from kgserve.http import examples
from kgserve.http.operation import ALWAYS, READ, Body, Operation, described
from kgserve.http.parameters import path_text, query
from kgserve.http.service import answer, service_of
from kgserve.model.answers import DropAnswer, ReindexAnswer, StoreAnswer, StoreList, StoreStats
from kgserve.ops import stores as ops


class DropQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a drop."""

    confirm: Annotated[str, msgspec.Meta(description="The store's name once more")] | msgspec.UnsetType = msgspec.UNSET


_LIST = Operation(
    id="listStores",
    tag="stores",
    summary="All stores, with counts and sizes",
    answer=Body(StoreList, examples.STORES),
)
_CREATE = Operation(
    id="createStore",
    tag="stores",
    summary="Create a store",
    answer=Body(StoreAnswer, examples.STORE),
    errors=(*ALWAYS, "conflict", "storage_full"),
    statuses=(200, 201),
)
_DROP = Operation(
    id="dropStore",
    tag="stores",
    summary="Delete a store and everything in it",
    query=DropQuery,
    answer=Body(DropAnswer, examples.DROPPED),
    errors=(*ALWAYS, "not_found", "conflict"),
)
_STATS = Operation(
    id="storeStats",
    tag="stores",
    summary="What one store holds and how it is doing",
    answer=Body(StoreStats, examples.STATS),
    errors=READ,
)


_REINDEX = Operation(
    id="reindex",
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
    return await service.read(ops.list_stores, service.pool)


@put("/api/memory/{store:str}", status_code=200, opt=described(_CREATE))
async def create_store(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Answers 201 when the store is new and 200 when it was there. The first inject creates a store as well."""
    service = service_of(request)
    made = await service.call(ops.create_store, service.pool, path_text(request, "store"))
    return answer(msgspec.json.encode(made), 201 if made.created else 200)


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
    return await service.read(ops.stats, service.pool, path_text(request, "store"), service.indexer)


@post("/api/memory/{store:str}/reindex", status_code=202, opt=described(_REINDEX))
async def reindex(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Makes both indexes anew, vectors with the present model. Searches go on, with what is there so far.

    `stats` shows how far it is.
    """
    service = service_of(request)
    begun = await service.call(ops.reindex, service.pool, path_text(request, "store"), service.indexer)
    return answer(msgspec.json.encode(begun), 202)
