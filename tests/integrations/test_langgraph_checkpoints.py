"""LangGraphCheckpointSaver against LangGraph's conformance tests, its graphs, and what those tests leave out."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from kgserve.client import Client, Store
from kgserve.integrations import langgraph_checkpoints
from kgserve.integrations.langgraph_checkpoints import LangGraphCheckpointSaver


class Talk(TypedDict):
    turns: Annotated[list[str], operator.add]


def config_of(thread: str, **names: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **names}}


def checkpoint_with(**values: Any) -> Checkpoint:
    return {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, "1")}


@pytest.fixture
def saver(graph: Store) -> LangGraphCheckpointSaver:
    saver = LangGraphCheckpointSaver(graph)
    saver.setup()
    return saver


def test_conformance(client: Client) -> None:
    numbers = count()

    @checkpointer_test(name="kgserve")
    async def savers() -> AsyncGenerator[LangGraphCheckpointSaver]:
        yield LangGraphCheckpointSaver(client.store(f"conformance-{next(numbers)}"))

    report = asyncio.run(validate(savers))
    assert {name: result.failures for name, result in report.results.items() if result.passed is not True} == {}
    assert len(report.results) == 8


def test_a_graph_continues_where_another_program_stopped(saver: LangGraphCheckpointSaver) -> None:
    def ask(state: Talk) -> dict[str, Any]:
        return {"turns": [f"answer: {interrupt('question')}"]}

    builder = StateGraph(Talk)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    config = config_of("talk")
    stopped = builder.compile(checkpointer=saver).invoke({"turns": ["hello"]}, config)
    assert stopped["__interrupt__"][0].value == "question"
    graph = builder.compile(checkpointer=LangGraphCheckpointSaver(saver.store))

    async def resume() -> Any:
        return await graph.ainvoke(Command(resume="tea"), config)

    assert asyncio.run(resume())["turns"] == ["hello", "answer: tea"]
    states = list(graph.get_state_history(config))
    assert [state.values.get("turns", []) for state in states] == [["hello", "answer: tea"], ["hello"], []]
    forked = graph.update_state(states[1].config, {"turns": ["fork"]})
    assert graph.get_state(forked).values["turns"] == ["hello", "fork"]
    assert graph.get_state(states[0].config).values["turns"] == ["hello", "answer: tea"]


def test_values_of_any_size_survive(saver: LangGraphCheckpointSaver) -> None:
    large = bytes(range(256)) * 3000
    assert len(large) > 4 * langgraph_checkpoints.MAX_CHUNK_BYTES
    checkpoint = checkpoint_with(large=large, small={"a": {1, 2}}, none=None)
    kept = saver.put(config_of("t"), checkpoint, {}, checkpoint["channel_versions"])
    saver.put_writes(kept, [("large", large), ("small", 1)], "task")
    found = saver.get_tuple(kept)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"large": large, "small": {"a": {1, 2}}, "none": None}
    assert found.pending_writes == [("task", "large", large), ("task", "small", 1)]
    shorter = {**checkpoint, "channel_values": {"large": b"short"}}
    saver.put(config_of("t"), shorter, {}, {"large": "1"})  # pyright: ignore[reportArgumentType]
    assert saver.get_tuple(kept).checkpoint["channel_values"]["large"] == b"short"  # pyright: ignore[reportOptionalMemberAccess]
    saver.copy_thread("t", "copy")
    copied = saver.get_tuple(config_of("copy"))
    assert copied is not None
    assert copied.pending_writes == found.pending_writes
    assert copied.config.get("configurable", {})["thread_id"] == "copy"
    saver.delete_thread("t")
    assert saver.get_tuple(kept) is None
    assert saver.get_tuple(config_of("copy")) is not None
    saver.delete_thread("copy")
    assert saver.store.count().count == 0


def test_writes_may_arrive_before_their_checkpoint(saver: LangGraphCheckpointSaver) -> None:
    checkpoint = checkpoint_with(a=1)
    config = config_of("t", checkpoint_id=checkpoint["id"])
    saver.put_writes(config, [("a", "late")], "task")
    assert saver.get_tuple(config) is None
    assert list(saver.list(config_of("t"))) == []
    saver.put(config_of("t"), checkpoint, {"run_id": "run"}, {"a": "1"})
    saver.put_writes(config, [("a", "again"), ("b", "new")], "task")
    found = saver.get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("task", "a", "late"), ("task", "b", "new")]
    saver.delete_for_runs(["run"])
    assert saver.get_tuple(config) is None


def test_shared_values_outlive_the_checkpoints_that_wrote_them(saver: LangGraphCheckpointSaver) -> None:
    first, second = checkpoint_with(shared="value"), checkpoint_with(shared="value")
    config = saver.put(config_of("t"), first, {"run_id": "one"}, {"shared": "1"})
    saver.put(config, second, {"run_id": "two"}, {})
    saver.prune(["t"])
    [left] = saver.list(None)
    assert left.checkpoint["id"] == second["id"]
    assert left.checkpoint["channel_values"] == {"shared": "value"}
    with pytest.raises(ValueError, match="'keep_latest' or 'delete'"):
        saver.prune(["t"], strategy="oldest")


def test_pruning_keeps_what_delta_channels_are_rebuilt_from(saver: LangGraphCheckpointSaver) -> None:
    config = config_of("t")
    ids: list[str] = []
    for number in range(4):
        snapshot = {"turns": ["snapshot"]} if number == 1 else {}
        checkpoint = checkpoint_with(**snapshot)
        config = saver.put(config, checkpoint, {"counters_since_delta_snapshot": {"turns": (1, 1)}}, {"turns": "1"})
        ids.append(checkpoint["id"])
    saver.prune(["t"])
    assert [found.checkpoint["id"] for found in saver.list(config_of("t"))] == ids[:0:-1]


def test_nothing_is_there_before_the_first_write(graph: Store) -> None:
    saver = LangGraphCheckpointSaver(graph)
    assert saver.get_tuple(config_of("t")) is None
    assert list(saver.list(None)) == []
    saver.delete_thread("t")
    saver.delete_for_runs(["r"])
    saver.prune(["t"])
    saver.copy_thread("t", "u")


def test_concurrent_puts_and_odd_names(saver: LangGraphCheckpointSaver) -> None:
    thread, namespace = "Zoë/🐈 " * 200, "outer:1|inner:2" * 60
    checkpoints = [checkpoint_with(n=number) for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        for each in checkpoints:
            config = config_of(thread, checkpoint_ns=namespace)
            pool.submit(saver.put, config, each, {}, {"n": "1"})
    found = [each.checkpoint["id"] for each in saver.list(config_of(thread, checkpoint_ns=namespace))]
    assert found == sorted((each["id"] for each in checkpoints), reverse=True)
    assert saver.get_tuple(config_of(thread, checkpoint_ns=namespace)).checkpoint["id"] == found[0]  # pyright: ignore[reportOptionalMemberAccess]
    assert saver.get_tuple(config_of(thread)) is None
