"""Edges by id, and the ordered edges of one node."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.server.http.serving import accepted, refusal

Json = dict[str, Any]
ODD = ["a~b", "a/b", "a%2Fb", "..", ".", " ", "ü 鱼\U0001f41f", 'q"\\?#&+', "\n\x7f", "a%7Eb", "~", "%"]


def inject(http: httpx.Client, api: str, *ids: str, edges: list[Json]) -> int:
    """Write nodes and edges; return the commit sequence."""
    nodes = [{"id": each, "type": "t"} for each in ids]
    return accepted(http.post(f"{api}/inject", json={"nodes": nodes, "edges": edges}))["sequence"]


def edge(target: str, relation_type: str = "R", source: str = "hub", **more: Any) -> Json:
    return {"from": source, "to": target, "relation_type": relation_type, **more}


def page(http: httpx.Client, api: str, side: str = "outgoing", of: str = "hub", **query: Any) -> Json:
    return accepted(http.get(f"{api}/nodes/{of}/{side}", params=query))


def ends(http: httpx.Client, api: str, side: str = "outgoing", of: str = "hub", **query: Any) -> list[str]:
    """Return the other ends in the order of the page."""
    return [each["to" if side == "outgoing" else "from"] for each in page(http, api, side, of, **query)["edges"]]


@pytest.fixture
def ordered(http: httpx.Client, api: str) -> str:
    """Create a hub with edges in the order of the numbers in their targets' names; written in another order."""
    return fill(http, api)


@pytest.fixture(scope="module")
def shared(http: httpx.Client) -> str:
    """Store for tests that do not write."""
    return fill(http, "/api/memory/edges-of-node")


def fill(http: httpx.Client, api: str) -> str:
    made = {"e1": 3, "e2": None, "e0": -5, "e4": None, "e3": None}
    times = {"e2": "2025-07-15T12:00:00+05:00", "e3": "2025-07-15T08:00:00Z", "e4": "2025-07-15T03:00:00.5-05:00"}
    edges = [edge(name, ordinal=ordinal) for name, ordinal in made.items()]
    for each in edges:
        if each["to"] in times:
            each["attributes"] = {"created_at": times[each["to"]]}
    inject(http, api, "hub", *made, edges=edges)
    return api


@pytest.mark.parametrize("odd", ODD)
def test_an_edge_is_found_and_deleted_by_its_id(http: httpx.Client, odd: str) -> None:
    api = "/api/memory/odd-edges"
    inject(http, api, odd, "z", edges=[edge("z", odd, odd), edge(odd, odd, "z"), edge("z", "R", odd)])
    for key in ((odd, odd, "z"), ("z", odd, odd)):
        id_ = "~".join(quote(part, safe="").replace("~", "%7E") for part in key)
        url = f"{api}/edges/{quote(id_, safe='')}"
        found = accepted(http.get(url))["edge"]
        assert (found["id"], found["from"], found["relation_type"], found["to"]) == (id_, *key)
        assert accepted(http.delete(url))["existed"]
        assert not accepted(http.delete(url))["existed"]
        assert id_ in refusal(http.get(url), 404)["detail"]
    if odd not in {".", ".."}:  # Clients normalize these as path segments.
        assert [each["relation_type"] for each in page(http, api, of=quote(odd, safe=""))["edges"]] == ["R"]


def test_an_edge_has_the_same_id_wherever_it_is_shown(http: httpx.Client, shared: str) -> None:
    shown = {each["to"]: each for each in page(http, shared)["edges"]}
    got = {each["to"]: each for each in accepted(http.get(f"{shared}/nodes/hub"))["outgoing"]}
    assert shown == got
    for each in shown.values():
        assert each["id"] == f"hub~R~{each['to']}"
        assert accepted(http.get(f"{shared}/edges/{each['id']}"))["edge"] == each


@pytest.mark.parametrize(
    "id_",
    [
        "a",
        "a~b",
        "~~",
        "a~~c",
        "a~b~c~d~e",
        "a b~r~c",
        "%2561~r~c",
        "a%257eb~r~c",
        "%25FF~r~c",
        "%25~r~c",
        "+~r~c",
        "ü~r~c",
    ],
)
def test_unknown_edge_ids_are_not_found(http: httpx.Client, shared: str, id_: str) -> None:
    for method in ("GET", "DELETE"):
        document = refusal(http.request(method, f"{shared}/edges/{id_}"), 400)
        assert "source~relation_type~target" in document["detail"]
        assert [error["path"] for error in document["errors"]] == ["id"]
    refusal(http.get(f"{shared}/edges/%FF~R~e1"), 400)
    assert http.get(f"{shared}/edges/hub~R~e1").status_code == 200


def test_edges_are_ordered_by_ordinal_then_age(http: httpx.Client, ordered: str) -> None:
    # e2 was made at 07:00, e3 at 08:00, and e4 half a second later; as texts they would be ordered differently.
    assert ends(http, ordered) == ["e0", "e1", "e2", "e3", "e4"]
    assert [each.get("ordinal") for each in page(http, ordered)["edges"]] == [-5, 3, None, None, None]
    inject(http, ordered, edges=[edge("e4", ordinal=0)])
    assert ends(http, ordered) == ["e0", "e4", "e1", "e2", "e3"]


