"""Client for services with OpenAI's chat format: ``POST {base}/chat/completions``.

A question may take a minute, but a closing store or a stopping server must not wait for it. Questions therefore run as
tasks of an event loop in a separate thread, where they can be cancelled at any point.
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
from kgserve.platform.external_service_url import build_json_request_headers, parse_external_service_url

MAX_LLM_ANSWER_BYTES = 256 << 10
"""Maximum length of an answer that is read."""
MAX_LLM_ANSWER_TOKENS = 4_096
MAX_LLM_CONNECTIONS = 8
LLM_CONNECT_TIMEOUT_SECONDS = 5.0
MAX_LLM_RETRY_AFTER_SECONDS = 3_600.0
"""Maximum pause that a service can request."""
BYTES_PER_TOKEN = 3
"""Bytes per token for an estimate; English has about four, other languages fewer."""
_MAX_REPORTED_TOKENS = 10_000_000
_LLM_CALL_POLL_SECONDS = 0.05
_REFUSAL_STATUSES = frozenset({400, 413, 415, 422, 501})
"""Statuses of a service that rejects the form of the request."""
_MAX_QUOTED_CHARS = 200

_encode = msgspec.json.encode


class NoUsableLlmAnswer(Exception):
    """Error: no usable answer of a language model; `of_service` tells if the service or the question is at fault.

    `pause` is the number of seconds that the service asked to wait. `reason` is the message without the service's own
    text, which may repeat the question: only `reason` may be stored.
    """

    def __init__(self, message: str, *, of_service: bool, pause: float = 0.0, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or message
        self.of_service = of_service
        self.pause = pause


class LlmChatCancelled(Exception):
    """Error: the question to the language model was cancelled."""


class LlmJsonPrompt(NamedTuple):
    """A question: task, material, and the JSON Schema of the answer with its name."""

    task: str
    material: bytes
    name: str
    schema: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """Estimated number of tokens."""
        return (len(self.task) + len(self.material)) // BYTES_PER_TOKEN + 1


class ChatReply(NamedTuple):
    """Text of the model, and tokens used: the larger of the reported number and an estimate."""

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
"""Request forms: schema with sampling parameters, schema alone, JSON mode, plain text."""


class ChatClient:
    """Client of an OpenAI-compatible chat service, for any thread. The key is never logged or shown."""

    def __init__(self, url: str, model: str, key: str = "", seconds: float = 60.0) -> None:
        """Create a client for a base URL, such as https://host/v1. Raises InvalidInput for an invalid URL or key."""
        self._base, self._key, self._seconds = parse_external_service_url(url, "llm_url"), key, seconds
        # Compressed answers could expand a thousandfold.
        self._headers = build_json_request_headers(key, "llm_key") | {"Accept-Encoding": "identity"}
        self.model = model
        self._variant = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: httpx.AsyncClient | None = None
        self._closed = False

    def ask(self, question: LlmJsonPrompt, unwanted: Callable[[], bool]) -> ChatReply:
        """Ask and wait for the answer, until `unwanted` returns true.

        Raises NoUsableLlmAnswer, and LlmChatCancelled once it is unwanted or the client is closed.
        """
        call = asyncio.run_coroutine_threadsafe(self._ask_with_timeout(question), self._get_loop())
        while True:
            try:
                return call.result(_LLM_CALL_POLL_SECONDS)
            except concurrent.futures.CancelledError:
                raise LlmChatCancelled from None
            except TimeoutError:
                if unwanted() or self._closed:
                    call.cancel()
                    raise LlmChatCancelled from None

    def close(self) -> None:
        """Accept no more questions; waiting callers receive LlmChatCancelled."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(loop.stop)
            thread.join(1.0)

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop; start it with the first question."""
        with self._lock:
            if self._closed:
                raise LlmChatCancelled
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="llm", daemon=True)
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
            loop.run_until_complete(self._shut_down())
        finally:
            loop.close()

    async def _shut_down(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _ask_with_timeout(self, question: LlmJsonPrompt) -> ChatReply:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._send_question(question)
        except TimeoutError:
            raise NoUsableLlmAnswer(f"no answer within {self._seconds:g} s", of_service=True) from None
        except httpx.HTTPError as error:
            raise NoUsableLlmAnswer(self._quote(str(error) or type(error).__name__), of_service=True) from None

    async def _send_question(self, question: LlmJsonPrompt) -> ChatReply:
        """Send the question in the form accepted last time, then in simpler ones while it is rejected."""
        first, refusal = self._variant, ""
        for variant in range(first, _REQUEST_VARIANTS):
            status, pause, content = await self._post(_encode(self._body(question, variant)))
            if 200 <= status < 300:  # noqa: PLR2004
                self._variant = variant
                return _reply(content, question)
            refusal = self._quote(f"status {status}: {content.decode(errors='replace')}")
            if status not in _REFUSAL_STATUSES:
                raise NoUsableLlmAnswer(refusal, of_service=True, pause=pause, reason=f"status {status}")
        self._variant = 0
        raise NoUsableLlmAnswer(refusal, of_service=False, reason="rejected in every form")

    def _body(self, question: LlmJsonPrompt, variant: int) -> dict[str, Any]:
        task = question.task if variant < 2 else f"{question.task}\n{_schema_instruction(question)}"  # noqa: PLR2004
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "system", "content": task}, {"role": "user", "content": question.material.decode()}],
        }
        match variant:
            case 0:
                return body | _SAMPLING_PARAMETERS | {"response_format": _json_schema_format(question)}
            case 1:
                return body | {"response_format": _json_schema_format(question)}
            case 2:
                return body | {"response_format": {"type": "json_object"}}
            case _:
                return body

    async def _post(self, body: bytes) -> tuple[int, float, bytes]:
        """Return status, requested pause, and body; long error bodies are truncated. Raises NoUsableLlmAnswer."""
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
                        raise NoUsableLlmAnswer(
                            f"the answer is longer than {MAX_LLM_ANSWER_BYTES} bytes", of_service=False
                        )
                    break
            return response.status_code, _retry_after(response), bytes(content)

    def _quote(self, text: str) -> str:
        """Return a message of the service, shortened and without the key."""
        return (text.replace(self._key, "…") if self._key else text)[:_MAX_QUOTED_CHARS]


def _json_schema_format(question: LlmJsonPrompt) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": question.name, "strict": True, "schema": question.schema}}


def _schema_instruction(question: LlmJsonPrompt) -> str:
    return f"Answer with one JSON object of this JSON Schema, and nothing else: {_encode(question.schema).decode()}"


def _retry_after(response: httpx.Response) -> float:
    """Return the seconds that the service asks to wait; 0 without a number."""
    try:
        return min(max(0.0, float(response.headers.get("Retry-After", 0))), MAX_LLM_RETRY_AFTER_SECONDS)
    except ValueError:
        return 0.0


def _reply(content: bytes, question: LlmJsonPrompt) -> ChatReply:
    estimate = question.tokens + len(content) // BYTES_PER_TOKEN
    try:
        answer = decode_json(content, _ChatAnswer)
        text = answer.choices[0].message.content
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError):
        raise NoUsableLlmAnswer("the answer is not in OpenAI's format", of_service=False) from None
    if not text:
        raise NoUsableLlmAnswer("the answer is empty", of_service=False)
    return ChatReply(text, max(estimate, _reported_tokens(answer.usage)))


def _reported_tokens(usage: Any) -> int:
    reported = usage.get("total_tokens") if isinstance(usage, dict) else None
    return reported if isinstance(reported, int) and 0 <= reported <= _MAX_REPORTED_TOKENS else 0
