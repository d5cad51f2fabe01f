"""GET …/events and GET /api/events: what changes, as it changes, as server-sent events.

At the end the events of all stores of a cluster as one stream: this node's own, and one from each of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import anyio
import msgspec
import structlog
from litestar import Request, get
from litestar.response.base import ASGIResponse
from typing_extensions import override

from kgserve.api import examples
from kgserve.api.operation import COMMON_ERRORS, Body, Operation, described
from kgserve.errors import Gone, KgserveError, ServedElsewhere, TooLarge
from kgserve.graph.events import START_POSITION, Delivery, EventPage, EventReader, EventSubscription
from kgserve.platform.access.authentication import KEY_RECHECK_SECONDS
from kgserve.platform.codecs import json_decoder
from kgserve.platform.media_types import EVENT_STREAM_MEDIA_TYPE
from kgserve.server.http import sse
from kgserve.server.http.forward import in_the_name_of
from kgserve.server.http.problem import target_of
from kgserve.server.http.request_parts import Service, client_left, path_text, query_of, service_of
from kgserve.server.proxy import HOPS_HEADER, NodeProxy
from kgserve.storage.model.events import (
    EVERY_OTHER_STORE,
    Position,
    Selection,
    format_positions,
    parse_kinds,
    parse_position,
    parse_positions,
)
from kgserve.storage.model.store_names import check_store_name
from kgserve.stores.placement import Placement

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

    from kgserve.platform.access.authentication import RequestContext

log = structlog.get_logger()

SLOW_SECONDS = 0.25
"""A client that lets a page wait this long, while more than the queue takes is waiting, is too slow."""
STALL_SECONDS = 30.0
"""A client that reads nothing for this long is cut off, whatever is waiting."""
_EVENT_LISTS = frozenset({"store", "kinds", "types"})
_LAST_EVENT_ID_HEADER = "Last-Event-ID"
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

Text = str | None


class StoreEventsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of one store's events."""

    kinds: Annotated[Text, msgspec.Meta(description="Only these events: names, separated by commas")] = None
    types: Annotated[
        Text,
        msgspec.Meta(
            description="Only these node and relation types, separated by commas; what has no type still comes"
        ),
    ] = None
    since: Annotated[int, msgspec.Meta(ge=0, lt=10**18, description="Begin after this sequence")] | None = None
    last_event_id: Annotated[
        Text, msgspec.Meta(description="Go on after this event, as the header `Last-Event-ID`")
    ] = None


class EventsQuery(StoreEventsQuery, kw_only=True):
    """The query of the events of several stores."""

    store: Annotated[Text, msgspec.Meta(description="Names of stores, separated by commas; left out, all")] = None


_EVENT_ERRORS = (*COMMON_ERRORS, "not_found", "gone")
_STORE_EVENTS = Operation(
    id="storeEvents",
    role="read",
    tag="events",
    summary="Stream the changes of one store",
    note="See [Events](events.md).",
    query=StoreEventsQuery,
    answer=Body(None, examples.STORE_EVENTS_EXAMPLE, EVENT_STREAM_MEDIA_TYPE),
    errors=_EVENT_ERRORS,
)
_EVENTS = Operation(
    id="events",
    role="read",
    tag="events",
    summary="Stream the changes of several stores, or of all",
    note="`?store=a,b` names the stores.",
    query=EventsQuery,
    answer=Body(None, examples.ALL_EVENTS_EXAMPLE, EVENT_STREAM_MEDIA_TYPE),
    errors=(*_EVENT_ERRORS, "too_large", "conflict"),
)


@get("/api/memory/{store:str}/events", media_type=EVENT_STREAM_MEDIA_TYPE, opt=described(_STORE_EVENTS))
async def store_events(request: Request[Any, Any, Any]) -> ASGIResponse:
    """One event per changed row, after the commit and in order: its data is the row, its id `sequence-index`.

    A write that changes more than 1,000 rows is one `bulk_changed` with counts. Without a position the stream begins
    now; after `Last-Event-ID` (or `last_event_id`, or `since`) nothing is missed and nothing comes twice. A client
    that reads too slowly gets a `dropped` event that says from which id to resume, and the stream ends.
    """
    asked = query_of(request.scope["query_string"], StoreEventsQuery, _EVENT_LISTS)
    store = check_store_name(path_text(request, "store"))
    path, text = _last_id(request, asked)
    positions = {store: parse_position(text, path)} if text else _since(asked)
    return EventAnswer(service_of(request), EventSubscription((store,), positions, _selection(asked), prefixed=False))


