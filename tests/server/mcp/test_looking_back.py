from __future__ import annotations

from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import Mode, call, refusal, text_of


def test_search_as_of_a_time(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    fox = {"id": "fox", "type": "animal", "content": "a fox in the mill", "valid_to": "2020-01-01T00:00:00Z"}
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=[fox])
    call(server.url, mode, "delete_graph_entity", index=store, id="fox")
    query = {"query": "mill", "mode": "keyword"}
    for tool, arguments in (
        ("search_knowledge", query),
        ("search_batch", {"queries": [query]}),
        ("get_context", {"query": "mill"}),
    ):
        then = call(server.url, mode, tool, index=store, as_of=1, valid_at="any", **arguments)
        assert "a fox in the mill" in text_of(then), tool
        in_2020 = {"as_of": "1", "valid_at": "2020-01-01T00:00:00Z"}
        for elsewhere in ({"as_of": "2", "valid_at": "any"}, {"as_of": "1"}, in_2020):
            nothing = call(server.url, mode, tool, index=store, **elsewhere, **arguments)
            assert "a fox in the mill" not in text_of(nothing), tool
    assert "as_of" in refusal(server.url, mode, "search_knowledge", index=store, as_of="yesterday", **query)
