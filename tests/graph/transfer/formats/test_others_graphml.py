from __future__ import annotations

import io
from pathlib import Path

import networkx as nx
import pytest

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.import_export_files import read_stream_as_import_table
from tests.graph.transfer.formats.conversion_helpers import FIXTURES, Row, collect_rows, read

HEAD = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="k" for="node" attr.name="n" attr.type="int"/>\n'


def graphml(text: str) -> tuple[list[Row], list[str]]:
    return collect_rows([read_stream_as_import_table("graphml", io.BytesIO(text.encode()), "x.graphml")])


def node(**fields: object) -> Row:
    return {"kind": "node", **fields}


def edge(source: str, target: str, relation_type: str, **fields: object) -> Row:
    return {"kind": "edge", "from": source, "to": target, "relation_type": relation_type, **fields}


def test_graphml_from_networkx(tmp_path: Path) -> None:
    graph = nx.DiGraph()
    graph.add_node("a", label="Alice", age=41, ratio=0.5, ok=True)
    graph.add_node(2, title="Two")
    graph.add_edge("a", 2, weight=3, since=2019)
    nx.write_graphml(graph, tmp_path / "nx.graphml")
    assert read(tmp_path / "nx.graphml") == (
        [
            node(id="a", type="node", content="Alice", attributes={"age": 41, "ratio": 0.5, "ok": True}),
            node(id="2", type="node", summary="Two", content="", attributes={}),
            edge("a", "2", "RELATED_TO", weight=3.0, attributes={"since": 2019}),
        ],
        [],
    )


def test_graphml_from_igraph() -> None:
    rows, faults = read(FIXTURES / "igraph.graphml")
    assert faults == []
    assert rows[1] == node(id="n1", type="node", content="Bob & Co", attributes={"age": 7.0, "active": False})
    assert rows[3] == edge("n0", "n1", "KNOWS", weight=0.5, attributes={"directed": False})


def test_graphml_from_yed_with_groups_and_labels() -> None:
    assert read(FIXTURES / "yed.graphml") == (
        [
            node(
                id="n0::n0",
                type="node",
                content="Alice\nthe engineer",
                attributes={"url": "https://example.com/?a=1&b=2", "parent": "n0"},
            ),
            node(id="n0", type="node", content="Team A", attributes={"url": ""}),
            node(id="n1", type="node", content="Acme", attributes={}),
            edge("n0::n0", "n1", "works at", attributes={}),
        ],
        [],
    )


def test_graphml_from_gephi_with_defaults_and_non_finite_numbers() -> None:
    rows, faults = read(FIXTURES / "gephi.graphml")
    assert faults == []
    assert rows[0]["content"] == "Valjean"
    assert rows[0]["attributes"] == {"Modularity Class": 1, "size": 100.0, "r": 245, "x": -87.93029}
    assert rows[1]["attributes"] == {"size": "NaN", "Modularity Class": 0}
    assert rows[2] == edge("11", "0", "meets", weight=5.0, attributes={"directed": False})


def test_graphml_from_neo4j() -> None:
    rows, faults = read(FIXTURES / "neo4j.graphml")
    assert faults == []
    keanu = {"name": "Keanu Reeves", "born": 1964}
    assert rows[0] == node(id="n0", type="Person", tags=["Actor"], content="Keanu Reeves", attributes=keanu)
    assert rows[2] == edge("n0", "n1", "ACTED_IN", attributes={"roles": ["Neo"]})


def test_graphml_lists_that_are_no_json_stay_texts() -> None:
    key = '<key id="k" for="node" attr.name="n" attr.type="string" attr.list="string"/>'
    rows, faults = graphml(f'<graphml>{key}<graph><node id="b"><data key="k">[a]</data></node></graph></graphml>')
    assert (rows[0]["attributes"], faults) == ({"n": "[a]"}, [])


def test_graphml_edges_before_nodes_and_faults_with_lines() -> None:
    rows, faults = graphml(
        HEAD + '<graph edgedefault="directed">\n<edge source="a" target="b"/>\n<node id="a"/>\n<edge source="a"/>\n'
        '<node/>\n<node id="b"><data key="k">1x</data></node>\n<node id="c"><data key="?">1</data></node>\n'
        '<hyperedge/>\n<node id="b"/></graph></graphml>'
    )
    assert [each.get("id", "edge") for each in rows] == ["a", "c", "b", "edge"]
    assert sorted(faults) == [
        "x.graphml line 5: has no target",
        "x.graphml line 6: has no id",
        "x.graphml line 7: n is '1x', which is not of type int",
        "x.graphml line 9: a hyperedge joins more than two nodes; it was skipped",
    ]


def test_graphml_empty_numbers_are_null() -> None:
    rows, faults = graphml(
        HEAD + '<graph edgedefault="directed"><node id="b"><data key="k"></data></node></graph></graphml>'
    )
    assert (rows[0]["id"], rows[0]["attributes"], faults) == ("b", {}, [])


LAUGHS = (
    '<?xml version="1.0"?>\n<!DOCTYPE g [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>\n'
    '<graphml><graph><node id="&b;"/></graph></graphml>'
)
EXTERNAL = '<!DOCTYPE g [<!ENTITY x SYSTEM "secrets.txt">]>\n<graphml><graph><node id="&x;"/></graph></graphml>'


DTD = '<!DOCTYPE graphml SYSTEM "http://127.0.0.1:1/graphml.dtd">\n<graphml><graph/></graphml>'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, "x.graphml line 2: entities and external references are refused"),
        (EXTERNAL, "entities and external references are refused"),
        (DTD, "entities and external references are refused"),
        ("<html></html>", "is not GraphML"),
        ('<?xml version="1.0" encoding="klingon"?><graphml/>', "unsupported encoding: unknown encoding: klingon"),
        ("id,type\n1,2\n", "line 1: is not well-formed XML"),
        ('<graphml><graph><node id="a">', "is not well-formed XML"),
        (HEAD + "<a>" * 300, "nested more than 200 deep"),
        ("<graphml><!--" + "x" * (9 << 20), "one tag or comment is over"),
        (
            '<graphml><key id="k" for="node"/><graph><node id="a"><data key="k">' + "x" * (9 << 20),
            "one element is over",
        ),
        ("<graphml>" + "".join(f'<key id="{number}"/>' for number in range(20_001)), "more than 20,000 keys"),
    ],
    ids=["laughs", "external", "dtd", "html", "encoding", "csv", "cut", "deep", "comment", "text", "keys"],
)
def test_invalid_graphml_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        graphml(text)


def test_graphml_undeclared_key_is_text() -> None:
    rows, faults = graphml(
        HEAD + '<graph><node id="a"><data key="colour">red</data><data key="k">7</data><data>free</data></node>'
        '<node id="b"/><edge source="a" target="b"><data key="since">2020</data></edge></graph></graphml>'
    )
    assert faults == []
    assert rows[0]["attributes"] == {"colour": "red", "n": 7, "data": "free"}
    assert rows[2]["attributes"] == {"since": "2020"}


def test_graphml_repeated_key_names_are_kept() -> None:
    rows, faults = graphml(
        HEAD + '<graph><node id="a"><data key="k">7</data><data key="k">8</data><data key="k">7</data></node></graph>'
        "</graphml>"
    )
    assert (rows[0]["attributes"], faults) == ({"n": 7, "n (2)": 8}, [])
