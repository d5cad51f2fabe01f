"""Server instructions and prompts for agents, and completion of arguments."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice, takewhile
from typing import NamedTuple

from mcp import MCPError, types

from kgserve.errors import InvalidInput, NotFound
from kgserve.graph.store_handle import CallerStoreHandles, StoreHandle
from kgserve.platform.access.authentication import HiddenStore
from kgserve.projections.catalog.node_catalog import NodeCatalog
from kgserve.server.admission import AdmissionControl
from kgserve.server.mcp.resource_handlers import ENTITY_TEMPLATE, MEMORY_TEMPLATE, STORE_TEMPLATE, TOOL_TEMPLATE
from kgserve.server.mcp.tool_calls import (
    Context,
    convert_errors_to_mcp,
    get_connection_default_store,
    get_mcp_request_access_context,
)
from kgserve.server.mcp.toolsets import TOOLS
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES

INSTRUCTIONS = """\
Memory across sessions. Before answering about the user, the project or earlier decisions: recall. Store what will \
matter later with retain: decisions with reasons, preferences, facts; one sentence each, no secrets. To correct: \
retain with supersedes set to the old id. What was never true, or the user wants gone: forget.
How things are connected: search_knowledge, then traverse_knowledge_graph; describe_store before writing.
Ids of 8 characters are complete. index names a store other than the default. All tools: resource kgserve://_tools"""

_RECORD_AND_RECALL = """\
Use the kgserve tools as your memory{about}. {which}

Recall, before you answer or change anything:
1. recall with the question in plain words. If the answer is about how things are connected, or few memories match, \
get_context with it, then search_knowledge with two or three other wordings as queries.
2. From matching ids, traverse_knowledge_graph (depth 1 or 2) shows what depends on what; get_entity returns a full \
entity.
3. Cite ids when you rely on what you found. Say so when nothing was found; do not invent.

Retain, when something will matter later (a decision and its reason, a preference, a fact):
- retain it as one sentence that makes sense alone, with the people and things that it is about as entities.
- Check `similar` in the answer: if one is no longer true, retain again with supersedes set to its id.
- reflect at the end of a task: accept correct proposals by number, refuse the rest.
- forget by id what the user wants forgotten, or what was never true; undo restores it.

Record, when things and their relations matter (requirements, ownership, where code lives):
1. describe_store first: reuse the existing types, relation types and id patterns.
2. inject_knowledge_graph with everything that belongs together in one call. An entity has a stable id such as \
req-login or adr-007, a type such as requirement or decision, and as content one or two sentences that make sense \
alone. Relations say how: IMPLEMENTED_BY, DEPENDS_ON, DECIDED_IN.
3. Check edges_skipped in the answer: those ends did not exist.
4. To correct, inject the same id again; an omitted field keeps its value. Delete what was never true with \
delete_graph_relation or delete_graph_entity.
5. If something is no longer true, call retire with valid_to. Set valid_from and valid_to \
when you know since and until when something is true.
6. To rewrite an entity that others also write, get_entity first, then put_node the complete entity with that version \
as based_on_version. A conflict_manual error says what to read and how to resolve the conflict.
7. One thing under two ids: merge_entities.

Look back, when the past matters, or why something changed:
- valid_at (a time): what was true in the world then. Default: what is true now; "any": all.
- as_of (a time, or a sequence): what the store knew then. Combine both on searches, reads, lists and traversals.
- entity_history: the states of one entity and what each changed; revert_to restores one.

Do not record secrets, or facts that the repository itself documents better."""

_BEGIN_SESSION = """\
We begin a work session{about}. First find out what is known. {which}

1. recall the topic of the work in plain words; without a topic, recall decisions, open questions and next steps. If \
nothing matches, say so.
2. describe_store: what else the store contains, and its terms; then get_context with the same question.
3. traverse_knowledge_graph (depth 1) from the two or three most important ids: what they depend on, what replaced \
them, who owns them.
4. Check the state of each finding: an entity that is stale, retired, or in conflict with another version does not \
count as known. entity_history shows what changed and when.

Then summarize in at most ten lines what is known, what is open and what seems out of date, with ids, and ask what to \
do first. Write nothing yet. During the work retain what will matter later, and record structure with \
inject_knowledge_graph, with the terms from describe_store."""

_WHAT_IS_KNOWN = """\
What do you know about {topic}? {which}

1. recall the topic in plain words, then once more with another wording. For a person or thing, recall with its name \
as entity, too.
2. If the answer is about how things are connected: search_knowledge, then traverse_knowledge_graph (depth 1) from the \
ids found.
3. If a memory was superseded and the change matters, get_memory shows its former versions.

Answer in at most ten lines, the most certain first, each with its id in brackets. Say what is uncertain, old or \
contradictory, and what is not known. Use nothing but what the tools returned. Write nothing."""

