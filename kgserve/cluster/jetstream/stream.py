"""One stream of JetStream: what is published to a subject only by who knows its last message, and read in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from secrets import token_hex
from typing import Any

import msgspec
from nats.aio.msg import Msg

from kgserve.cluster.jetstream.connection import NATS_ATTEMPT_TIMEOUT_SECONDS, ApiError, NatsConnection
from kgserve.errors import Conflict, Fenced, Internal, Unavailable, Unconfirmed
from kgserve.platform.codecs import json_decoder

STREAM_REPLICAS = 3
_ERRORS_WRONG_LAST_SEQUENCE = {10071, 10164}
"""The second while another message is on its way to the same subject."""
_ERRORS_NO_MESSAGE = {10037, 10043}
"""The second for one that is to be deleted."""
_ERROR_NO_STREAM = 10059
_FETCH_BATCH_MESSAGES = 256
_FETCH_BATCH_BYTES = 4 << 20
_ERASE_BATCH_MESSAGES = 64
_DEDUPLICATION_WINDOW_SECONDS = 30
"""So long the servers know a message by its id: longer than anybody's patience, and than an election."""

_encode = msgspec.json.Encoder().encode


class StreamMessage(msgspec.Struct, frozen=True):
    """A message as the servers keep it."""

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


class _StreamAnswer(msgspec.Struct, frozen=True):
    error: ApiError | None = None
    seq: int = 0
    message: StreamMessage | None = None
    config: _StreamConfig | None = None


_decode = json_decoder(_StreamAnswer).decode


