"""The tools about whole stores."""

from __future__ import annotations

import msgspec

from kgserve.errors import FieldError, InvalidInput
from kgserve.mcp import answers, arguments, budget
from kgserve.mcp.tool import Tool, counted, quoted, store_of
from kgserve.mcp.work import Reply, Work
from kgserve.model.stores import DropAnswer
from kgserve.ops import nodes, stores

_TYPES_WITH_EXAMPLES = 20
_EXAMPLES = 3
_TEASER = 60


def _list_stores(work: Work, _default: str | None, given: arguments.ListStores) -> Reply:
    listed = stores.list_stores(work.pool)
    page = listed.stores[given.offset : given.offset + given.limit]
    shown = given.offset + len(page)
    more = f"the next stores: offset={shown}" if page and shown < listed.count else ""
    lines = [
        f"  {store.name}: {counted(store.nodes, 'node')}, {counted(store.edges, 'edge')}, {store.state}"
        for store in page
    ]
    head = (
        counted(listed.count, "store") if listed.count else "There are no stores yet; inject_knowledge_graph makes one"
    )
    tail = [f"More: {more}."] if more else []
    answer = answers.Stores(stores=page, count=listed.count, more=more or msgspec.UNSET)
    return Reply("\n".join([head, *lines, *tail]), answer)


def _describe_store(work: Work, default: str | None, given: arguments.DescribeStore) -> Reply:
    answer = describe(work, store_of(given.index, default))
    return Reply("\n".join(budget.lines_within(_described(answer), budget.TEXT)), answer)


def describe(work: Work, store: str) -> answers.Description:
    """What a store holds, from counts that are kept and pages of the catalog. Raises NotFound."""
    held = stores.stats(work.pool, store, work.indexer)
    types = [
        answers.TypeDescription(
            type=type_,
            count=count,
            examples=_examples(work, store, type_) if place < _TYPES_WITH_EXAMPLES else [],
        )
        for place, (type_, count) in enumerate(held.types.items())
    ]
    return answers.Description(
        name=held.name,
        nodes=held.nodes,
        edges=held.edges,
        sequence=held.sequence,
        types=types,
        relation_types=held.relation_types,
        indexes_behind=max((index.lag for index in held.indexes if index.name in ("keyword", "vector")), default=0),
    )


def _examples(work: Work, store: str, type_: str) -> list[answers.Example]:
    page = nodes.list_nodes(work.pool, store, type_, _EXAMPLES, None)
    return [answers.Example(id=node.id, content=budget.shortened(node.content, _TEASER)) for node in page.nodes]


def _described(answer: answers.Description) -> list[str]:
    head = f'Store "{answer.name}": {counted(answer.nodes, "node")}, {counted(answer.edges, "edge")}, '
    lines = [f"{head}sequence {answer.sequence}", "", "=== Types ==="]
    for described in answer.types:
        lines.append(f"  {described.type}: {described.count:,}")
        lines += [
            f"    {quoted(example.id)}" + (f" {quoted(example.content)}" if example.content else "")
            for example in described.examples
        ]
    lines += ["", "=== Relation types ==="]
    lines += [f"  {name}: {count:,}" for name, count in answer.relation_types.items()]
    return lines


def _drop_store(work: Work, _default: str | None, given: arguments.DropStore) -> Reply:
    if given.confirm != given.index:
        message = "must repeat the name of the store; nothing was dropped"
        raise InvalidInput(f"confirm: {message}", (FieldError("confirm", message),))
    answer = stores.drop_store(work.pool, given.index, given.confirm)
    return Reply(f'Dropped the store "{answer.dropped}" and everything in it.', answer)


TOOLS = (
    Tool(
        "list_stores",
        "List the stores",
        "All stores with their counts.",
        arguments.ListStores,
        answers.Stores,
        "reads",
        "listing the stores",
        _list_stores,
    ),
    Tool(
        "describe_store",
        "Describe a store",
        "What a store holds: types of entities with counts and examples, and relation types with counts. Read it "
        "before you write, so that the same things keep getting the same types and relation types.",
        arguments.DescribeStore,
        answers.Description,
        "reads",
        "describing the store",
        _describe_store,
    ),
    Tool(
        "drop_store",
        "Drop a store",
        "Remove a store with everything in it, for good. `confirm` must repeat its name. Only when the user has asked "
        "for just this.",
        arguments.DropStore,
        DropAnswer,
        "deletes",
        "dropping the store",
        _drop_store,
        administers=True,
    ),
)