_END_SESSION = """\
Our session{about} ends. Find out what of it is worth keeping. {which}

Worth keeping: decisions and their reasons, preferences and corrections of the user, facts about the project that are \
written nowhere else, open questions and next steps. Not worth keeping: what the repository or its documentation says, \
steps of the work, guesses, secrets.

1. List the candidates, at most ten, each as one sentence that makes sense alone.
2. recall each of them: drop those that are known. If one changes something known, note the id that it supersedes.
3. Show me the list with those ids and wait for my answer.
4. retain each one that I agree to: with its memory_type, the people and things that it is about as entities, and \
supersedes for the id that it replaces.
5. forget what turned out to be wrong, by id.

At the end report in one line how many memories were created and updated."""

_TIDY_UP = """\
Tidy up the knowledge graph{about}. {which}

Inspect first, without changes:
1. describe_store: types and relation types with the same meaning, and those with only one entity.
2. list_entities page by page{narrowed}; get_entity for suspicious ones.
3. For each possible duplicate, search_knowledge with its content: two ids for one thing, or two that contradict \
each other.
4. Entities that are no longer true, are stale, or have no relations.

5. reflect with dry_run: memories that are duplicates, belong below others, or contradict each other.

Then show me a list, each line with the ids, the problem and your proposed change, and wait until I agree.

When I have agreed:
- Retire what is no longer true with the time of its end; do not delete it: the past stays readable.
- Two ids for one thing: merge_entities, into the one with more relations; then inject the corrected content.
- Types with the same meaning: inject the entities again with the most frequent type; relations likewise, then delete \
the old ones.
- Memories: reflect with accept and refuse by number, forget for what was never true.
- Delete only what was never true, one at a time, and only what the list named.
- At the end report what was changed, with ids and the last sequence."""


class _Prompt(NamedTuple):
    """MCP prompt: name, title, text, and arguments with their descriptions."""

    name: str
    title: str
    description: str
    text: str
    arguments: dict[str, str]


_STORE_ARGUMENT = {"store": "Name of the store to use"}
_TOPIC_ARGUMENT = {"topic": "Topic of the work"}