def test_outgoing_and_incoming_edges(http: httpx.Client, ordered: str) -> None:
    loop = edge("hub", "SELF", ordinal=9)
    inject(http, ordered, edges=[edge("hub", source="e1", ordinal=2), edge("hub", source="e0"), loop])
    assert ends(http, ordered, "incoming") == ["e1", "hub", "e0"]
    assert ends(http, ordered) == ["e0", "e1", "hub", "e2", "e3", "e4"]
    assert ends(http, ordered, "incoming", "e3") == ["hub"]
    assert ends(http, ordered, of="e3") == []


def test_edge_pagination(http: httpx.Client, shared: str) -> None:
    whole = page(http, shared)
    assert whole["next_offset"] is None
    assert page(http, shared, limit=5)["next_offset"] is None
    parts = [page(http, shared, limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [part["next_offset"] for part in parts] == [2, 4, None]
    assert [each for part in parts for each in part["edges"]] == whole["edges"]
    assert page(http, shared, offset=5) == {"edges": [], "next_offset": None}


def test_all_edges_of_a_hub_are_in_order(http: httpx.Client, api: str) -> None:
    names = [f"n{number:04}" for number in range(1203)]
    edges = [edge(name, ordinal=-number) for number, name in enumerate(names)]
    sequence = inject(http, api, "hub", *names, edges=edges)
    first = page(http, api, limit=1000)
    rest = page(http, api, limit=1000, offset=first["next_offset"])
    assert [each["to"] for each in first["edges"] + rest["edges"]] == names[::-1]
    assert rest["next_offset"] is None
    before = accepted(http.get(f"{api}/nodes/hub", params={"as_of": sequence}))
    assert before["outgoing"] == first["edges"], before["edges_truncated"]
    link = edge("elsewhere", ordinal=-1201, to_graph="edges-of-node")
    inject(http, api, edges=[edge("n0001", ordinal=-1204), link])
    node = accepted(http.get(f"{api}/nodes/hub"))
    assert node["outgoing"] == page(http, api, limit=1000)["edges"]
    assert [each["to"] for each in node["outgoing"][:4]] == ["n0001", "n1202", "n1201", "elsewhere"]
    assert node["edges_truncated"]


def test_edges_of_some_kinds(http: httpx.Client, ordered: str) -> None:
    inject(http, ordered, edges=[edge("e3", "S", ordinal=0), edge("e4", "T", ordinal=4)])
    assert ends(http, ordered, kind="S") == ["e3"]
    assert ends(http, ordered, kind=["S", "T"]) == ["e3", "e4"]
    assert ends(http, ordered, kind="s") == []
    assert page(http, ordered, kind="R", limit=1)["next_offset"] == 1
    assert len(ends(http, ordered, kind="")) == 7


def test_edges_as_of_and_valid_at(http: httpx.Client, ordered: str) -> None:
    over, begun = {"valid_to": "2020-01-01T00:00:00Z"}, {"valid_from": "2015-01-01T00:00:00Z"}
    inject(http, ordered, edges=[edge("e3", **over), edge("e0", **begun)])
    last = accepted(http.post(f"{ordered}/nodes/e1/retire", json={"valid_to": "2018-01-01T00:00:00Z"}))["sequence"]
    assert http.delete(f"{ordered}/nodes/e2").status_code == 200
    assert ends(http, ordered) == ends(http, ordered, valid_at="any") == ["e0", "e1", "e3", "e4"]
    assert ends(http, ordered, valid_at="now") == ["e0", "e4"]
    assert ends(http, ordered, valid_at="2014-01-01T00:00:00Z") == ["e1", "e3", "e4"]
    assert ends(http, ordered, valid_at="2019-01-01T00:00:00Z") == ["e0", "e3", "e4"]
    assert ends(http, ordered, as_of="1") == ["e0", "e1", "e2", "e3", "e4"]
    assert ends(http, ordered, as_of=str(last)) == ends(http, ordered, as_of="1")
    assert ends(http, ordered, as_of=str(last), valid_at="2019-01-01T00:00:00Z") == ["e0", "e2", "e3", "e4"]
    assert ends(http, ordered, "incoming", "e1", valid_at="2017-01-01T00:00:00Z") == ["hub"]


def test_edges_of_a_missing_node(http: httpx.Client, ordered: str, store: str) -> None:
    start = f"there is no node 'e1' in store '{store}'"
    for side in ("outgoing", "incoming"):
        document = refusal(http.get(f"{ordered}/nodes/nobody/{side}"), 404)
        assert document["detail"] == f"there is no node 'nobody' in store '{store}'"
    http.post(f"{ordered}/nodes/e1/retire", json={"valid_to": "2018-01-01T00:00:00Z"})
    moments: dict[str, Json] = {
        " as of 0": {"as_of": "0"},
        ", true at now": {"valid_at": "now"},
        " as of 2, true at 2019-01-01T00:00:00Z": {"as_of": "2", "valid_at": "2019-01-01T00:00:00Z"},
    }
    for words, query in moments.items():
        document = refusal(http.get(f"{ordered}/nodes/e1/incoming", params=query), 404)
        assert document["detail"] == start + words


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=1001", "limit=x", "offset=-1", "offset=1000001", "limit=1&limit=2", "edges=1"),
        *("valid_at=then", "valid_at=", "as_of=x", "as_of=-1", f"kind={'x' * 513}", "&".join(["kind=a"] * 101)),
    ],
)
def test_invalid_page_requests_are_refused(http: httpx.Client, shared: str, query: str) -> None:
    name = query.partition("=")[0]
    for side in ("outgoing", "incoming"):
        assert name in refusal(http.get(f"{shared}/nodes/hub/{side}?{query}"), 400)["detail"]
