"""What agents are told: the server's instructions, and a prompt that teaches recording and recalling."""

from __future__ import annotations

from typing import Any

from mcp import MCPError, types
from mcp.server.context import ServerRequestContext

Context = ServerRequestContext[Any, Any]

INSTRUCTIONS = """\
kgserve keeps knowledge graphs: stores of entities (id, type, content, attributes) and typed, weighted relations.
Recall first: get_context with the question, or search_knowledge; then traverse_knowledge_graph or get_entity from an \
id that was found.
Before writing to a store read describe_store, and reuse its types, relation types and ways of making ids.
Record with inject_knowledge_graph: stable ids, one fact per entity, relations as VERBS_IN_CAPITALS. Sending the same \
again is harmless. The sequence it answers, given as at_least to a search, makes that search find what was written.
What was true and is no longer: retire_entity or retire_relation, not delete. To change what others write, too: \
get_entity, then put_node with its version as based_on_version. Every state is kept: entity_history tells them, as_of \
reads what the store knew at a time, valid_at what was true in the world at a time.
`index` is the name of the store; with a default store it may be left out."""

RECORD_AND_RECALL = "record_and_recall"

_PROMPTS = types.ListPromptsResult(
    prompts=[
        types.Prompt(
            name=RECORD_AND_RECALL,
            title="Record and recall",
            description="How to keep what is worth remembering in a knowledge graph, and how to find it again",
            arguments=[
                types.PromptArgument(name="store", description="Name of the store to use", required=False),
                types.PromptArgument(name="topic", description="What the work is about", required=False),
            ],
        )
    ]
)

_TEXT = """\
Use the kgserve tools as your memory{about}. {which}

Recall, before you answer or change anything:
1. get_context with the question in plain words. If little comes back, search_batch with two or three other wordings.
2. From the ids that fit, traverse_knowledge_graph (depth 1 or 2) shows what depends on what; get_entity gives one \
entity whole.
3. Cite ids when you rely on what you found. Say so when nothing was found; do not invent.

Record, when something will matter later (decisions and their reasons, requirements, who owns what, where code lives):
1. describe_store first: reuse the types, relation types and id patterns that are there.
2. inject_knowledge_graph with everything that belongs together in one call. An entity has a stable id such as \
req-login or adr-007, a type such as requirement or decision, and as content one or two sentences that make sense \
alone. Relations say how: IMPLEMENTED_BY, DEPENDS_ON, DECIDED_IN.
3. Look at edges_skipped in the answer: those ends did not exist.
4. To correct, inject the same id again; a field that is left out keeps its value. What was never true, \
delete_graph_relation or delete_graph_entity removes.
5. What was true and is no longer, retire: retire_entity or retire_relation with valid_to. Set valid_from and valid_to \
when you know since and until when something is true.
6. To rewrite an entity that others write, too, get_entity first, then put_node the whole of it with that version as \
based_on_version. A conflict_manual error says what to read and how to settle it.
7. To find it right away, pass the answer's sequence as at_least.

Look back, when it matters what was so, or why it changed:
- valid_at (a time): what was true in the world then. Without it what is true now is found, with "any" all.
- as_of (a time, or a sequence): what the store knew then. Both go together, on searches, reads, lists and walks.
- entity_history: the states of one entity and what each changed; revert_entity goes back to one.

Do not record secrets, or what the repository itself already says better."""


async def list_prompts(_: Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    """The one prompt."""
    return _PROMPTS


async def get_prompt(_: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    """Its text. Raises MCPError for another name."""
    if params.name != RECORD_AND_RECALL:
        raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name[:80]!r}; there is {RECORD_AND_RECALL}")
    given = params.arguments or {}
    store, topic = given.get("store", "").strip(), given.get("topic", "").strip()
    which = (
        f"The store is {store!r}: pass it as index."
        if store
        else "list_stores names the stores; index may be left out when there is a default store."
    )
    text = _TEXT.format(about=f" for this: {topic}" if topic else "", which=which)
    return types.GetPromptResult(
        description="How to record and recall with kgserve",
        messages=[types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))],
    )
