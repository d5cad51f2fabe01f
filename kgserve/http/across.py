"""The events of all stores of a cluster as one stream: this node's own, and one stream from each of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from typing import NamedTuple

import anyio
import msgspec
import structlog

from kgserve.decoding import json_decoder
from kgserve.errors import Gone, KgserveError, ServedElsewhere, TooLarge
from kgserve.forwarding import Forwarder
from kgserve.model.events import REST, Position, format_positions, parse_position, parse_positions
from kgserve.ops.events import START, Delivery, EventReader, Page
from kgserve.store.placement import Placement

log = structlog.get_logger()

GOES_ON = "kgserve-goes-on"
"""The header by which a node asks for a stream that it had already: see `Wanted.goes_on`."""
POSITION = "last-event-id"
_LOOK_SECONDS = 1.0
_GREETED_SECONDS = 5.0
_AGAIN_SECONDS = 0.1
_BLOCKS = 64
_OK, _GONE, _TOO_LARGE = 200, 410, 413
_NOWHERE = Position(0)


class _Problem(msgspec.Struct):
    detail: str = ""
    oldest: int = 0


class _About(msgspec.Struct):
    store: str


_decode_problem = json_decoder(_Problem).decode
_decode_about = json_decoder(_About).decode


class Asked(NamedTuple):
    """How other nodes are asked for their events: a target, and headers that say for whom and from where on."""

    target: str
    headers: Mapping[str, str]


class Merged:
    """Reads, like an `EventReader`, what this node's own one reads and what other nodes send. For one event loop.

    A store is told of from one position on, whichever node tells of it: what lies before was told already. So two nodes
    may tell of a store that moves, and a stream that has broken is begun anew from where all have come.
    """

    def __init__(self, placement: Placement, forwarder: Forwarder, asked: Asked, wake: Callable[[], None]) -> None:
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
        self._sending, self._sent = anyio.create_memory_object_stream[_Block](_BLOCKS)
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
        self._places = {name: at for name, at in positions.items() if name != REST}
        self._rest = positions.get(REST)
        self._reach(own.positions)
        others = self._placement.others()
        self._awaited = {*others}
        self._follow(others)
        self._watching = asyncio.create_task(self._watch())
        if others:
            with anyio.move_on_after(_GREETED_SECONDS):
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
        return format_positions({**self._places, REST: START})

    @property
    def behind(self) -> int:
        """See `EventReader.behind`; of other nodes' events only few are fetched ahead."""
        return self._own.behind

    def read_now(self) -> Page | None:
        """See `EventReader.read_now`. Nodes take turns, so that none is unheard while another has much to tell."""
        if self._failure is not None:
            raise self._failure
        if not self._own_turn and (blocks := self._received()):
            self._own_turn = True
            return Page([told for block in blocks for told in self._merged(block)])
        return self._told(self._own.read_now())

    def read(self) -> Page:
        """See `EventReader.read`."""
        return self._told(self._own.read()) or Page()

    def _told(self, page: Page | None) -> Page | None:
        if page is None:
            return None
        self._own_turn = False
        told = [each for delivery in page.deliveries for each in self._once(delivery)]
        self._reach(self._own.positions)
        return Page(told, page.idle and not self._sent.statistics().current_buffer_used)

    def _received(self) -> list[_Block]:
        blocks: list[_Block] = []
        while len(blocks) < _BLOCKS and self._sent.statistics().current_buffer_used:
            blocks.append(self._sent.receive_nowait())
        return blocks

    def _merged(self, block: _Block) -> Iterable[Delivery]:
        if block.kind:
            return self._once(Delivery(block.id or None, block.kind, block.data))
        self._reach(parse_positions(block.id, POSITION))
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
            position = parse_position(place, POSITION)
            if self._is_new(store, position):
                self._places[store] = position
                others = {name: at for name, at in self._places.items() if name != store}
                yield Delivery(f"{first},{format_positions({**others, REST: START})}", delivery.kind, delivery.data)

    def _is_new(self, store: str, position: Position) -> bool:
        known = self._places.get(store, START)
        if position > START or store in self._made:
            return position > known
        # Being made comes before all positions, so who begins with a store has come as far.
        self._made.add(store)
        return known == START

    def _reach(self, positions: Mapping[str, Position]) -> None:
        for store, position in positions.items():
            if store != REST and position > self._places.get(store, _NOWHERE):
                self._places[store] = position

    # What nodes send

    async def _watch(self) -> None:
        """Listen to nodes that come, and to those that are gone no longer."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
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
                await asyncio.sleep(_AGAIN_SECONDS)
            except KgserveError as error:
                log.warning("node_not_heard", node=node.node, reason=str(error))
                await asyncio.sleep(_LOOK_SECONDS)

    async def _hear(self, node: ServedElsewhere) -> None:
        """Pass on what a node sends, until it ends. Raises Unavailable."""
        headers = self._asked.headers
        if node.node not in self._awaited:
            positions = self._places.copy() if self._rest is None else {**self._places, REST: self._rest}
            headers = {**headers, POSITION: format_positions(positions), GOES_ON: "1"}
        async with self._forwarder.asked(node, ("GET", self._asked.target), headers, b"") as response:
            if response.status != _OK:
                self._refused(response.status, await response.read())
                return
            async for block in _blocks(response.content.iter_any()):
                await self._heard(node, block)

    async def _heard(self, node: ServedElsewhere, block: _Block) -> None:
        if node.node in self._awaited and not self._begun.is_set():
            # Before anything is read: where the stream begins.
            self._reach(parse_positions(block.id, POSITION))
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


class _Block(NamedTuple):
    """What comes between two empty lines of a stream."""

    id: str
    kind: str
    data: bytes


async def _blocks(parts: AsyncIterator[bytes]) -> AsyncGenerator[_Block]:
    held = b""
    async for part in parts:
        *whole, held = (held + part).split(b"\n\n")
        for text in whole:
            # Not by `splitlines`: what JSON may hold is a line's end to it.
            fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if b": " in line)
            yield _Block(fields.get(b"id", b"").decode(), fields.get(b"event", b"").decode(), fields.get(b"data", b""))
