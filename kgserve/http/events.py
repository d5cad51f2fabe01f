"""GET …/events and GET /api/events: what changes, as it changes, as server-sent events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import anyio
import msgspec
import structlog
from litestar import Request, get
from litestar.response.base import ASGIResponse

from kgserve.access.authentication import ASKED_EVERY_SECONDS
from kgserve.errors import KgserveError
from kgserve.forwarding import HOPS
from kgserve.http import sse
from kgserve.http.across import GOES_ON, POSITION, Asked, Merged
from kgserve.http.forward import in_the_name_of
from kgserve.http.problem import target_of
from kgserve.http.service import Service, path_text, query, service_of
from kgserve.model.events import REST, Position, Selection, parse_kinds, parse_position, parse_positions
from kgserve.model.requests import check_store_name
from kgserve.operations import examples
from kgserve.operations.operation import ALWAYS, Body, Operation, described
from kgserve.ops.events import EventReader, Page, Wanted

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

    from kgserve.access.authentication import RequestContext

log = structlog.get_logger()

SLOW_SECONDS = 0.25
"""A client that lets a page wait this long, while more than the queue takes is waiting, is too slow."""
STALL_SECONDS = 30.0
"""A client that reads nothing for this long is cut off, whatever is waiting."""
_LISTS = frozenset({"store", "kinds", "types"})
_HEADER = "Last-Event-ID"
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


_ERRORS = (*ALWAYS, "not_found", "gone")
_STORE_EVENTS = Operation(
    id="storeEvents",
    role="read",
    tag="events",
    summary="What changes in one store, as it changes",
    query=StoreEventsQuery,
    answer=Body(None, examples.EVENTS, sse.MEDIA_TYPE),
    errors=_ERRORS,
)
_EVENTS = Operation(
    id="events",
    role="read",
    tag="events",
    summary="What changes in several stores, or in all",
    query=EventsQuery,
    answer=Body(None, examples.ALL_EVENTS, sse.MEDIA_TYPE),
    errors=(*_ERRORS, "too_large", "conflict"),
)


@get("/api/memory/{store:str}/events", media_type=sse.MEDIA_TYPE, opt=described(_STORE_EVENTS))
async def store_events(request: Request[Any, Any, Any]) -> ASGIResponse:
    """One event per changed row, after the commit and in order: its data is the row, its id `sequence-index`.

    A write that changes more than 1,000 rows is one `bulk_changed` with counts. Without a position the stream begins
    now; after `Last-Event-ID` (or `last_event_id`, or `since`) nothing is missed and nothing comes twice. A client
    that reads too slowly gets a `dropped` event that says from which id to resume, and the stream ends.
    """
    asked = query(request, StoreEventsQuery, _LISTS)
    store = check_store_name(path_text(request, "store"))
    path, text = _last_id(request, asked)
    positions = {store: parse_position(text, path)} if text else _since(asked)
    return EventAnswer(service_of(request), Wanted((store,), positions, _selection(asked), prefixed=False))


@get("/api/events", media_type=sse.MEDIA_TYPE, opt=described(_EVENTS))
async def events(request: Request[Any, Any, Any]) -> ASGIResponse:
    """As the events of one store, with ids that hold the position in every store: `a:12-3,b:4`.

    Without `store`, stores that are made later are followed as well: each begins with `store_created`. Then a node of a
    cluster tells of the stores of all nodes.
    """
    asked = query(request, EventsQuery, _LISTS)
    names = tuple(dict.fromkeys(check_store_name(name) for name in _split(asked.store))) or None
    path, text = _last_id(request, asked)
    positions = parse_positions(text, path) if text else _since(asked)
    service, headers = service_of(request), request.headers
    wanted = Wanted(names, positions, _selection(asked), goes_on=GOES_ON in headers)
    is_merged = names is None and service.graphs.pool.placement.is_shared and HOPS not in headers
    elsewhere = Asked(target_of(request.scope), {POSITION: headers.get(_HEADER, "")}) if is_merged else None
    return EventAnswer(service, wanted, elsewhere)


class EventAnswer(ASGIResponse):
    """Streams events until the client leaves, the server stops, or there is nothing left to follow."""

    _should_set_content_length = False

    def __init__(self, service: Service, wanted: Wanted, elsewhere: Asked | None = None) -> None:
        """With ``elsewhere`` other nodes are asked as well."""
        super().__init__(media_type=sse.MEDIA_TYPE, headers=_HEADERS)
        self._service = service
        self._wanted = wanted
        self._elsewhere = elsewhere

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry. What keeps it from beginning is raised before anything is sent."""
        streams = self._service.streams
        context = cast("RequestContext", scope["state"]["request_context"])
        is_node = self._elsewhere is None and HOPS.encode() in dict(scope["headers"]) and context.caller.key_id is None
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
        asked = Asked(self._elsewhere.target, {**self._elsewhere.headers, **in_the_name_of(context)})
        return Merged(self._service.graphs.pool.placement, self._service.forwarder, asked, stream.wake)


async def _watch(receive: Receive, leaving: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
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
        self._settings = service.settings
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

    async def _write_page(self, page: Page) -> None:
        if page.deliveries:
            await self._write(b"".join(sse.event(each.kind, each.data, each.id) for each in page.deliveries))

    async def _drop(self, reason: str) -> None:
        await self._write(sse.dropped(self._reader.place, reason))

    async def _rest(self) -> None:
        """Wait for news, or until the key is to be looked at; with a sign of life when the time has come."""
        silent = anyio.current_time() - self._written_at
        left = self._settings.event_heartbeat - silent
        if not await self._stream.wait(min(left, ASKED_EVERY_SECONDS)) and left <= ASKED_EVERY_SECONDS:
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
    header = request.headers.get(_HEADER, "").strip()
    return (_HEADER, header) if header else ("last_event_id", asked.last_event_id or "")


def _since(asked: StoreEventsQuery) -> dict[str, Position]:
    return {} if asked.since is None else {REST: Position.after(asked.since)}
