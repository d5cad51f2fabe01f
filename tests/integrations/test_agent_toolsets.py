"""Pydantic AI and the OpenAI Agents SDK use the MCP server as a toolset, driven by models without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent as OpenAIAgent
from agents import ModelResponse, RunConfig, Runner, Usage
from agents.mcp import MCPServerStreamableHttp
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import ModelResponse as Reply
from pydantic_ai.models.function import AgentInfo, FunctionModel
from typing_extensions import override

from kgserve.client import Store
from tests.server.http.serving import RunningServer

NODE = {"id": "tea", "type": "drink", "content": "Green tea"}


def test_a_pydantic_ai_agent_writes_and_reads(served: RunningServer, graph: Store) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> Reply:
        returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
        if not returned:
            assert "inject_knowledge_graph" in {tool.name for tool in info.function_tools}
            return Reply(parts=[ToolCallPart("inject_knowledge_graph", {"nodes": [NODE]})])
        return Reply(parts=[TextPart(str(returned[0].content))])

    async def use() -> str:
        async with MCPToolset(f"{served.url}/mcp?store={graph.name}") as kgserve:
            return (await Agent(FunctionModel(answer), toolsets=[kgserve]).run("Remember tea")).output

    assert "1" in asyncio.run(use())
    assert graph.node("tea").node.content == "Green tea"


class ScriptedModel(Model):
    """Model that calls one tool and then answers with what it returned."""

    @override
    async def get_response(self, system_instructions: Any, input: Any, *others: Any, **options: Any) -> ModelResponse:
        output = input[-1].get("output") if isinstance(input, list) else None
        if output is None:
            arguments = '{"nodes": [{"id": "tea", "type": "drink", "content": "Green tea"}]}'
            call = ResponseFunctionToolCall(
                type="function_call", name="inject_knowledge_graph", arguments=arguments, call_id="call"
            )
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        text = ResponseOutputText(type="output_text", text=str(output), annotations=[])
        message = ResponseOutputMessage(
            id="message", type="message", role="assistant", status="completed", content=[text]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    @override
    def stream_response(self, *others: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def test_an_agent_of_the_openai_sdk_writes_and_reads(served: RunningServer, graph: Store) -> None:
    async def use() -> str:
        async with MCPServerStreamableHttp({"url": f"{served.url}/mcp?store={graph.name}"}) as kgserve:
            agent = OpenAIAgent(name="Librarian", instructions="", mcp_servers=[kgserve], model=ScriptedModel())
            done = await Runner.run(agent, "Remember tea", run_config=RunConfig(tracing_disabled=True))
            return str(done.final_output)

    assert "1" in asyncio.run(use())
    assert graph.node("tea").node.content == "Green tea"
