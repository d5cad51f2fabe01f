"""Who asks: a role, and the stores that it holds for. Pure: knows no transport and no file."""

from __future__ import annotations

from typing import Literal

import msgspec

from kgserve.errors import Forbidden, NoStore

Role = Literal["read", "write", "admin"]

_RANKS: dict[Role, int] = {"read": 0, "write": 1, "admin": 2}
EVERY_STORE = "*"
CALLER_HEADER = "kgserve-caller"
"""Where one node of a cluster tells another for whom it asks, which is believed with the token of that other one."""


class Caller(msgspec.Struct, frozen=True):
    """Somebody who was let in. ``stores`` are names, or beginnings of names that end with ``*``.

    ``key_id`` is None for who needs no key: local clients, and everybody on a loopback address without keys.
    ``trusted``: it has shown the token of server.json. ``expires_at`` is when its key ends, in microseconds.
    """

    name: str
    role: Role
    stores: tuple[str, ...] = (EVERY_STORE,)
    key_id: str | None = None
    trusted: bool = False
    expires_at: int | None = None

    @property
    def sees_all(self) -> bool:
        """Whether no store is hidden from the caller."""
        return EVERY_STORE in self.stores

    def may(self, role: Role) -> bool:
        """Whether the caller's role includes another; admin includes write, write includes read."""
        return _RANKS[self.role] >= _RANKS[role]

    def sees(self, store: str) -> bool:
        """Whether a store of this name is, or would be, one of the caller's."""
        return self.sees_all or any(
            store.startswith(pattern[:-1]) if pattern.endswith("*") else store == pattern for pattern in self.stores
        )

    def require(self, role: Role) -> None:
        """Raises Forbidden when the caller's role does not include ``role``."""
        if not self.may(role):
            raise Forbidden(f"this needs the role {role}; the key {self.name!r} has the role {self.role}")

    def require_every_store(self, act: str) -> None:
        """Raises Forbidden for an act that may touch any store, when some are hidden from the caller."""
        if not self.sees_all:
            raise Forbidden(f"{act} needs a key for all stores; the key {self.name!r} is for some")

    def require_store(self, store: str) -> None:
        """Raises Hidden, a NoStore, for a store that is not the caller's, in the words for one that does not exist."""
        if not self.sees(store):
            raise Hidden(store)


class Hidden(NoStore):
    """A store that is none of the caller's: to the caller as if there were none, and on record as a denial."""


LOCAL = Caller("local", "admin")
"""Whoever reaches a server that asks for no keys."""

NOBODY = Caller("nobody", "read", ())
"""Who asks for what needs no key, where others do."""
