"""What agents are told: the instructions of the server, and prompts that a user picks; and completion of arguments."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice, takewhile
from typing import NamedTuple

from mcp import MCPError, types

from kgserve.errors import InvalidInput, NotFound
from kgserve.graph.handle import Graph, Graphs
from kgserve.platform.access.authentication import Hidden
from kgserve.projections.catalog.catalog import Catalog
from kgserve.server.admission import Admission
from kgserve.server.mcp.calls import Context, as_protocol_errors, default_store, visit_of
from kgserve.server.mcp.resources import ENTITY_TEMPLATE, MEMORY_TEMPLATE, STORE_TEMPLATE
from kgserve.storage.model.fields import MAX_ID_BYTES

INSTRUCTIONS = """\
kgserve remembers, and keeps knowledge graphs, in stores.
Memories are sentences. Before you answer about the user, the project or earlier decisions: recall. When something \
will matter later: retain, one thing at a time; what has changed supersedes the memory that is no longer true. Much \
has come together: reflect. The user asks for it, or it was never true: forget.
Graphs are entities (id, type, content, attributes) and typed, weighted relations, for how things hang together: \
get_context with the question, or search_knowledge; then traverse_knowledge_graph or get_entity from an id that was \
found. Before writing one read describe_store, and reuse its types, relation types and ways of making ids. Record with \
inject_knowledge_graph: stable ids, relations as VERBS_IN_CAPITALS. Sending the same again is harmless.
An entity that was true and is no longer gets valid_to: inject it with the same id, or call retire; do not delete it. \
Every state is kept: as_of reads what the store knew at a time, valid_at what was true in the world at a time. Tools \
that are not listed can be called, too: retire, put_node, entity_history, merge_entities.
`index` is the name of the store; with a default store it may be left out."""

_RECORD_AND_RECALL = """\
Use the kgserve tools as your memory{about}. {which}

Recall, before you answer or change anything:
1. recall with the question in plain words. If the answer is about how things hang together, or little comes back, \
get_context with it, then search_knowledge with two or three other wordings as queries.
2. From the ids that fit, traverse_knowledge_graph (depth 1 or 2) shows what depends on what; get_entity gives one \
entity whole.
3. Cite ids when you rely on what you found. Say so when nothing was found; do not invent.

Retain, when something will matter later (a decision and its reason, a preference, a fact):
- retain it as one sentence that makes sense alone, with whom or what it is about as entities.
- Look at `similar` in the answer: what is no longer true, retain again with supersedes set to its id.
- reflect at the end of a piece of work: accept by number what is right, refuse the rest.
- forget by ids what the user wants forgotten, or was never true; undo brings back.

Record, when things and how they are related matter (requirements, who owns what, where code lives):
1. describe_store first: reuse the types, relation types and id patterns that are there.
2. inject_knowledge_graph with everything that belongs together in one call. An entity has a stable id such as \
req-login or adr-007, a type such as requirement or decision, and as content one or two sentences that make sense \
alone. Relations say how: IMPLEMENTED_BY, DEPENDS_ON, DECIDED_IN.
3. Look at edges_skipped in the answer: those ends did not exist.
4. To correct, inject the same id again; a field that is left out keeps its value. What was never true, \
delete_graph_relation or delete_graph_entity removes.
5. What was true and is no longer, call retire with valid_to. Set valid_from and valid_to \
when you know since and until when something is true.
6. To rewrite an entity that others write, too, get_entity first, then put_node the whole of it with that version as \
based_on_version. A conflict_manual error says what to read and how to settle it.
7. One thing under two ids: merge_entities.

Look back, when it matters what was so, or why it changed:
- valid_at (a time): what was true in the world then. Without it what is true now is found, with "any" all.
- as_of (a time, or a sequence): what the store knew then. Both go together, on searches, reads, lists and walks.
- entity_history: the states of one entity and what each changed; with revert_to it goes back to one.

Do not record secrets, or what the repository itself already says better."""

_BEGIN_SESSION = """\
We begin a session of work{about}. Before anything else find out what is known. {which}

1. recall what the work is about, in plain words; without a topic, decisions, open questions and what was to be done \
next. If nothing comes back, say so.
2. describe_store: what else the store holds, and in which words; then get_context with the same question.
3. traverse_knowledge_graph (depth 1) from the two or three ids that matter most: what they depend on, what replaced \
them, who owns them.
4. Look at what a finding says about itself: what is stale, was retired, or is in conflict with another version does \
not count as known. entity_history tells what changed and when.

