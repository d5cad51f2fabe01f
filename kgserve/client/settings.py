"""What a client can choose for a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kgserve.client.wire import Call, Route
from kgserve.model.stores import ConflictPolicy, Keeping, StoreAnswer, StoreSettingsAnswer

_STORE = "/api/memory/{store}"

CREATE = Route("PUT", _STORE, StoreAnswer)
SETTINGS = Route("GET", _STORE, StoreSettingsAnswer)
UPDATE = Route("PATCH", _STORE, StoreSettingsAnswer)


def create(
    name: str,
    *,
    display_name: str | None = None,
    conflict_policy: ConflictPolicy | None = None,
    kind_whitelist: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    history: Keeping | None = None,
) -> Call[StoreAnswer]:
    """Create an empty store with settings; one that exists stays as it is. The first inject creates a store as well.

    ``display_name`` is the ``name`` among its settings.
    """
    body = chosen(
        name=display_name,
        conflict_policy=conflict_policy,
        kind_whitelist=kind_whitelist,
        metadata=metadata,
        history=history,
    )
    return CREATE.call({"store": name}, body=body or None)


def settings(store: str) -> Call[StoreSettingsAnswer]:
    """What was chosen for the store. Raises NotFound."""
    return SETTINGS.call({"store": store})


def update_settings(
    store: str,
    *,
    name: str | None = None,
    conflict_policy: ConflictPolicy | None = None,
    kind_whitelist: Iterable[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    history: Keeping | None = None,
) -> Call[StoreSettingsAnswer]:
    """Change the store's settings: what is None stays, what is empty is cleared.

    ``history`` is what is kept of former states: "all", "none", or those that ended in so many last days. Raises
    InvalidInput, whose ``errors`` name every place, and NotFound.
    """
    body = chosen(
        name=name, conflict_policy=conflict_policy, kind_whitelist=kind_whitelist, metadata=metadata, history=history
    )
    return UPDATE.call({"store": store}, body=body)


def chosen(*, kind_whitelist: Iterable[str] | None = None, **others: object) -> dict[str, object]:
    """The settings that are not None, as they are sent."""
    kinds = None if kind_whitelist is None else list(kind_whitelist)
    return {name: value for name, value in (others | {"kind_whitelist": kinds}).items() if value is not None}
