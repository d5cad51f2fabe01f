"""Who is let in: the policy of one server, from its address, its keys and what a request brings along."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kgserve.access.audit import Audit
from kgserve.access.caller import LOCAL, NOBODY, Caller
from kgserve.access.keyring import Keyring
from kgserve.errors import InvalidInput, Unauthenticated
from kgserve.model.hosts import is_loopback
from kgserve.settings import Settings

PUBLIC = frozenset({"/health", "/ready", "/docs", "/docs/docs.css", "/docs/docs.js"})
"""Paths that need no key: whoever watches over the process has none, and a browser sends none for a page.

The page is the same for everybody; what it describes comes from /openapi.json, for which it asks for a key.
"""

REFUSAL = (
    "a valid key is needed, sent as `Authorization: Bearer kgs_…`; kgserve's commands and clients take it as --key, "
    "key=… or KGSERVE_KEY, and `kgserve keys create` makes one on the server's machine"
)
IN_QUERY = "a key does not belong in the query, where logs and histories keep it: send `Authorization: Bearer kgs_…`"

_NAMES = rb"(?:api[_-]?)?key|(?:access[_-]?)?token|authorization"
_IN_QUERY = re.compile(rb"(?i)(?:^|[&;])(?:" + _NAMES + rb")(?:=|%3d)|kgs_[a-z0-9]{8}_")


class Admission(NamedTuple):
    """What the edge needs to let callers in, and to put on record whom it did not."""

    door: Door
    audit: Audit


class WrongKey(Unauthenticated):
    """What was sent as a key opens nothing; to the caller the same as none. Who sends many is made to wait."""


class Door:
    """Lets callers in, or not. ``token`` is what server.json tells local clients: who can read it may do anything."""

    def __init__(self, settings: Settings, keyring: Keyring, token: str | None = None) -> None:
        self._keyring = keyring
        self._open_at_first = not way_in(settings) or settings.insecure_no_auth
        self._token = token.encode() if token else None

    @property
    def asks(self) -> bool:
        """Whether a key is needed. One that exists is asked for; without any, only this machine is let in."""
        return not self._open_at_first or not self._keyring.empty

    def caller(self, path: str, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Who comes. Raises Unauthenticated, in the same words for every key that opens nothing."""
        given = [value for name, value in headers if name == b"authorization"]
        if not self.asks:
            return LOCAL
        if path in PUBLIC:
            return NOBODY
        if query and _IN_QUERY.search(query):
            raise Unauthenticated(IN_QUERY)
        if not given:
            raise Unauthenticated(REFUSAL)
        found = self._known(given[0]) if len(given) == 1 else None
        if found is None:
            raise WrongKey(REFUSAL)
        return found

    def stands(self, caller: Caller) -> bool:
        """Whether somebody who was let in would be let in still; streams ask, because they last."""
        if caller.key_id is not None:
            return self._keyring.stands(caller.key_id)
        return caller.trusted or not self.asks

    def _known(self, header: bytes) -> Caller | None:
        scheme, _, given = header.partition(b" ")
        given = given.strip()
        if scheme.lower() != b"bearer":
            return None
        if self._token is not None and hmac.compare_digest(given, self._token):
            return OWNER
        return self._keyring.caller(given.decode("latin-1"))


OWNER = Caller("local", "admin", trusted=True)
"""A client that could read server.json, as only the server's own user can."""


def check_may_start(settings: Settings, data_dir: Path) -> None:
    """Raises InvalidInput when others could reach a server that nobody would need a key for."""
    way = way_in(settings)
    if way is None or settings.insecure_no_auth or Keyring(data_dir).usable:
        return
    raise InvalidInput(
        f"{way}, and there is no valid key to ask them for; make one with "
        f"`kgserve keys create --role admin --name NAME --data {data_dir}`, "
        "or let in everybody who reaches it with --insecure-no-auth"
    )


def way_in(settings: Settings) -> str | None:
    """How other machines reach this server, as the beginning of a sentence; None when they do not.

    A proxy on this machine is a local client: that there is one is told by settings that make no sense without.
    """
    if not is_loopback(settings.host):
        return f"{settings.host} can be reached from other machines"
    if settings.trusted_proxies.strip(" ,"):
        return f"{settings.host} can be reached from other machines through the proxies of --trusted-proxies"
    names = (name.strip() for name in settings.allowed_hosts.split(","))
    if elsewhere := [name for name in names if name and not is_loopback(name)]:
        return f"{settings.host} can be reached from other machines as {elsewhere[0]}, which --allowed-hosts names"
    return None
