"""The registry on JetStream: a stream of owners and one of beats, of which only the newest of each is kept."""

from __future__ import annotations

import msgspec

from kgserve.cluster.jetstream.connection import Connection
from kgserve.cluster.jetstream.stream import Stream
from kgserve.cluster.protocols import Beat, Claim, Heard, Owner
from kgserve.decoding import decode_json
from kgserve.errors import Fenced

_OWNERS = "kgserve.owner."
_BEATS = "kgserve.beat."
_encode = msgspec.json.Encoder().encode


class JetStreamRegistry:
    """See `Registry`. A revision is the sequence of a message in its stream."""

    def __init__(self, connection: Connection) -> None:
        """Make the streams that are not there. Raises Conflict and Unavailable."""
        self._owners = Stream(connection, "KGSERVE_OWNERS", [f"{_OWNERS}>"], newest=True)
        self._beats = Stream(connection, "KGSERVE_BEATS", [f"{_BEATS}>"], newest=True)

    def owners(self, after: int = 0) -> dict[str, Claim]:
        """See `Registry.owners`."""
        found = self._owners.walk(f"{_OWNERS}>", after)
        return {each.subject.removeprefix(_OWNERS): Claim(decode_json(each.data, Owner), each.seq) for each in found}

    def owner(self, store: str) -> Claim | None:
        """See `Registry.owner`."""
        found = self._owners.last(_OWNERS + store)
        return Claim(decode_json(found.data, Owner), found.seq) if found is not None else None

    def claim(self, store: str, owner: Owner, revision: int) -> int | None:
        """See `Registry.claim`."""
        return _replaced(self._owners, _OWNERS + store, owner, revision)

    def beat(self, beat: Beat, revision: int) -> int | None:
        """See `Registry.beat`."""
        return _replaced(self._beats, _BEATS + beat.node, beat, revision)

    def beats(self) -> dict[str, Heard]:
        """See `Registry.beats`."""
        found = [Heard(decode_json(each.data, Beat), each.seq) for each in self._beats.walk(f"{_BEATS}>")]
        return {heard.beat.node: heard for heard in found}


def _replaced(stream: Stream, subject: str, value: Owner | Beat, revision: int) -> int | None:
    try:
        return stream.put(subject, _encode(value), revision)
    except Fenced:
        return None
