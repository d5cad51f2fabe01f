"""Change feed as server-sent events: GET …/events for one store, GET /api/events for several.

`ClusterMergedEventReader` combines the events of all nodes of a cluster into one stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import anyio
import msgspec
import structlog
from litestar import Request, get
from litestar.response.base import ASGIResponse
from typing_extensions import override

from kgserve.api import examples
from kgserve.api.operation import COMMON_ERRORS, ApiBodyExample, ApiOperation, build_litestar_opt
from kgserve.errors import Gone, KgserveError, ServedElsewhere, TooLarge
from kgserve.graph.event_checkpoints import START_POSITION, parse_multi_store_event_id
from kgserve.graph.event_subscriptions import EventDelivery, EventPage, EventSubscription, JournalEventReader
from kgserve.graph.url_parameters import split_comma_separated_values
from kgserve.platform.access.authentication import KEY_RECHECK_SECONDS
from kgserve.platform.codecs import json_decoder
from kgserve.platform.media_types import EVENT_STREAM_MEDIA_TYPE
from kgserve.server.cluster_http_client import HOPS_HEADER, ClusterNodeHttpClient
from kgserve.server.http import sse
from kgserve.server.http.error_responses import request_target
from kgserve.server.http.forwarding_middleware import build_caller_identity_headers
from kgserve.server.http.request_decoding import (
    RequestHandlerDependencies,
    decode_path_parameter,
    decode_query_parameters,
    get_request_dependencies,
    wait_for_disconnect,
)
from kgserve.storage.model.change_feed_events import (
    EVERY_OTHER_STORE,
    ChangeFeedEventFilter,
    FeedPosition,
    format_change_feed_positions,
    parse_change_feed_positions,
    parse_event_kinds,
    parse_feed_position,
)
from kgserve.storage.model.store_names import check_store_name
from kgserve.stores.local_placement import StorePlacement

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

    from kgserve.platform.access.authentication import RequestContext

log = structlog.get_logger()

SLOW_CLIENT_WRITE_SECONDS = 0.25
"""A client is too slow if one write blocks for longer while more events than the queue limit are pending."""
STALLED_CLIENT_SECONDS = 30.0
"""A client that reads nothing for this long is disconnected."""
_EVENT_LISTS = frozenset({"store", "kinds", "types"})
_LAST_EVENT_ID_HEADER = "Last-Event-ID"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

OptionalText = str | None


class StoreEventsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters of a request for one store's events."""

    kinds: Annotated[OptionalText, msgspec.Meta(description="Only these kinds of events, separated by commas")] = None
    types: Annotated[
        OptionalText,
        msgspec.Meta(
            description="Only these node and relation types, separated by commas; events without a type always come"
        ),
    ] = None
    since: Annotated[int, msgspec.Meta(ge=0, lt=10**18, description="Begin after this sequence")] | None = None
    last_event_id: Annotated[
        OptionalText, msgspec.Meta(description="Resume after this event, like the header `Last-Event-ID`")
    ] = None


class MultiStoreEventsQuery(StoreEventsQuery, kw_only=True):
    """Query parameters of a request for the events of several stores."""

    store: Annotated[OptionalText, msgspec.Meta(description="Names of stores, separated by commas; default: all")] = (
        None
    )


_EVENT_ERRORS = (*COMMON_ERRORS, "not_found", "gone")
_STORE_EVENTS = ApiOperation(
    id="storeEvents",
    role="read",
    tag="events",
    summary="Stream the changes of one store",
    note="Format and resumption: [Events](events.md).",
    query=StoreEventsQuery,
    answer=ApiBodyExample(None, examples.STORE_EVENTS_EXAMPLE, EVENT_STREAM_MEDIA_TYPE),
    errors=_EVENT_ERRORS,
)
_EVENTS = ApiOperation(
    id="events",
    role="read",
    tag="events",
    summary="Stream the changes of several stores, or of all",
    note="`?store=a,b` names the stores.",
    query=MultiStoreEventsQuery,
    answer=ApiBodyExample(None, examples.ALL_EVENTS_EXAMPLE, EVENT_STREAM_MEDIA_TYPE),
    errors=(*_EVENT_ERRORS, "too_large", "conflict"),
)