Then tell me in at most ten lines what is known, what is open and what seems out of date, with ids, and ask what comes \
first. Write nothing yet. During the work retain what will matter later, and record structure with \
inject_knowledge_graph, in the words that describe_store showed."""

_TIDY_UP = """\
Tidy up the knowledge graph{about}. {which}

Look first, and change nothing while you do:
1. describe_store: types and relation types that mean the same in other words, and those that only one entity has.
2. list_entities page by page{narrowed}; get_entity for what is suspicious.
3. For each that looks like another, search_knowledge with its content: two ids for one thing, or two that contradict \
each other.
4. What was true once and is no longer, what is stale, and what has no relation to anything.

5. reflect with dry_run: memories that say the same, belong below others, or contradict each other.

Then show me a list, each line with the ids, what is wrong and what you would do, and wait until I agree.

When I have agreed:
- What is no longer true is retired with the time of its end, not deleted: the past stays readable.
- Two ids for one thing: merge_entities, into the one that has more relations; then inject what its content should say.
- Words that mean the same: inject the entities again with the word that most have; relations likewise, then delete \
the old ones.
- Memories: reflect with accept and refuse by number, forget for what was never true.
- Delete only what was never true, one at a time, and only what the list named.
- At the end say what was changed, with ids and the last sequence."""


class _Prompt(NamedTuple):
    """A prompt: what it is called, its text, and its arguments with what is said of each."""

    name: str
    title: str
    description: str
    text: str
    arguments: dict[str, str]


_STORE_ARGUMENT = {"store": "Name of the store to use"}
_TOPIC_ARGUMENT = {"topic": "What the work is about"}

_PROMPTS_IN_ORDER = (
    _Prompt(
        "record_and_recall",
        "Record and recall",
        "How to keep what is worth remembering in a knowledge graph, and how to find it again",
        _RECORD_AND_RECALL,
        _STORE_ARGUMENT | _TOPIC_ARGUMENT,
    ),
    _Prompt(
        "begin_session",
        "Begin a session",
        "Find out what is known before the work begins, and say what is open",
        _BEGIN_SESSION,
        _STORE_ARGUMENT | _TOPIC_ARGUMENT,
    ),
    _Prompt(
        "tidy_up",
        "Tidy up",
        "Look for doubles, contradictions and what is out of date, propose what to do, and do it once agreed",
        _TIDY_UP,
        _STORE_ARGUMENT | {"type": "Only entities of this type", "tag": "Only entities with this tag"},
    ),
)

PROMPTS = {prompt.name: prompt for prompt in _PROMPTS_IN_ORDER}

_PROMPTS_RESULT = types.ListPromptsResult(
    prompts=[
        types.Prompt(
            name=prompt.name,
            title=prompt.title,
            description=prompt.description,
            arguments=[
                types.PromptArgument(name=name, description=description, required=False)
                for name, description in prompt.arguments.items()
            ],
        )
        for prompt in _PROMPTS_IN_ORDER
    ]
)


async def list_prompts(_: Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    """All of them."""
    return _PROMPTS_RESULT


async def get_prompt(_: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    """Its text. Raises MCPError for another name."""
    prompt = prompt_named(params.name)
    given = {name: value.strip() for name, value in (params.arguments or {}).items()}
    text = prompt.text.format(about=_about(given), which=_which(given), narrowed=_narrowed(given))
    return types.GetPromptResult(
        description=prompt.description,
        messages=[types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))],
    )


def prompt_named(name: str) -> _Prompt:
    """A prompt. Raises MCPError, which names all, for another name."""
    if name not in PROMPTS:
        raise MCPError(types.INVALID_PARAMS, f"there is no prompt {name[:80]!r}; there are {', '.join(PROMPTS)}")
    return PROMPTS[name]


def _about(given: dict[str, str]) -> str:
    return f" for this: {given['topic']}" if given.get("topic") else ""


def _which(given: dict[str, str]) -> str:
    if given.get("store"):
        return f"The store is {given['store']!r}: pass it as index."
    return "list_stores names the stores; index may be left out when there is a default store."


def _narrowed(given: dict[str, str]) -> str:
    chosen = [f"{name} {given[name]!r}" for name in ("type", "tag") if given.get(name)]
    return f", only those of {' and '.join(chosen)}" if chosen else ""


MAX_COMPLETIONS = 100
"""Names that are given at once."""


def stores_like(graphs: Graphs, start: str) -> list[str]:
    """The stores whose names start so, in order; at most one more than `MAX_COMPLETIONS`."""
    return [name for name in graphs.pool.names() if name.startswith(start)][: MAX_COMPLETIONS + 1]


def ids_like(graph: Graph, start: str) -> list[str]:
    """The ids that start so, in order; at most one more than `MAX_COMPLETIONS`. Raises NotFound for the store."""
    if not _may_begin(start):
        return []
    with graph.lease() as store, store.reading() as rows:
        behind = takewhile(lambda node_id: node_id.startswith(start), rows.ids_behind(start))
        return list(islice(chain([start] if rows.has(start) else [], behind), MAX_COMPLETIONS + 1))


def types_like(graph: Graph, start: str) -> list[str]:
    """The most frequent node types that start so; at most one more than `MAX_COMPLETIONS`. Raises NotFound."""
    return _listed(graph, start, lambda catalog: catalog.types_like(start, MAX_COMPLETIONS + 1))


def tags_like(graph: Graph, start: str) -> list[str]:
    """The tags that start so, the most frequent first; at most one more than `MAX_COMPLETIONS`. Raises NotFound."""
    return _listed(graph, start, lambda catalog: [each.tag for each in catalog.tags(start, MAX_COMPLETIONS + 1)])


def _listed(graph: Graph, start: str, question: Callable[[Catalog], list[str]]) -> list[str]:
    if not _may_begin(start):
        return []
    with graph.lease() as store:
        return store.listing(lambda catalog, _: question(catalog))


def _may_begin(start: str) -> bool:
    """Whether a name can start so at all."""
    try:
        return len(start.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


_STORE_TEMPLATE_VARIABLE = "store"
_STORE_COMPLETERS: dict[str, Callable[[Graph, str], list[str]]] = {
    "id": ids_like,
    "type": types_like,
    "tag": tags_like,
    "topic": tags_like,
}
"""What fits an argument, by its name. What a work is about is what tags name."""
_TEMPLATE_VARIABLES = {
    STORE_TEMPLATE: (_STORE_TEMPLATE_VARIABLE,),
    MEMORY_TEMPLATE: (_STORE_TEMPLATE_VARIABLE,),
    ENTITY_TEMPLATE: (_STORE_TEMPLATE_VARIABLE, "id"),
}


class Completions:
    """What the stores of a caller have for an argument that begins so."""

    def __init__(self, graphs: Graphs, threads: Admission) -> None:
        self._graphs = graphs
        self._threads = threads

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """At most 100 values. None for a store that is not there, or not the caller's. Raises MCPError."""
        name, start = params.argument.name, params.argument.value
        _check_argument(params.ref, name)
        chosen = (params.context.arguments or {}) if params.context else {}
        store = chosen.get(_STORE_TEMPLATE_VARIABLE) or default_store(context) or ""
        with as_protocol_errors(argument=name):
            found = await self._threads.read(lambda: self._like(context, name, store, start))
        more = len(found) > MAX_COMPLETIONS
        total = None if more else len(found)
        return types.CompleteResult(
            completion=types.Completion(values=found[:MAX_COMPLETIONS], total=total, has_more=more)
        )

    def _like(self, context: Context, name: str, store: str, start: str) -> list[str]:
        visit = visit_of(context)
        graphs = self._graphs.seen_by(visit.caller).near_enough()
        if name == _STORE_TEMPLATE_VARIABLE:
            return stores_like(graphs, start)
        try:
            return _STORE_COMPLETERS[name](graphs.graph(store), start) if store else []
        except Hidden as error:
            visit.denied("404", act=context.method, store=error.store)
        except (NotFound, InvalidInput):
            pass  # of a store whose name is still being typed there is nothing
        return []


def _check_argument(ref: types.ResourceTemplateReference | types.PromptReference, name: str) -> None:
    """Raises MCPError for a prompt, a template or an argument that there is not."""
    if isinstance(ref, types.PromptReference):
        known = tuple(prompt_named(ref.name).arguments)
    elif (known := _TEMPLATE_VARIABLES.get(ref.uri, ())) == ():
        templates = ", ".join(_TEMPLATE_VARIABLES)
        raise MCPError(types.INVALID_PARAMS, f"there is no template {ref.uri[:200]!r}; there are {templates}")
    if name not in known:
        raise MCPError(types.INVALID_PARAMS, f"there is no argument {name[:80]!r}; there are {', '.join(known)}")