class JetStream:
    """A stream that is there, replicated, and forgets nothing by itself; with ``newest`` all but a subject's last."""

    def __init__(
        self,
        connection: NatsConnection,
        name: str,
        subjects: list[str],
        *,
        newest: bool = False,
        attempt_seconds: float | None = None,
    ) -> None:
        """Make the stream if it is not there. Raises Conflict when it is not as it must be, and Unavailable.

        An answer is waited for as long as ``attempt_seconds`` say, if they do, before it is asked for again.
        """
        self.name = name
        self._connection = connection
        self._seconds = attempt_seconds
        kept = 1 if newest else -1
        config = self._connection.call(self._made(subjects, kept))
        if config.num_replicas < STREAM_REPLICAS or config.storage != "file":
            raise Conflict(f"stream {name} of the cluster must be kept in files by {STREAM_REPLICAS} servers")
        if config.max_age or config.max_msgs > 0 or config.max_bytes > 0 or config.max_msgs_per_subject != kept:
            raise Conflict(f"stream {name} of the cluster has limits by which it would forget: remove them")

    def put(self, subject: str, data: bytes, after: int) -> int:
        """Publish to a subject whose last message is ``after``; the message's sequence.

        Raises Fenced when it is another one, Unconfirmed when nobody could say in time.
        """
        identity = token_hex(16)
        return self._connection.call(
            self._connection.insist(lambda: self._put(subject, data, after, identity), Unconfirmed)
        )

    def last(self, subject: str) -> StreamMessage | None:
        """The last message of a subject, as the stream's leader has it. Raises Unavailable."""
        found = self._asked("STREAM.MSG.GET", {"last_by_subj": subject})
        return found.message

    def following(self, subject: str, after: int) -> StreamMessage | None:
        """The message of a subject that comes after a sequence, as the leader has it. Raises Unavailable."""
        found = self._asked("STREAM.MSG.GET", {"seq": after + 1, "next_by_subj": subject})
        return found.message

    def batch(self, subject: str, after: int) -> list[StreamMessage]:
        """Some messages of subjects after a sequence, from any server: it may lack the last ones, or all."""
        asked = _encode(
            {"seq": after + 1, "next_by_subj": subject, "batch": _FETCH_BATCH_MESSAGES, "max_bytes": _FETCH_BATCH_BYTES}
        )
        at = f"$JS.API.DIRECT.GET.{self.name}"
        asking = self._connection.ask_all(at, asked, _is_last, NATS_ATTEMPT_TIMEOUT_SECONDS, self._seconds)
        answers = self._connection.call(asking)
        return [_message(each) for each in answers if not _is_last(each)]

    def walk(self, subject: str, after: int = 0) -> Iterator[StreamMessage]:
        """The messages of subjects after a sequence, oldest first, up to what is the last one when they are through.

        What is replaced meanwhile is among them, too: some servers lag behind others, the leader says when it is all.
        Raises Unavailable.
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
                # The last one is no more.
                end = after

    def forget(self, subject: str, before: int = 0) -> None:
        """Let go of the messages of a subject before a sequence, or of all. Raises Unavailable."""
        self._asked("STREAM.PURGE", {"filter": subject} | ({"seq": before} if before else {}))

    def erase(self, subject: str, before: int = 0) -> None:
        """As `forget`; the servers also write over what their files have of the messages. Raises Unavailable."""
        there = takewhile(lambda message: not before or message.seq < before, self.walk(subject))
        while some := [message.seq for message in islice(there, _ERASE_BATCH_MESSAGES)]:
            self._connection.call(self._erase(some))
        self.forget(subject, before)

    async def _erase(self, sequences: Iterable[int]) -> None:
        # One that is not there is erased: the answer to an attempt may have been lost.
        await asyncio.gather(*(self._insisted("STREAM.MSG.DELETE", {"seq": each}) for each in sequences))

    def _asked(self, what: str, request: dict[str, Any]) -> _StreamAnswer:
        return self._connection.call(self._insisted(what, request))

    async def _insisted(self, what: str, request: dict[str, Any]) -> _StreamAnswer:
        found = await self._connection.insist(lambda: self._answer(f"$JS.API.{what}.{self.name}", request), Unavailable)
        if found.error is not None and found.error.err_code not in _ERRORS_NO_MESSAGE:
            raise Internal(f"NATS refused {what} of stream {self.name}: {found.error.description}")
        return found

    async def _answer(self, subject: str, request: dict[str, Any]) -> _StreamAnswer | None:
        """An answer that will not be another one soon."""
        answer = await self._connection.ask(subject, _encode(request), seconds=self._seconds)
        if answer is None:
            return None
        found = _decode(answer)
        if found.error is not None and found.error.passes:
            self._connection.note(Unavailable(found.error.description))
            return None
        return found

    async def _put(self, subject: str, data: bytes, after: int, identity: str) -> int | None:
        """One attempt. It may meet what an attempt before it did whose answer was lost."""
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
            return await self._landed(subject, after, identity)
        if error.passes:
            self._connection.note(Unavailable(error.description))
            return None
        raise Internal(f"NATS refused a message to {subject}: {error.description}")

    async def _landed(self, subject: str, after: int, identity: str) -> int | None:
        """The sequence of a message that is the last one already. Raises Fenced when that is another one."""
        found = await self._answer(f"$JS.API.STREAM.MSG.GET.{self.name}", {"last_by_subj": subject})
        if found is None:
            return None
        last = found.message or StreamMessage(subject, 0)
        if f"Nats-Msg-Id: {identity}\r\n".encode() in last.hdrs:
            return last.seq
        if last.seq == after:
            # What was in the way is not stored yet, and may never be.
            return None
        raise Fenced(f"{subject} ends at {last.seq}, not at {after}: somebody else has written to it")

    async def _made(self, subjects: list[str], kept: int) -> _StreamConfig:
        return await self._connection.insist(lambda: self._made_once(subjects, kept), Unavailable)

    async def _made_once(self, subjects: list[str], kept: int) -> _StreamConfig | None:
        """What the stream is; made if it is not there. Two that make it at once both find it."""
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
            raise Conflict(f"stream {self.name} of the cluster cannot be made: {found.error.description}")
        return found.config if found is not None else None


def _is_last(answer: Msg) -> bool:
    """Whether an answer is what ends a batch: nothing more, or nothing at all."""
    return "Status" in (answer.headers or {})


def _message(answer: Msg) -> StreamMessage:
    headers = answer.headers or {}
    return StreamMessage(headers["Nats-Subject"], int(headers["Nats-Sequence"]), answer.data)