@get("/api/memory/{store:str}/events", media_type=EVENT_STREAM_MEDIA_TYPE, opt=build_litestar_opt(_STORE_EVENTS))
async def stream_store_change_events(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Stream one event per changed row, after the commit and in order: its data is the row, its id `sequence-index`.

    A write that changes more than 1,000 rows is one `bulk_changed` event with counts. Without a position the stream
    begins now. With `Last-Event-ID` (or `last_event_id`, or `since`) it delivers every later event exactly once. A
    client that reads too slowly gets a `dropped` event with the id from which to resume, and the stream ends.
    """
    asked = decode_query_parameters(request.scope["query_string"], StoreEventsQuery, _EVENT_LISTS)
    store = check_store_name(decode_path_parameter(request, "store"))
    path, text = _last_id(request, asked)
    positions = {store: parse_feed_position(text, path)} if text else _since(asked)
    return EventStreamResponse(
        get_request_dependencies(request), EventSubscription((store,), positions, _selection(asked), prefixed=False)
    )


@get("/api/events", media_type=EVENT_STREAM_MEDIA_TYPE, opt=build_litestar_opt(_EVENTS))
async def stream_multi_store_change_events(request: Request[Any, Any, Any]) -> ASGIResponse:
    """Stream the events of several stores; ids contain the position in every store: `a:12-3,b:4`.

    Without `store` the stream covers all stores, those created later included: each begins with `store_created`. A node
    of a cluster then includes the stores of all nodes.
    """
    asked = decode_query_parameters(request.scope["query_string"], MultiStoreEventsQuery, _EVENT_LISTS)
    names = tuple(map(check_store_name, dict.fromkeys(_names("store", asked.store)))) or None
    path, text = _last_id(request, asked)
    positions, checkpoint = parse_multi_store_event_id(text, path) if text else (_since(asked), "")
    service, headers = get_request_dependencies(request), request.headers
    wanted = EventSubscription(
        names, positions, _selection(asked), goes_on=RESUMED_STREAM_HEADER in headers, checkpoint=checkpoint
    )
    is_merged = names is None and service.graphs.pool.placement.is_shared and HOPS_HEADER not in headers
    elsewhere = (
        PeerNodeEventsRequest(request_target(request.scope), {POSITION_HEADER: headers.get(_LAST_EVENT_ID_HEADER, "")})
        if is_merged
        else None
    )
    return EventStreamResponse(service, wanted, elsewhere)


class EventStreamResponse(ASGIResponse):
    """Event stream response; ends when the client disconnects, the server stops, or all followed stores are deleted."""

    _should_set_content_length = False

    def __init__(
        self,
        service: RequestHandlerDependencies,
        wanted: EventSubscription,
        elsewhere: PeerNodeEventsRequest | None = None,
    ) -> None:
        """Create the response; with ``elsewhere`` it includes the events of other nodes."""
        super().__init__(media_type=EVENT_STREAM_MEDIA_TYPE, headers=_HEADERS)
        self._service = service
        self._wanted = wanted
        self._elsewhere = elsewhere

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Errors at the start are raised before anything is sent.
        streams = self._service.streams
        context = cast("RequestContext", scope["state"]["request_context"])
        is_node = (
            self._elsewhere is None and HOPS_HEADER.encode() in dict(scope["headers"]) and context.caller.key_id is None
        )
        with streams.open(None if is_node else context.accounting_name) as stream:
            merged = self._merged(stream, context)
            own = JournalEventReader(self._service.graphs, self._wanted, stream.wake, merged and merged.resume_position)
            try:
                async with self._service.admission.read_turns.one(context.accounting_name):
                    await streams.call(own.open)
                if merged is not None:
                    await merged.begin(own, self._wanted.positions)
                await self.start_response(send)
                async with anyio.create_task_group() as group:
                    group.start_soon(_watch, receive, stream.scope)
                    with stream.scope:
                        await _StreamWriter(self._service, stream, merged or own, send, context).run()
                    group.cancel_scope.cancel()
            finally:
                own.close()
                if merged is not None:
                    await merged.close()

    def _merged(self, stream: sse.OpenEventStream, context: RequestContext) -> ClusterMergedEventReader | None:
        if self._elsewhere is None:
            return None
        asked = PeerNodeEventsRequest(
            self._elsewhere.target, {**self._elsewhere.headers, **build_caller_identity_headers(context)}
        )
        return ClusterMergedEventReader(self._service.graphs.pool.placement, self._service.proxy, asked, stream.wake)


async def _watch(receive: Receive, leaving: anyio.CancelScope) -> None:
    await wait_for_disconnect(receive)
    leaving.cancel()


class _StreamWriter:
    """Writer of one stream: reads pages from the reader and sends them as fast as the client reads."""

    def __init__(
        self,
        service: RequestHandlerDependencies,
        stream: sse.OpenEventStream,
        reader: JournalEventReader | ClusterMergedEventReader,
        send: Send,
        context: RequestContext,
    ) -> None:
        self._streams = service.streams
        self._turns = service.admission.read_turns
        self._dropped = service.graphs.pool.observation.streams_dropped
        self._settings = service.graphs.settings
        self._stream = stream
        self._reader = reader
        self._send = send
        self._context = context
        self._slow = False
        self._is_behind = True
        """True while further events may be ready; reading them takes turns with the caller's other reads."""
        self._written_at = 0.0

    async def run(self) -> None:
        """Send events until no followed store is left, the server stops, or the client is too slow."""
        try:
            await self._write(sse.encode_sse_preamble(self._reader.place))
            while not self._stream.stopped and await self._step():
                pass
            await self._write(b"", more=False)
        except TimeoutError:
            log.warning("event_stream_cut_off", reason="the client has stopped reading")
            self._dropped.add("stalled")

    async def _step(self) -> bool:
        """Write the next page, or wait for one; return whether to continue."""
        self._stream.clear()
        if not self._context.still_valid:
            await self._drop("the key is no longer valid")
            return False
        try:
            async with self._turns.one(self._context.accounting_name) if self._is_behind else nullcontext():
                page = self._reader.read_without_waiting() or await self._streams.call(self._reader.read)
                block = b"".join(sse.encode_sse_event(each.kind, each.data, each.id) for each in page.deliveries)
            self._is_behind = not page.idle
        except (KgserveError, OSError) as error:
            log.warning("event_stream_ended", error=str(error))
            self._dropped.add("failed")
            await self._drop(str(error) if isinstance(error, KgserveError) else "the journal could not be read")
            return False
        if block:
            await self._write(block)
        if self._slow:
            self._dropped.add("slow")
            await self._drop("the client reads too slowly")
        elif page.idle and not page.ended:
            await self._wait_for_events()
        return not (self._slow or page.ended)

    async def _drop(self, reason: str) -> None:
        await self._write(sse.encode_sse_stream_dropped_event(self._reader.place, reason))

    async def _wait_for_events(self) -> None:
        """Wait for events, at most until the next check of the key; send a heartbeat when it is due."""
        silent = anyio.current_time() - self._written_at
        left = self._settings.event_heartbeat - silent
        if not await self._stream.wait(min(left, KEY_RECHECK_SECONDS)) and left <= KEY_RECHECK_SECONDS:
            await self._write(sse.encode_sse_heartbeat(self._reader.place))

    async def _write(self, block: bytes, *, more: bool = True) -> None:
        """Send a block and measure whether the client is slow. Raises TimeoutError."""
        begun = anyio.current_time()
        self._stream.sending = True
        try:
            with anyio.fail_after(STALLED_CLIENT_SECONDS):
                await self._send({"type": "http.response.body", "body": block, "more_body": more})
        finally:
            self._stream.sending = False
        self._written_at = anyio.current_time()
        waited = self._written_at - begun
        self._slow = self._slow or (
            waited > SLOW_CLIENT_WRITE_SECONDS and self._reader.unread_event_count > self._settings.event_queue
        )


def _names(parameter: str, text: OptionalText) -> list[str]:
    return split_comma_separated_values(parameter, [text or ""])


def _selection(asked: StoreEventsQuery) -> ChangeFeedEventFilter:
    kinds, types = _names("kinds", asked.kinds), _names("types", asked.types)
    return ChangeFeedEventFilter(parse_event_kinds(kinds) if kinds else None, frozenset(types) if types else None)


def _last_id(request: Request[Any, Any, Any], asked: StoreEventsQuery) -> tuple[str, str]:
    """Return the name of the header or parameter, and the event id in it. The header, sent on reconnection, wins."""
    header = request.headers.get(_LAST_EVENT_ID_HEADER, "").strip()
    return (_LAST_EVENT_ID_HEADER, header) if header else ("last_event_id", asked.last_event_id or "")


def _since(asked: StoreEventsQuery) -> dict[str, FeedPosition]:
    return {} if asked.since is None else {EVERY_OTHER_STORE: FeedPosition.after(asked.since)}


RESUMED_STREAM_HEADER = "kgserve-goes-on"
"""Header of a node that resumes a stream of another node: see `EventSubscription.goes_on`."""
POSITION_HEADER = "last-event-id"
_NODE_POLL_SECONDS = 1.0
_GREETING_TIMEOUT_SECONDS = 5.0
_RECONNECT_SECONDS = 0.1
_MAX_NODE_BLOCKS = 64
_OK, _GONE, _TOO_LARGE = 200, 410, 413
_NOWHERE = FeedPosition(0)


class _Problem(msgspec.Struct):
    detail: str = ""
    oldest: int = 0


class _StoreDroppedData(msgspec.Struct):
    store: str


_decode_problem = json_decoder(_Problem).decode
_decode_store_dropped = json_decoder(_StoreDroppedData).decode


class PeerNodeEventsRequest(NamedTuple):
    """Request for the events of other nodes: target, and headers with the caller and the position."""

    target: str
    headers: Mapping[str, str]


class ClusterMergedEventReader:
    """Event reader that merges this node's events with those that other nodes send. Belongs to one event loop.

    Has the interface of `JournalEventReader`. It tracks one position per store and skips events before it, whichever
    node sends them. So two nodes may report a store that moves, and a broken stream restarts from the merged positions.
    """

    def __init__(
        self,
        placement: StorePlacement,
        forwarder: ClusterNodeHttpClient,
        asked: PeerNodeEventsRequest,
        wake: Callable[[], None],
    ) -> None:
        """Create the reader. ``wake`` is called when another node has sent events."""
        self._placement = placement
        self._forwarder = forwarder
        self._asked = asked
        self._wake = wake
        self._own: JournalEventReader
        self._own_turn = False
        self._places: dict[str, FeedPosition] = {}
        self._rest: FeedPosition | None = None
        self._created: set[str] = set()
        self._sending, self._sent = anyio.create_memory_object_stream[_EventBlock](_MAX_NODE_BLOCKS)
        self._nodes: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._awaited: set[str] = set()
        self._begun = asyncio.Event()
        self._failure: KgserveError | None = None
        self._watching: asyncio.Task[None] | None = None

    def resume_position(self, store: str, sequence: int) -> FeedPosition:
        """Return the position from which to read a store that this node has served since ``sequence``."""
        return self._places.get(store) or self._rest or FeedPosition.after(sequence)

    async def begin(self, own: JournalEventReader, positions: Mapping[str, FeedPosition]) -> None:
        """Connect to the other nodes, and wait for their positions. A node that does not answer in time joins later.

        own: this node's reader, opened at ``positions``. Raises Gone and TooLarge for the same reasons as its `open`.
        """
        self._own = own
        self._places = {name: at for name, at in positions.items() if name != EVERY_OTHER_STORE}
        self._rest = positions.get(EVERY_OTHER_STORE)
        self._advance(own.positions)
        others = self._placement.other_node_urls()
        self._awaited = {*others}
        self._follow(others)
        self._watching = asyncio.create_task(self._watch())
        if others:
            with anyio.move_on_after(_GREETING_TIMEOUT_SECONDS):
                await self._begun.wait()
        self._begun.set()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Disconnect from the other nodes."""
        tasks = [*self._nodes.values(), *([] if self._watching is None else [self._watching])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sending.close()
        self._sent.close()

    @property
    def place(self) -> str:
        """Id of the last event that was read: the positions in all stores."""
        return format_change_feed_positions({**self._places, EVERY_OTHER_STORE: START_POSITION})

    @property
    def unread_event_count(self) -> int:
        """Number of pending events of this node; only few of other nodes are fetched ahead."""
        return self._own.unread_event_count

    def read_without_waiting(self) -> EventPage | None:
        """Return the next page that needs no file access, or None. Alternates between this node and the others."""
        if self._failure is not None:
            raise self._failure
        if not self._own_turn and (blocks := self._received()):
            self._own_turn = True
            return EventPage([delivery for block in blocks for delivery in self._merged(block)])
        return self._merge_page(self._own.read_without_waiting())

    def read(self) -> EventPage:
        """Read and return the next page of this node's events."""
        return self._merge_page(self._own.read()) or EventPage()

    def _merge_page(self, page: EventPage | None) -> EventPage | None:
        if page is None:
            return None
        self._own_turn = False
        deliveries = [each for delivery in page.deliveries for each in self._deduplicate(delivery)]
        self._advance(self._own.positions)
        return EventPage(deliveries, page.idle and not self._sent.statistics().current_buffer_used)

    def _received(self) -> list[_EventBlock]:
        blocks: list[_EventBlock] = []
        while len(blocks) < _MAX_NODE_BLOCKS and self._sent.statistics().current_buffer_used:
            blocks.append(self._sent.receive_nowait())
        return blocks

    def _merged(self, block: _EventBlock) -> Iterable[EventDelivery]:
        if block.kind:
            return self._deduplicate(EventDelivery(block.id or None, block.kind, block.data))
        self._advance(parse_change_feed_positions(block.id, POSITION_HEADER))
        return ()

    def _deduplicate(self, delivery: EventDelivery) -> Iterable[EventDelivery]:
        """Yield an event with the positions of all stores in its id, unless it was delivered already."""
        if delivery.kind == "store_dropped":
            store = _decode_store_dropped(delivery.data).store
            self._created.discard(store)
            if self._places.pop(store, None) is not None:
                yield EventDelivery(self.place, delivery.kind, delivery.data)
        elif delivery.id is None:
            yield delivery
        else:
            first = delivery.id.partition(",")[0]
            store, _, place = first.partition(":")
            position = parse_feed_position(place, POSITION_HEADER)
            if self._is_new(store, position):
                self._places[store] = position
                others = {name: at for name, at in self._places.items() if name != store}
                yield EventDelivery(
                    f"{first},{format_change_feed_positions({**others, EVERY_OTHER_STORE: START_POSITION})}",
                    delivery.kind,
                    delivery.data,
                )

    def _is_new(self, store: str, position: FeedPosition) -> bool:
        known = self._places.get(store, START_POSITION)
        if position > START_POSITION or store in self._created:
            return position.is_after(known)
        # `store_created` has the start position, which is also the position of a stream that begins with the store.
        self._created.add(store)
        return known == START_POSITION

    def _advance(self, positions: Mapping[str, FeedPosition]) -> None:
        for store, position in positions.items():
            if store != EVERY_OTHER_STORE and position.is_after(self._places.get(store, _NOWHERE)):
                self._places[store] = position

    # Streams of other nodes

    async def _watch(self) -> None:
        """Follow changes of cluster membership."""
        while True:
            await asyncio.sleep(_NODE_POLL_SECONDS)
            self._follow(self._placement.other_node_urls())

    def _follow(self, others: Mapping[str, str]) -> None:
        for node in self._nodes.keys() - others.items():
            self._nodes.pop(node).cancel()
        for node in others.items() - self._nodes.keys():
            self._nodes[node] = asyncio.create_task(self._listen(ServedElsewhere("", *node)))

    async def _listen(self, node: ServedElsewhere) -> None:
        while self._failure is None:
            try:
                await self._read_stream(node)
                await asyncio.sleep(_RECONNECT_SECONDS)
            except KgserveError as error:
                log.warning("node_not_heard", node=node.node, reason=str(error))
                await asyncio.sleep(_NODE_POLL_SECONDS)

    async def _read_stream(self, node: ServedElsewhere) -> None:
        """Read the event stream of a node until it ends. Raises Unavailable."""
        headers = self._asked.headers
        if node.node not in self._awaited:
            positions = self._places.copy() if self._rest is None else {**self._places, EVERY_OTHER_STORE: self._rest}
            headers = {**headers, POSITION_HEADER: format_change_feed_positions(positions), RESUMED_STREAM_HEADER: "1"}
        async with self._forwarder.send_request(node, ("GET", self._asked.target), headers, b"") as response:
            if response.status != _OK:
                self._handle_refusal(response.status, await response.read())
                return
            async for block in _blocks(response.content.iter_any()):
                await self._handle_block(node, block)

    async def _handle_block(self, node: ServedElsewhere, block: _EventBlock) -> None:
        if node.node in self._awaited and not self._begun.is_set():
            # The first block contains the position at which the stream begins.
            self._advance(parse_change_feed_positions(block.id, POSITION_HEADER))
            self._awaited.remove(node.node)
            if not self._awaited:
                self._begun.set()
            return
        self._awaited.discard(node.node)
        if block.kind != "dropped" and (block.kind or block.id):
            await self._sending.send(block)
            self._wake()

    def _handle_refusal(self, status: int, body: bytes) -> None:
        problem = _decode_problem(body)
        refusals = {_GONE: Gone(problem.detail, problem.oldest), _TOO_LARGE: TooLarge(problem.detail)}
        if status in refusals:
            self._failure = refusals[status]
            self._begun.set()
            self._wake()
        else:
            log.warning("node_not_heard", reason=problem.detail)


class _EventBlock(NamedTuple):
    """Block of an event stream: the fields between two empty lines."""

    id: str
    kind: str
    data: bytes


async def _blocks(parts: AsyncIterator[bytes]) -> AsyncGenerator[_EventBlock]:
    held = b""
    async for part in parts:
        *whole, held = (held + part).split(b"\n\n")
        for text in whole:
            # Not `splitlines`: it also splits at characters that JSON may contain.
            fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if b": " in line)
            yield _EventBlock(
                fields.get(b"id", b"").decode(), fields.get(b"event", b"").decode(), fields.get(b"data", b"")
            )
