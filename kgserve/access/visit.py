"""One request as access sees it: who, from where, wanting what; and its entry in the audit log."""

from __future__ import annotations

from kgserve.access.caller import NOBODY, Caller
from kgserve.access.door import Admission

_DENIALS = frozenset({401, 403, 421})
_FAILED = 400


class Visit:
    """Filled in on the way: the caller by the edge, the act and the store by the guard of the routes.

    ``hidden`` is the store that it named and that is none of the caller's. ``administers``: what it does is put on
    record.
    """

    def __init__(self, admission: Admission, request_id: str, act: str, address: str) -> None:
        self._door, self._audit = admission
        self.request_id = request_id
        self.address = address
        self.caller: Caller = NOBODY
        self.act = act
        self.store: str | None = None
        self.hidden: str | None = None
        self.administers = False

    @property
    def asker(self) -> str:
        """A name that tells callers apart where they share something: the key, or else the address."""
        return self.caller.key_id or self.address

    @property
    def stands(self) -> bool:
        """Whether the caller would be let in still. What lasts asks now and then: a key may be revoked meanwhile."""
        return self._door.stands(self.caller)

    def denied(self, outcome: str, act: str | None = None, store: str | None = None) -> None:
        """Put a refusal on record."""
        self._audit.denied(act or self.act, outcome, **self._details(store))

    def administered(self, outcome: str, act: str | None = None, store: str | None = None) -> None:
        """Put an act of administration on record."""
        self._audit.administered(act or self.act, outcome, **self._details(store))

    def ended(self, status: int | None) -> None:
        """It was answered so, or not at all: put on record what belongs there."""
        if status in _DENIALS or self.hidden is not None:
            self.denied(str(status), store=self.hidden)
        elif self.administers:
            if status is not None and status >= _FAILED:
                self._audit.failed(self.act, f"failed: {status}", **self._details(None))
            else:
                self.administered("cut off" if status is None else "done")

    def _details(self, store: str | None) -> dict[str, str | None]:
        return {
            "request": self.request_id,
            "caller": self.caller.name,
            "key": self.caller.key_id,
            "address": self.address,
            "store": store or self.store,
        }
