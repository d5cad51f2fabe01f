"""A JetStream stream with optimistic concurrency per subject: a publisher must know the subject's last message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from secrets import token_hex
from typing import Any

import msgspec
from nats.aio.msg import Msg

from kgserve.cluster.jetstream.nats_connection import NATS_ATTEMPT_TIMEOUT_SECONDS, NatsApiError, NatsConnection
from kgserve.errors import Conflict, Fenced, Internal, OutcomeUnknown, Unavailable
from kgserve.platform.codecs import json_decoder

STREAM_REPLICAS = 3
_ERRORS_WRONG_LAST_SEQUENCE = {10071, 10164}
"""NATS error codes for a wrong last sequence; the second means that another message is being stored."""
_ERRORS_NO_MESSAGE = {10037, 10043}
"""NATS error codes for a missing message; the second is for deletions."""
_ERROR_NO_STREAM = 10059
_FETCH_BATCH_MESSAGES = 256
_FETCH_BATCH_BYTES = 4 << 20
_ERASE_BATCH_MESSAGES = 64
_DEDUPLICATION_WINDOW_SECONDS = 30
"""Time that the servers remember message ids; longer than any retry period and any leader election."""

_encode = msgspec.json.Encoder().encode


class JetStreamMessage(msgspec.Struct, frozen=True):
    """Message of a JetStream stream, as stored by the NATS servers."""

    subject: str
    seq: int
    data: bytes = b""
    hdrs: bytes = b""


class _StreamConfig(msgspec.Struct, frozen=True):
    num_replicas: int = 1
    storage: str = ""
    max_age: int = 0
    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1


class _StreamState(msgspec.Struct, frozen=True):
    last_seq: int = 0


class _StreamResponse(msgspec.Struct, frozen=True):
    error: NatsApiError | None = None
    seq: int = 0
    message: JetStreamMessage | None = None
    config: _StreamConfig | None = None
    state: _StreamState | None = None


_decode = json_decoder(_StreamResponse).decode


class ReplicatedJetStream:
    """A replicated stream without expiry; with ``newest``, only the last message per subject is kept."""

    def __init__(
        self,
        connection: NatsConnection,
        name: str,
        subjects: list[str],
        *,
        newest: bool = False,
        attempt_seconds: float | None = None,
    ) -> None:
        """Create the stream if it is missing. Raises Unavailable, and Conflict if it has the wrong configuration.

        ``attempt_seconds`` is the timeout of one attempt, after which a request is repeated.
        """
        self.name = name
        self._connection = connection
        self._seconds = attempt_seconds
        kept = 1 if newest else -1
        config = self._connection.call(self._create_stream(subjects, kept))
        if config.num_replicas < STREAM_REPLICAS or config.storage != "file":
            raise Conflict(f"stream {name} of the cluster must use file storage and {STREAM_REPLICAS} replicas")
        if config.max_age or config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject != kept:
            raise Conflict(f"stream {name} of the cluster has limits that would delete messages; remove them")

    def put(self, subject: str, data: bytes, after: int) -> int:
        """Publish to a subject whose last message is ``after``. Return the new sequence.

        Raises Fenced if the last message is another one, and OutcomeUnknown if the outcome is unknown.
        """
        identity = token_hex(16)
        return self._connection.call(
            self._connection.retry_until_timeout(lambda: self._put(subject, data, after, identity), OutcomeUnknown)
        )

    def last(self, subject: str) -> JetStreamMessage | None:
        """Return the last message of a subject, read from the leader. Raises Unavailable."""
        found = self._asked("STREAM.MSG.GET", {"last_by_subj": subject})
        return found.message

    async def fetch_last_sequence(self) -> int | None:
        """Return the sequence of the last message, asked once of the leader; None without an answer."""
        found = await self._answer(f"$JS.API.STREAM.INFO.{self.name}", {})
        return found.state.last_seq if found is not None and found.state is not None else None

    def following(self, subject: str, after: int) -> JetStreamMessage | None:
        """Return the next message of a subject after a sequence, read from the leader. Raises Unavailable."""
        found = self._asked("STREAM.MSG.GET", {"seq": after + 1, "next_by_subj": subject})
        return found.message

    def batch(self, subject: str, after: int) -> list[JetStreamMessage]:
        """Return some messages after a sequence, from any replica, which may lag."""
        asked = _encode(
            {"seq": after + 1, "next_by_subj": subject, "batch": _FETCH_BATCH_MESSAGES, "max_bytes": _FETCH_BATCH_BYTES}
        )
        at = f"$JS.API.DIRECT.GET.{self.name}"
        asking = self._connection.ask_all(at, asked, _is_last, NATS_ATTEMPT_TIMEOUT_SECONDS, self._seconds)
        answers = self._connection.call(asking)
        return [_message(each) for each in answers if not _is_last(each)]

    def walk(self, subject: str, after: int = 0) -> Iterator[JetStreamMessage]:
        """Yield the messages after a sequence, oldest first, up to the last one at the end of the iteration.

        Messages that are replaced meanwhile are included. The leader decides when the end is reached, since replicas
        may lag. Raises Unavailable.
        """
        end = after
        while True:
            if after >= end:
                last = self.last(subject)
                if last is None or last.seq <= after:
                    return
                end = last.seq
            found = self.batch(subject, after) or [self.following(subject, after)]
            for message in filter(None, found):
                yield message
                after = message.seq
            if found[-1] is None:
                # The last message was deleted meanwhile.
                end = after

    def forget(self, subject: str, before: int = 0) -> None:
        """Delete the messages of a subject, or those before a sequence. Raises Unavailable."""
        self._asked("STREAM.PURGE", {"filter": subject} | ({"seq": before} if before else {}))

    def erase(self, subject: str, before: int = 0) -> None:
        """Delete messages like `forget`, and have the servers overwrite them on disk. Raises Unavailable."""
        messages = takewhile(lambda message: not before or message.seq < before, self.walk(subject))
        while some := [message.seq for message in islice(messages, _ERASE_BATCH_MESSAGES)]:
            self._connection.call(self._erase(some))
        self.forget(subject, before)

    async def _erase(self, sequences: Iterable[int]) -> None:
        # A missing message counts as erased, since the response to an earlier attempt may have been lost.
        await asyncio.gather(*(self._insisted("STREAM.MSG.DELETE", {"seq": each}) for each in sequences))

    def _asked(self, operation: str, request: dict[str, Any]) -> _StreamResponse:
        return self._connection.call(self._insisted(operation, request))

    async def _insisted(self, operation: str, request: dict[str, Any]) -> _StreamResponse:
        found = await self._connection.retry_until_timeout(
            lambda: self._answer(f"$JS.API.{operation}.{self.name}", request), Unavailable
        )
        if found.error is not None and found.error.err_code not in _ERRORS_NO_MESSAGE:
            raise Internal(f"NATS refused {operation} of stream {self.name}: {found.error.description}")
        return found

    async def _answer(self, subject: str, request: dict[str, Any]) -> _StreamResponse | None:
        """Return a response, or None if the request should be repeated."""
        answer = await self._connection.ask(subject, _encode(request), seconds=self._seconds)
        if answer is None:
            return None
        found = _decode(answer)
        if found.error is not None and found.error.is_temporary:
            self._connection.note(Unavailable(found.error.description))
            return None
        return found

    async def _put(self, subject: str, data: bytes, after: int, identity: str) -> int | None:
        """Make one attempt. An earlier attempt may have succeeded without a response."""
        headers = {
            "Nats-Msg-Id": identity,
            "Nats-Expected-Stream": self.name,
            "Nats-Expected-Last-Subject-Sequence": str(after),
        }
        answer = await self._connection.ask(subject, data, headers, self._seconds)
        if answer is None:
            return None
        error = (found := _decode(answer)).error
        if error is None:
            return found.seq
        if error.err_code in _ERRORS_WRONG_LAST_SEQUENCE:
            return await self._find_published(subject, after, identity)
        if error.is_temporary:
            self._connection.note(Unavailable(error.description))
            return None
        raise Internal(f"NATS refused a message to {subject}: {error.description}")

    async def _find_published(self, subject: str, after: int, identity: str) -> int | None:
        """Return the sequence if the last message is this one, or None if unknown yet.

        Raises Fenced if it is another one.
        """
        found = await self._answer(f"$JS.API.STREAM.MSG.GET.{self.name}", {"last_by_subj": subject})
        if found is None:
            return None
        last = found.message or JetStreamMessage(subject, 0)
        if f"Nats-Msg-Id: {identity}\r\n".encode() in last.hdrs:
            return last.seq
        if last.seq == after:
            # The conflicting message is not stored yet, and may never be.
            return None
        raise Fenced(f"{subject} ends at {last.seq}, not at {after}: another client has written to it")

    async def _create_stream(self, subjects: list[str], kept: int) -> _StreamConfig:
        return await self._connection.retry_until_timeout(lambda: self._try_create_stream(subjects, kept), Unavailable)

    async def _try_create_stream(self, subjects: list[str], kept: int) -> _StreamConfig | None:
        """Return the configuration of the stream, created if missing. Concurrent creation is safe."""
        found = await self._answer(f"$JS.API.STREAM.INFO.{self.name}", {})
        if found is not None and found.error is not None and found.error.err_code == _ERROR_NO_STREAM:
            wanted = {
                "name": self.name,
                "subjects": subjects,
                "num_replicas": STREAM_REPLICAS,
                "storage": "file",
                "retention": "limits",
                "max_msgs_per_subject": kept,
                "duplicate_window": _DEDUPLICATION_WINDOW_SECONDS * 1_000_000_000,
                "allow_direct": True,
            }
            found = await self._answer(f"$JS.API.STREAM.CREATE.{self.name}", wanted)
        if found is not None and found.error is not None:
            raise Conflict(f"stream {self.name} of the cluster cannot be created: {found.error.description}")
        return found.config if found is not None else None


def read_last_sequences(connection: NatsConnection, streams: Iterable[ReplicatedJetStream]) -> list[int | None]:
    """Return the last sequence of each stream, asking all leaders at once; None for those that do not answer."""

    async def asked() -> list[int | None]:
        return await asyncio.gather(*(each.fetch_last_sequence() for each in streams))

    return connection.call(asked())


def _is_last(answer: Msg) -> bool:
    """Return whether a response ends a batch: no more messages, or none at all."""
    return "Status" in (answer.headers or {})


def _message(answer: Msg) -> JetStreamMessage:
    headers = answer.headers or {}
    return JetStreamMessage(headers["Nats-Subject"], int(headers["Nats-Sequence"]), answer.data)
