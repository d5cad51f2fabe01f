"""Which role each operation needs, and whose store it names: asked once, before any handler, for every route.

A route without an Operation (those of OPTIONS, the files of /docs) needs the least that there is: some key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from kgserve.operations.operation import KEY, Operation

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers import BaseRouteHandler

    from kgserve.access.visit import Visit


async def check_role(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Litestar's guard of the application. Raises Forbidden, and NotFound for a store that is not the caller's."""
    visit = cast("Visit", connection.scope["state"]["visit"])
    check_may(visit, cast("Operation | None", handler.opt.get(KEY)), connection.path_params.get("store"))


def check_may(visit: Visit, operation: Operation | None, given: str | None) -> None:
    """Let the caller do it, to the store whose name the path holds as it was ``given``. Raises as `check_role`."""
    caller = visit.caller
    if given is not None:
        visit.store = unquote(given)
    if operation is not None:
        visit.act, visit.administers = operation.id, operation.role == "admin"
        caller.require(operation.role)
    if visit.store is not None:
        caller.require_store(visit.store)