@get("/api/events", media_type=EVENT_STREAM_MEDIA_TYPE, opt=described(_EVENTS))
async def events(request: Request[Any, Any, Any]) -> ASGIResponse:
    """As the events of one store, with ids that hold the position in every store: `a:12-3,b:4`.

    Without `store`, stores that are made later are followed as well: each begins with `store_created`. Then a node of a
    cluster tells of the stores of all nodes.
    """
    asked = query_of(request.scope["query_string"], EventsQuery, _EVENT_LISTS)
    names = tuple(dict.fromkeys(check_store_name(name) for name in _split(asked.store))) or None
    path, text = _last_id(request, asked)
    positions = parse_positions(text, path) if text else _since(asked)
    service, headers = service_of(request), request.headers
    wanted = EventSubscription(names, positions, _selection(asked), goes_on=GOES_ON in headers)
    is_merged = names is None and service.graphs.pool.placement.is_shared and HOPS_HEADER not in headers
    elsewhere = (
        NodeEventsRequest(target_of(request.scope), {POSITION_HEADER: headers.get(_LAST_EVENT_ID_HEADER, "")})
        if is_merged
        else None
    )
    return EventAnswer(service, wanted, elsewhere)


class EventAnswer(ASGIResponse):
    """Streams events until the client leaves, the server stops, or there is nothing left to follow."""

    _should_set_content_length = False

    def __init__(self, service: Service, wanted: EventSubscription, elsewhere: NodeEventsRequest | None = None) -> None:
        """With ``elsewhere`` other nodes are asked as well."""
        super().__init__(media_type=EVENT_STREAM_MEDIA_TYPE, headers=_HEADERS)
        self._service = service
        self._wanted = wanted
        self._elsewhere = elsewhere

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry. What keeps it from beginning is raised before anything is sent."""
        streams = self._service.streams
        context = cast("RequestContext", scope["state"]["request_context"])
        is_node = (
            self._elsewhere is None and HOPS_HEADER.encode() in dict(scope["headers"]) and context.caller.key_id is None
        )
        with streams.open(None if is_node else context.asker) as stream:
            merged = self._merged(stream, context)
            own = EventReader(self._service.graphs, self._wanted, stream.wake, merged and merged.came)
            try:
                await streams.call(own.open)
                if merged is not None:
                    await merged.begin(own, self._wanted.positions)
                await self.start_response(send)
                async with anyio.create_task_group() as group:
                    group.start_soon(_watch, receive, stream.scope)
                    with stream.scope:
                        await _Pump(self._service, stream, merged or own, send, context).run()
                    group.cancel_scope.cancel()
            finally:
                own.close()
                if merged is not None:
                    await merged.close()

    def _merged(self, stream: sse.OpenStream, context: RequestContext) -> Merged | None:
        if self._elsewhere is None:
            return None
        asked = NodeEventsRequest(self._elsewhere.target, {**self._elsewhere.headers, **in_the_name_of(context)})
        return Merged(self._service.graphs.pool.placement, self._service.proxy, asked, stream.wake)


async def _watch(receive: Receive, leaving: anyio.CancelScope) -> None:
    await client_left(receive)
    leaving.cancel()


class _Pump:
    """One stream at work: takes pages from the reader and writes them, as fast as the client reads."""

    def __init__(
        self,
        service: Service,
        stream: sse.OpenStream,
        reader: EventReader | Merged,
        send: Send,
        context: RequestContext,
    ) -> None:
        self._streams = service.streams
        self._dropped = service.graphs.pool.observation.streams_dropped
        self._settings = service.graphs.settings
        self._stream = stream
        self._reader = reader
        self._send = send
        self._context = context
        self._slow = False
        self._written_at = 0.0

    async def run(self) -> None:
        """Until there is nothing left to follow, the server stops, or the client is too slow."""
        try:
            await self._write(sse.greeting(self._reader.place))
            while not self._stream.stopped and await self._step():
                pass
            await self._write(b"", more=False)
        except TimeoutError:
            log.warning("event_stream_cut_off", reason="the client has stopped reading")
            self._dropped.add("stalled")

    async def _step(self) -> bool:
        """Write the next page, or wait; whether to go on."""
        self._stream.clear()
        if not self._context.still_valid:
            await self._drop("the key is not valid any more")
            return False
        try:
            page = self._reader.read_now() or await self._streams.call(self._reader.read)
        except (KgserveError, OSError) as error:
            log.warning("event_stream_ended", error=str(error))
            self._dropped.add("failed")
            await self._drop(str(error) if isinstance(error, KgserveError) else "the journal cannot be read")
            return False
        await self._write_page(page)
        if self._slow:
            self._dropped.add("slow")
            await self._drop("the client reads too slowly")
        elif page.idle and not page.ended:
            await self._rest()
        return not (self._slow or page.ended)

    async def _write_page(self, page: EventPage) -> None:
        if page.deliveries:
            await self._write(b"".join(sse.event(each.kind, each.data, each.id) for each in page.deliveries))

    async def _drop(self, reason: str) -> None:
        await self._write(sse.dropped(self._reader.place, reason))

    async def _rest(self) -> None:
        """Wait for news, or until the key is to be looked at; with a sign of life when the time has come."""
        silent = anyio.current_time() - self._written_at
        left = self._settings.event_heartbeat - silent
        if not await self._stream.wait(min(left, KEY_RECHECK_SECONDS)) and left <= KEY_RECHECK_SECONDS:
            await self._write(sse.heartbeat(self._reader.place))

    async def _write(self, block: bytes, *, more: bool = True) -> None:
        """Hand a block to the connection once the one before is on its way. Raises TimeoutError."""
        begun = anyio.current_time()
        self._stream.sending = True
        try:
            with anyio.fail_after(STALL_SECONDS):
                await self._send({"type": "http.response.body", "body": block, "more_body": more})
        finally:
            self._stream.sending = False
        self._written_at = anyio.current_time()
        waited = self._written_at - begun
        self._slow = self._slow or (waited > SLOW_SECONDS and self._reader.behind > self._settings.event_queue)


def _split(text: Text) -> list[str]:
    return [part for part in text.split(",") if part] if text else []


def _selection(asked: StoreEventsQuery) -> Selection:
    kinds, types = _split(asked.kinds), _split(asked.types)
    return Selection(parse_kinds(kinds) if kinds else None, frozenset(types) if types else None)


def _last_id(request: Request[Any, Any, Any], asked: StoreEventsQuery) -> tuple[str, str]:
    """The id to go on after, and where it was given. The header wins: it is what a client that comes back sends."""
    header = request.headers.get(_LAST_EVENT_ID_HEADER, "").strip()
    return (_LAST_EVENT_ID_HEADER, header) if header else ("last_event_id", asked.last_event_id or "")


def _since(asked: StoreEventsQuery) -> dict[str, Position]:
    return {} if asked.since is None else {EVERY_OTHER_STORE: Position.after(asked.since)}


GOES_ON = "kgserve-goes-on"
"""The header by which a node asks for a stream that it had already: see `EventSubscription.goes_on`."""
POSITION_HEADER = "last-event-id"
_NODE_POLL_SECONDS = 1.0
_GREETING_TIMEOUT_SECONDS = 5.0
_RECONNECT_SECONDS = 0.1
_MAX_NODE_BLOCKS = 64
_OK, _GONE, _TOO_LARGE = 200, 410, 413
_NOWHERE = Position(0)


class _Problem(msgspec.Struct):
    detail: str = ""
    oldest: int = 0


class _About(msgspec.Struct):
    store: str


_decode_problem = json_decoder(_Problem).decode
_decode_about = json_decoder(_About).decode


class NodeEventsRequest(NamedTuple):
    """How other nodes are asked for their events: a target, and headers that say for whom and from where on."""

    target: str
    headers: Mapping[str, str]


class Merged:
    """Reads, like an `EventReader`, what this node's own one reads and what other nodes send. For one event loop.

    A store is told of from one position on, whichever node tells of it: what lies before was told already. So two nodes
    may tell of a store that moves, and a stream that has broken is begun anew from where all have come.
    """

    def __init__(
        self, placement: Placement, forwarder: NodeProxy, asked: NodeEventsRequest, wake: Callable[[], None]
    ) -> None:
        """``wake`` is called when a node has sent something."""
        self._placement = placement
        self._forwarder = forwarder
        self._asked = asked
        self._wake = wake
        self._own: EventReader
        self._own_turn = False
        self._places: dict[str, Position] = {}
        self._rest: Position | None = None
        self._made: set[str] = set()
        self._sending, self._sent = anyio.create_memory_object_stream[_EventBlock](_MAX_NODE_BLOCKS)
        self._nodes: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._awaited: set[str] = set()
        self._begun = asyncio.Event()
        self._failure: KgserveError | None = None
        self._watching: asyncio.Task[None] | None = None

    def came(self, store: str, sequence: int) -> Position:
        """Where to go on with a store that this node serves since a sequence."""
        return self._places.get(store) or self._rest or Position.after(sequence)

    async def begin(self, own: EventReader, positions: Mapping[str, Position]) -> None:
        """Listen to the other nodes, too, once they have said from where on. One that does not answer comes later.

        Raises Gone and TooLarge as ``own`` does, which is open and listens from these positions on.
        """
        self._own = own
        self._places = {name: at for name, at in positions.items() if name != EVERY_OTHER_STORE}
        self._rest = positions.get(EVERY_OTHER_STORE)
        self._reach(own.positions)
        others = self._placement.others()
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
        """Listen no longer."""
        tasks = [*self._nodes.values(), *([] if self._watching is None else [self._watching])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sending.close()
        self._sent.close()

    @property
    def place(self) -> str:
        """See `EventReader.place`."""
        return format_positions({**self._places, EVERY_OTHER_STORE: START_POSITION})

    @property
    def behind(self) -> int:
        """See `EventReader.behind`; of other nodes' events only few are fetched ahead."""
        return self._own.behind

    def read_now(self) -> EventPage | None:
        """See `EventReader.read_now`. Nodes take turns, so that none is unheard while another has much to tell."""
        if self._failure is not None:
            raise self._failure
        if not self._own_turn and (blocks := self._received()):
            self._own_turn = True
            return EventPage([told for block in blocks for told in self._merged(block)])
        return self._told(self._own.read_now())

    def read(self) -> EventPage:
        """See `EventReader.read`."""
        return self._told(self._own.read()) or EventPage()

    def _told(self, page: EventPage | None) -> EventPage | None:
        if page is None:
            return None
        self._own_turn = False
        told = [each for delivery in page.deliveries for each in self._once(delivery)]
        self._reach(self._own.positions)
        return EventPage(told, page.idle and not self._sent.statistics().current_buffer_used)

    def _received(self) -> list[_EventBlock]:
        blocks: list[_EventBlock] = []
        while len(blocks) < _MAX_NODE_BLOCKS and self._sent.statistics().current_buffer_used:
            blocks.append(self._sent.receive_nowait())
        return blocks

    def _merged(self, block: _EventBlock) -> Iterable[Delivery]:
        if block.kind:
            return self._once(Delivery(block.id or None, block.kind, block.data))
        self._reach(parse_positions(block.id, POSITION_HEADER))
        return ()

    def _once(self, delivery: Delivery) -> Iterable[Delivery]:
        """An event with the places of all nodes' stores, unless it was told before."""
        if delivery.kind == "store_dropped":
            store = _decode_about(delivery.data).store
            self._made.discard(store)
            if self._places.pop(store, None) is not None:
                yield Delivery(self.place, delivery.kind, delivery.data)
        elif delivery.id is None:
            yield delivery
        else:
            first = delivery.id.partition(",")[0]
            store, _, place = first.partition(":")
            position = parse_position(place, POSITION_HEADER)
            if self._is_new(store, position):
                self._places[store] = position
                others = {name: at for name, at in self._places.items() if name != store}
                yield Delivery(
                    f"{first},{format_positions({**others, EVERY_OTHER_STORE: START_POSITION})}",
                    delivery.kind,
                    delivery.data,
                )

    def _is_new(self, store: str, position: Position) -> bool:
        known = self._places.get(store, START_POSITION)
        if position > START_POSITION or store in self._made:
            return position > known
        # Being made comes before all positions, so who begins with a store has come as far.
        self._made.add(store)
        return known == START_POSITION

    def _reach(self, positions: Mapping[str, Position]) -> None:
        for store, position in positions.items():
            if store != EVERY_OTHER_STORE and position > self._places.get(store, _NOWHERE):
                self._places[store] = position

    # What nodes send

    async def _watch(self) -> None:
        """Listen to nodes that come, and to those that are gone no longer."""
        while True:
            await asyncio.sleep(_NODE_POLL_SECONDS)
            self._follow(self._placement.others())

    def _follow(self, others: Mapping[str, str]) -> None:
        for node in self._nodes.keys() - others.items():
            self._nodes.pop(node).cancel()
        for node in others.items() - self._nodes.keys():
            self._nodes[node] = asyncio.create_task(self._listen(ServedElsewhere("", *node)))

    async def _listen(self, node: ServedElsewhere) -> None:
        while self._failure is None:
            try:
                await self._hear(node)
                await asyncio.sleep(_RECONNECT_SECONDS)
            except KgserveError as error:
                log.warning("node_not_heard", node=node.node, reason=str(error))
                await asyncio.sleep(_NODE_POLL_SECONDS)

    async def _hear(self, node: ServedElsewhere) -> None:
        """Pass on what a node sends, until it ends. Raises Unavailable."""
        headers = self._asked.headers
        if node.node not in self._awaited:
            positions = self._places.copy() if self._rest is None else {**self._places, EVERY_OTHER_STORE: self._rest}
            headers = {**headers, POSITION_HEADER: format_positions(positions), GOES_ON: "1"}
        async with self._forwarder.asked(node, ("GET", self._asked.target), headers, b"") as response:
            if response.status != _OK:
                self._refused(response.status, await response.read())
                return
            async for block in _blocks(response.content.iter_any()):
                await self._heard(node, block)

    async def _heard(self, node: ServedElsewhere, block: _EventBlock) -> None:
        if node.node in self._awaited and not self._begun.is_set():
            # Before anything is read: where the stream begins.
            self._reach(parse_positions(block.id, POSITION_HEADER))
            self._awaited.remove(node.node)
            if not self._awaited:
                self._begun.set()
            return
        self._awaited.discard(node.node)
        if block.kind != "dropped" and (block.kind or block.id):
            await self._sending.send(block)
            self._wake()

    def _refused(self, status: int, body: bytes) -> None:
        problem = _decode_problem(body)
        refusals = {_GONE: Gone(problem.detail, problem.oldest), _TOO_LARGE: TooLarge(problem.detail)}
        if status in refusals:
            self._failure = refusals[status]
            self._begun.set()
            self._wake()
        else:
            log.warning("node_not_heard", reason=problem.detail)


class _EventBlock(NamedTuple):
    """What comes between two empty lines of a stream."""

    id: str
    kind: str
    data: bytes


async def _blocks(parts: AsyncIterator[bytes]) -> AsyncGenerator[_EventBlock]:
    held = b""
    async for part in parts:
        *whole, held = (held + part).split(b"\n\n")
        for text in whole:
            # Not by `splitlines`: what JSON may hold is a line's end to it.
            fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if b": " in line)
            yield _EventBlock(
                fields.get(b"id", b"").decode(), fields.get(b"event", b"").decode(), fields.get(b"data", b"")
            )