_PROMPTS_IN_ORDER = (
    _Prompt(
        "record_and_recall",
        "Record and recall",
        "How to store knowledge worth keeping, and how to find it again",
        _RECORD_AND_RECALL,
        _STORE_ARGUMENT | _TOPIC_ARGUMENT,
    ),
    _Prompt(
        "begin_session",
        "Begin a session",
        "Find out what is known and what is open before the work begins",
        _BEGIN_SESSION,
        _STORE_ARGUMENT | _TOPIC_ARGUMENT,
    ),
    _Prompt(
        "what_is_known",
        "What do you know about …",
        "Everything that is remembered about a topic, a person or a thing, with ids",
        _WHAT_IS_KNOWN,
        _STORE_ARGUMENT | _TOPIC_ARGUMENT,
    ),
    _Prompt(
        "end_session",
        "End a session",
        "Find out what of a session is worth keeping, and retain it once agreed",
        _END_SESSION,
        _STORE_ARGUMENT | _TOPIC_ARGUMENT,
    ),
    _Prompt(
        "tidy_up",
        "Tidy up",
        "Find duplicates, contradictions and outdated entries, propose changes, and apply them once agreed",
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
    """Return all prompts."""
    return _PROMPTS_RESULT


async def get_mcp_prompt_text(_: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    """Return the text of a prompt. Raises MCPError for an unknown name."""
    prompt = find_mcp_prompt_definition(params.name)
    given = {name: value.strip() for name, value in (params.arguments or {}).items()}
    text = prompt.text.format(
        about=_about(given),
        topic=given.get("topic") or "the current work",
        which=_which(given),
        narrowed=_narrowed(given),
    )
    return types.GetPromptResult(
        description=prompt.description,
        messages=[types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))],
    )


def find_mcp_prompt_definition(name: str) -> _Prompt:
    """Return a prompt. Raises MCPError, which lists all names, for an unknown name."""
    if name not in PROMPTS:
        raise MCPError(types.INVALID_PARAMS, f"unknown prompt {name[:80]!r}; the prompts are {', '.join(PROMPTS)}")
    return PROMPTS[name]


def _about(given: dict[str, str]) -> str:
    return f" for this: {given['topic']}" if given.get("topic") else ""


def _which(given: dict[str, str]) -> str:
    if given.get("store"):
        return f"The store is {given['store']!r}: pass it as index."
    return "list_stores returns the stores; you may omit index if there is a default store."


def _narrowed(given: dict[str, str]) -> str:
    chosen = [f"{name} {given[name]!r}" for name in ("type", "tag") if given.get(name)]
    return f", only those of {' and '.join(chosen)}" if chosen else ""


MAX_COMPLETIONS = 100
"""Maximum number of completions in one answer."""


def complete_prompt_store_names(graphs: CallerStoreHandles, start: str) -> list[str]:
    """Return the stores whose names start with ``start``, in order; at most `MAX_COMPLETIONS` + 1."""
    return [name for name in graphs.pool.names() if name.startswith(start)][: MAX_COMPLETIONS + 1]


def complete_prompt_node_ids(graph: StoreHandle, start: str) -> list[str]:
    """Return the node ids that start with ``start``, in order; at most `MAX_COMPLETIONS` + 1. Raises NotFound."""
    if not _is_valid_prefix(start):
        return []
    with graph.lease() as store, store.reading() as rows:
        later = takewhile(lambda node_id: node_id.startswith(start), rows.ids_after(start))
        return list(islice(chain([start] if rows.has(start) else [], later), MAX_COMPLETIONS + 1))


def complete_node_types(graph: StoreHandle, start: str) -> list[str]:
    """Return the most frequent node types that start with ``start``; at most `MAX_COMPLETIONS` + 1. Raises NotFound."""
    return _listed(graph, start, lambda catalog: catalog.complete_types(start, MAX_COMPLETIONS + 1))


def complete_tags(graph: StoreHandle, start: str) -> list[str]:
    """Return the most frequent tags that start with ``start``; at most `MAX_COMPLETIONS` + 1. Raises NotFound."""
    return _listed(graph, start, lambda catalog: [each.tag for each in catalog.tags(start, MAX_COMPLETIONS + 1)])


def _listed(graph: StoreHandle, start: str, question: Callable[[NodeCatalog], list[str]]) -> list[str]:
    if not _is_valid_prefix(start):
        return []
    with graph.lease() as store:
        return store.query_catalog(lambda catalog, _: question(catalog))


def _is_valid_prefix(start: str) -> bool:
    """Return whether a name can start with ``start``."""
    try:
        return len(start.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


_STORE_TEMPLATE_VARIABLE = "store"
_TOOL_TEMPLATE_VARIABLE = "tool"
_STORE_COMPLETERS: dict[str, Callable[[StoreHandle, str], list[str]]] = {
    "id": complete_prompt_node_ids,
    "type": complete_node_types,
    "tag": complete_tags,
    "topic": complete_tags,
}
"""Completion functions by argument name. Topics are completed with tags."""
_TEMPLATE_VARIABLES = {
    STORE_TEMPLATE: (_STORE_TEMPLATE_VARIABLE,),
    MEMORY_TEMPLATE: (_STORE_TEMPLATE_VARIABLE,),
    ENTITY_TEMPLATE: (_STORE_TEMPLATE_VARIABLE, "id"),
    TOOL_TEMPLATE: (_TOOL_TEMPLATE_VARIABLE,),
}


class McpArgumentCompleter:
    """Completion of prompt and resource arguments from the caller's stores."""

    def __init__(self, graphs: CallerStoreHandles, threads: AdmissionControl) -> None:
        self._graphs = graphs
        self._threads = threads

    async def complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Return at most 100 completions; none for a store that is missing or not accessible. Raises MCPError."""
        name, start = params.argument.name, params.argument.value
        _check_argument(params.ref, name)
        chosen = (params.context.arguments or {}) if params.context else {}
        store = chosen.get(_STORE_TEMPLATE_VARIABLE) or get_connection_default_store(context) or ""
        with convert_errors_to_mcp(argument=name):
            found = await self._threads.read(lambda: self._like(context, name, store, start))
        more = len(found) > MAX_COMPLETIONS
        total = None if more else len(found)
        return types.CompleteResult(
            completion=types.Completion(values=found[:MAX_COMPLETIONS], total=total, has_more=more)
        )

    def _like(self, context: Context, name: str, store: str, start: str) -> list[str]:
        visit = get_mcp_request_access_context(context)
        graphs = self._graphs.for_caller(visit.caller).allowing_stale_reads()
        if name == _STORE_TEMPLATE_VARIABLE:
            return complete_prompt_store_names(graphs, start)
        if name == _TOOL_TEMPLATE_VARIABLE:
            return [tool for tool in TOOLS if tool.startswith(start)]
        try:
            return _STORE_COMPLETERS[name](graphs.graph(store), start) if store else []
        except HiddenStore as error:
            visit.record_refusal("404", act=context.method, store=error.store)
        except (NotFound, InvalidInput):
            pass  # the name of the store is not complete yet
        return []


def _check_argument(ref: types.ResourceTemplateReference | types.PromptReference, name: str) -> None:
    """Raise MCPError for an unknown prompt, template or argument."""
    if isinstance(ref, types.PromptReference):
        known = tuple(find_mcp_prompt_definition(ref.name).arguments)
    elif (known := _TEMPLATE_VARIABLES.get(ref.uri, ())) == ():
        templates = ", ".join(_TEMPLATE_VARIABLES)
        raise MCPError(types.INVALID_PARAMS, f"unknown template {ref.uri[:200]!r}; the templates are {templates}")
    if name not in known:
        raise MCPError(types.INVALID_PARAMS, f"unknown argument {name[:80]!r}; the arguments are {', '.join(known)}")
