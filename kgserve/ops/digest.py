"""The memories of a store in a page: what is pinned, preferred, was decided last, and is best known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kgserve.memories.memories import Memories
from kgserve.memories.selecting import MemoryPlace, Sort
from kgserve.model.context import count_tokens
from kgserve.model.memories import Memory
from kgserve.model.memory_lists import MemoryFilter
from kgserve.model.telling import memory_line
from kgserve.ops.graph import Graph
from kgserve.ops.shown_memories import shown
from kgserve.ops.worth import now_in_microseconds, settings_of
from kgserve.rows.snapshot import Rows

MOST_TOKENS = 1_500
_CHARACTERS = 300
"""Of one memory; the whole is read by its id."""
_START = MemoryPlace()


class Section(msgspec.Struct, frozen=True):
    """Some memories, under what they are called."""

    title: str
    memories: Sequence[Memory]


def digest(graph: Graph) -> str:
    """At most 1,500 tokens of text; it counts as no use of them. Raises NoStore.

    First what is pinned, preferences, the newest decisions, and then what has faded least. Each comes from an index of
    the memory view, so that it costs the same in a store of any size.
    """
    now = now_in_microseconds()
    with graph.lease() as store:
        wanted = MemoryFilter(now, min_confidence=settings_of(store).min_confidence)
        # What waits to be journaled is not in the view.
        store.accesses.settle()

        def look(memories: Memories, rows: Rows) -> list[Section]:
            told = set[str]()
            sections: list[Section] = []
            for title, ids in _chosen(memories, wanted):
                new = [each for each in ids if each not in told]
                told.update(new)
                found = rows.nodes(new)
                there = [found[each] for each in new if each in found]
                sections.append(Section(title, shown(store, rows, there, now)))
            return sections

        sections = store.memories.ask(look)
    return text_of(graph.name, sections, now / 1_000_000)


def _chosen(memories: Memories, wanted: MemoryFilter) -> Iterator[tuple[str, list[str]]]:
    def listed(sort: Sort, limit: int, *types: str) -> list[str]:
        return memories.listed(msgspec.structs.replace(wanted, types=types), sort, _START, limit).ids

    yield "Pinned", memories.pinned(wanted.now, 20)
    yield "Preferences", listed("created", 10, "preference")
    yield "Newest decisions", listed("created", 10, "decision")
    yield "Also known", listed("confidence", 40)


def text_of(store: str, sections: Iterable[Section], now: float, most: int = MOST_TOKENS) -> str:
    """The sections as text that is within a number of tokens; ``now`` is in seconds since 1970."""
    lines = [f'What the store "{store}" remembers. recall finds more, get_memory shows one whole.']
    spent = count_tokens(lines[0]) + 1
    for section in sections:
        head = [f"\n{section.title}:"]
        for memory in section.memories:
            line = f"- {memory_line(memory, now, _CHARACTERS)}"
            cost = sum(count_tokens(each) + 1 for each in (*head, line))
            if spent + cost > most:
                return "\n".join(lines)
            lines += [*head, line]
            spent += cost
            head = []
    return "\n".join(lines) if len(lines) > 1 else f'The store "{store}" remembers nothing yet; retain adds to it.'
