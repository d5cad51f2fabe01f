"""The registry on JetStream: streams of owners, beats and other entries, of which only the newest of each is kept."""

from __future__ import annotations

import msgspec

from kgserve.cluster.jetstream.connection import Connection
from kgserve.cluster.jetstream.stream import Stream
from kgserve.cluster.protocols import Beat, Claim, Entry, Heard, Owner
from kgserve.decoding import decode_json
from kgserve.errors import Fenced

_OWNERS = "kgserve.owner."
_BEATS = "kgserve.beat."
_ENTRIES = "kgserve.entry."
_encode = msgspec.json.Encoder().encode


class JetStreamRegistry:
    """See `Registry`. A revision is the sequence of a message in its stream."""

    def __init__(self, connection: Connection) -> None:
        """Make the streams that are not there. Raises Conflict and Unavailable."""
        self._owners = Stream(connection, "KGSERVE_OWNERS", [f"{_OWNERS}>"], newest=True)
        self._beats = Stream(connection, "KGSERVE_BEATS", [f"{_BEATS}>"], newest=True)
        self._entries = Stream(connection, "KGSERVE_ENTRIES", [f"{_ENTRIES}>"], newest=True)

    def entries(self, after: int = 0) -> dict[str, Entry]:
        """See `Registry.entries`."""
        found = self._entries.walk(f"{_ENTRIES}>", after)
        return {each.subject.removeprefix(_ENTRIES): Entry(each.data, each.seq) for each in found}

    def put_entry(self, name: str, data: bytes, revision: int) -> int | None:
        """See `Registry.put_entry`."""
        return _replaced(self._entries, _ENTRIES + name, data, revision)

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
        return _replaced(self._owners, _OWNERS + store, _encode(owner), revision)

    def beat(self, beat: Beat, revision: int) -> int | None:
        """See `Registry.beat`."""
        return _replaced(self._beats, _BEATS + beat.node, _encode(beat), revision)

    def beats(self) -> dict[str, Heard]:
        """See `Registry.beats`."""
        found = [Heard(decode_json(each.data, Beat), each.seq) for each in self._beats.walk(f"{_BEATS}>")]
        return {heard.beat.node: heard for heard in found}


def _replaced(stream: Stream, subject: str, data: bytes, revision: int) -> int | None:
    try:
        return stream.put(subject, data, revision)
    except Fenced:
        return None
