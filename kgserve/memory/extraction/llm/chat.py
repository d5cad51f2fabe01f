"""A service that speaks OpenAI's chat format: ``POST {base}/chat/completions``.

A question may take a minute, and a store that closes, or a server that stops, waits for nobody. So questions are tasks
of one event loop, in a thread of its own, which can be taken back at any moment, whatever they wait for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx
import msgspec

from kgserve.platform.codecs import decode_json
from kgserve.platform.service_url import address_of, headers_of

MAX_LLM_ANSWER_BYTES = 256 << 10
"""What is longer is not read to its end."""
MAX_LLM_ANSWER_TOKENS = 4_096
MAX_LLM_CONNECTIONS = 8
LLM_CONNECT_TIMEOUT_SECONDS = 5.0
MAX_LLM_RETRY_AFTER_SECONDS = 3_600.0
"""A service that asks for a longer pause is asked again after this one, in seconds."""
BYTES_PER_TOKEN = 3
"""For an estimate: texts in English have four, others fewer."""
_MAX_REPORTED_TOKENS = 10_000_000
_LLM_CALL_POLL_SECONDS = 0.05
_REFUSAL_STATUSES = frozenset({400, 413, 415, 422, 501})
"""Statuses of who does not take the question as it is."""
_MAX_QUOTED_CHARS = 200

_encode = msgspec.json.encode


class Unanswered(Exception):
    """There is no answer that can be used; ``of_service``: for reasons that lie with the service, not the question.

    ``pause`` is for how many seconds the service asks to be left alone. ``reason`` is the message without what the
    service said, which may be what it was sent: that is told, and written nowhere.
    """

    def __init__(self, message: str, *, of_service: bool, pause: float = 0.0, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or message
        self.of_service = of_service
        self.pause = pause


class ChatInterrupted(Exception):
    """Nobody wants the answer any more."""


class Question(NamedTuple):
    """What is asked: what the model is to do, what with, and the JSON Schema of the answer by its name."""

    task: str
    material: bytes
    name: str
    schema: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """About how many it has."""
        return (len(self.task) + len(self.material)) // BYTES_PER_TOKEN + 1


class ChatReply(NamedTuple):
    """What the model says, and how many tokens it all took, by the larger of what the service says and an estimate."""

    text: str
    tokens: int


class _ChatMessage(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _ChatMessage


class _ChatAnswer(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None


_SAMPLING_PARAMETERS = {"temperature": 0, "max_tokens": MAX_LLM_ANSWER_TOKENS}
_REQUEST_VARIANTS = 4
"""How a question can be put: by a schema, with and without the parameters that some models refuse; as JSON; plainly."""


class Chat:
    """Asks over HTTP, for any thread. The key is never logged or shown."""

    def __init__(self, url: str, model: str, key: str = "", seconds: float = 60.0) -> None:
        """``url`` is the base, such as https://host/v1. Raises InvalidInput for one, or a key, that cannot be used."""
        self._base, self._key, self._seconds = address_of(url, "llm_url"), key, seconds
        # What is packed can become a thousand times as long when it is read.
        self._headers = headers_of(key, "llm_key") | {"Accept-Encoding": "identity"}
        self.model = model
        self._way = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: httpx.AsyncClient | None = None
        self._closed = False

    def ask(self, question: Question, unwanted: Callable[[], bool]) -> ChatReply:
        """Ask, and wait for the answer, but no longer than it is wanted.

        Raises Unanswered, and Interrupted once it is ``unwanted`` or nobody asks any more.
        """
        call = asyncio.run_coroutine_threadsafe(self._within_time(question), self._running())
        while True:
            try:
                return call.result(_LLM_CALL_POLL_SECONDS)
            except concurrent.futures.CancelledError:
                raise ChatInterrupted from None
            except TimeoutError:
                if unwanted() or self._closed:
                    call.cancel()
                    raise ChatInterrupted from None

    def close(self) -> None:
        """Ask no more; who waits for an answer is told at once."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(loop.stop)
            thread.join(1.0)

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop, which begins with the first question."""
        with self._lock:
            if self._closed:
                raise ChatInterrupted
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="llm", daemon=True)
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(self._end())
        finally:
            loop.close()

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _within_time(self, question: Question) -> ChatReply:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._asked(question)
        except TimeoutError:
            raise Unanswered(f"no answer within {self._seconds:g} s", of_service=True) from None
        except httpx.HTTPError as error:
            raise Unanswered(self._told(str(error) or type(error).__name__), of_service=True) from None

    async def _asked(self, question: Question) -> ChatReply:
        """Put the question in the way that was taken the last time, then in plainer ones while it is refused."""
        first, refusal = self._way, ""
        for way in range(first, _REQUEST_VARIANTS):
            status, pause, content = await self._post(_encode(self._body(question, way)))
            if 200 <= status < 300:  # noqa: PLR2004
                self._way = way
                return _reply(content, question)
            refusal = self._told(f"status {status}: {content.decode(errors='replace')}")
            if status not in _REFUSAL_STATUSES:
                raise Unanswered(refusal, of_service=True, pause=pause, reason=f"status {status}")
        self._way = 0
        raise Unanswered(refusal, of_service=False, reason="refused in every form")

    def _body(self, question: Question, way: int) -> dict[str, Any]:
        task = question.task if way < 2 else f"{question.task}\n{_shape(question)}"  # noqa: PLR2004
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "system", "content": task}, {"role": "user", "content": question.material.decode()}],
        }
        match way:
            case 0:
                return body | _SAMPLING_PARAMETERS | {"response_format": _by_schema(question)}
            case 1:
                return body | {"response_format": _by_schema(question)}
            case 2:
                return body | {"response_format": {"type": "json_object"}}
            case _:
                return body

    async def _post(self, body: bytes) -> tuple[int, float, bytes]:
        """Status, pause that is asked for, and body, cut off where it is too long of an error. Raises Unanswered."""
        if self._client is None:
            self._client = httpx.AsyncClient(
                base_url=self._base,
                headers=self._headers,
                timeout=httpx.Timeout(self._seconds, connect=LLM_CONNECT_TIMEOUT_SECONDS),
                limits=httpx.Limits(max_connections=MAX_LLM_CONNECTIONS, max_keepalive_connections=1),
            )
        content = bytearray()
        async with self._client.stream("POST", "chat/completions", content=body) as response:
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MAX_LLM_ANSWER_BYTES:
                    if response.is_success:
                        raise Unanswered(f"its answer is longer than {MAX_LLM_ANSWER_BYTES} bytes", of_service=False)
                    break
            return response.status_code, _pause(response), bytes(content)

    def _told(self, said: str) -> str:
        """What can be shown of what the service said."""
        return (said.replace(self._key, "…") if self._key else said)[:_MAX_QUOTED_CHARS]


def _by_schema(question: Question) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": question.name, "strict": True, "schema": question.schema}}


def _shape(question: Question) -> str:
    return f"Answer with one JSON object of this JSON Schema, and nothing else: {_encode(question.schema).decode()}"


def _pause(response: httpx.Response) -> float:
    """Seconds that the service asks for; 0 when it says nothing, or a date."""
    try:
        return min(max(0.0, float(response.headers.get("Retry-After", 0))), MAX_LLM_RETRY_AFTER_SECONDS)
    except ValueError:
        return 0.0


def _reply(content: bytes, question: Question) -> ChatReply:
    estimate = question.tokens + len(content) // BYTES_PER_TOKEN
    try:
        answer = decode_json(content, _ChatAnswer)
        text = answer.choices[0].message.content
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError):
        raise Unanswered("its answer is not of OpenAI's format", of_service=False) from None
    if not text:
        raise Unanswered("its answer is empty", of_service=False)
    return ChatReply(text, max(estimate, _told_tokens(answer.usage)))


def _told_tokens(usage: Any) -> int:
    told = usage.get("total_tokens") if isinstance(usage, dict) else None
    return told if isinstance(told, int) and 0 <= told <= _MAX_REPORTED_TOKENS else 0
