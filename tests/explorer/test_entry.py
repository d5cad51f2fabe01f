"""Entering data: new nodes and edges, edits, undo, imports, the sample and its tour; and a key that may only read."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from scripts.sample_graph import TARGET, build_steps, render_sample
from tests.explorer.looking import ExplorerBrowser, faults, settled, with_axe
from tests.explorer.stores import library
from tests.platform.access.keys import given
from tests.server.http.serving import RunningServer, accepted

POINTS = """async keys => {
  const {canvas} = await import('/explorer/panel/canvas.js');
  const {graph} = await import('/explorer/state.js');
  const {left, top} = canvas.shown.element.getBoundingClientRect();
  return keys.map(key => canvas.shown.screen(graph.nodes.get(key))).map(([x, y]) => [x + left, y + top]);
}"""
PASTE = """async text => {
  await import('/explorer/entry/drop.js');
  const clipboardData = new DataTransfer();
  clipboardData.setData('text/plain', text);
  const how = {clipboardData, bubbles: true, composed: true, cancelable: true};
  document.body.dispatchEvent(new ClipboardEvent('paste', how));
}"""
DROP = """async ([name, text]) => {
  await import('/explorer/entry/drop.js');
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  const how = {dataTransfer, bubbles: true, cancelable: true};
  for (const kind of ['dragover', 'drop']) document.body.dispatchEvent(new DragEvent(kind, how));
}"""
PEOPLE = "nr;name;age;since;groups\n1;Ada;36;2020-01-02;a|b\n2;Alan;old;2021-03-04;c\n"
GRAPHML = """<graphml><key id="l" for="node" attr.name="label" attr.type="string"/><graph edgedefault="directed">
  <node id="a"><data key="l">First</data></node><node id="b"/><edge source="a" target="b"/></graph></graphml>"""


def stored(http: httpx.Client, api: str, node_id: str) -> dict[str, Any]:
    return accepted(http.get(f"{api}/nodes/{node_id}", params={"valid_at": "any"}))


def undo(page: Page) -> None:
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Undone")).to_be_visible()


def test_a_person_is_created_linked_and_taken_back(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    looking.refusals = {404}
    page = looking.graph(books, "?valid_at=any", context=with_axe(looking.context(reduced_motion="reduce")))
    page.keyboard.press("n")
    form = page.get_by_role("dialog", name="New node")
    form.get_by_label("Type").fill("author")
    form.get_by_label("Title").fill("Anne Brontë")
    form.get_by_role("textbox", name=re.compile("^Id")).fill("emma")
    form.get_by_label("Tags").fill("poet")
    form.get_by_label("Tags").press("Enter")
    form.get_by_role("button", name="Add an attribute").click()
    form.get_by_role("textbox", name="Name", exact=True).fill("born")
    form.get_by_label("Kind").select_option("number")
    form.get_by_role("textbox", name="Value").fill("1820a")
    assert not faults(page)
    form.get_by_role("button", name="Create").click()
    expect(form.get_by_role("alert")).to_contain_text("born is not a number")
    form.get_by_role("textbox", name="Value").fill("1820")
    form.get_by_label("Valid from").fill("1820-01-17T00:00:00")
    form.get_by_role("button", name="Create").click()
    expect(form.get_by_role("alert")).to_contain_text("exists already")
    form.get_by_role("textbox", name=re.compile("^Id")).fill("anne")
    form.get_by_role("button", name="Create").click()
    expect(page.get_by_role("listbox", name="Graph of 8 nodes")).to_be_visible()
    row = stored(http, api, "anne")["node"]
    assert (row["type"], row["summary"], row["tags"], row["attributes"]) == (
        "author",
        "Anne Brontë",
        ["poet"],
        {"born": 1820},
    )
    assert row["valid_from"] == "1820-01-17T00:00:00.000000Z"
    page.get_by_role("region", name="Details").get_by_role("button", name="New edge").click()
    form = page.get_by_role("dialog", name="New edge")
    expect(form.get_by_label("From", exact=False).first).to_have_value("Anne Brontë")
    expect(form.get_by_label("Relation")).to_be_focused()
    form.get_by_label("Relation").fill("KNEW")
    form.get_by_label("To", exact=False).first.fill("nobody")
    form.get_by_role("button", name="Create").click()
    expect(form.get_by_role("alert")).to_contain_text("no node with the id “nobody”")
    form.get_by_label("To", exact=False).first.fill("George Eliot")
    form.get_by_text("Weight, validity and attributes").click()
    form.get_by_label("Weight").fill("0.5")
    assert not faults(page)
    form.get_by_role("button", name="Create").click()
    expect(page.get_by_text("Created: Anne Brontë KNEW George Eliot")).to_be_visible()
    [edge] = stored(http, api, "anne")["outgoing"]
    assert (edge["to"], edge["relation_type"], edge["weight"]) == ("eliot", "KNEW", 0.5)
    page.locator("#graph").focus()
    page.keyboard.press("Control+z")
    expect(page.get_by_text("Undone")).to_be_visible()
    assert not stored(http, api, "anne")["outgoing"]


def test_a_new_node_is_removed_by_undo_unless_it_changed(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    page = looking.graph(books, "?valid_at=any")
    for node_id in ("kept", "gone"):
        page.keyboard.press("n")
        form = page.get_by_role("dialog", name="New node")
        form.get_by_label("Type").fill("place")
        form.get_by_role("textbox", name=re.compile("^Id")).fill(node_id)
        form.get_by_role("button", name="Create").click()
        expect(page.get_by_text(f"Created: {node_id}")).to_be_visible()
        if node_id == "kept":
            accepted(http.post(f"{api}/nodes", json={"id": "kept", "type": "place", "content": "By another"}))
            page.get_by_role("button", name="Undo").click()
            expect(page.get_by_role("alert")).to_contain_text("was changed again since")
            page.locator("#graph").focus()
    undo(page)
    expect(page.get_by_role("listbox", name="Graph of 8 nodes")).to_be_visible()
    assert accepted(http.post(f"{api}/get", json={"ids": ["kept", "gone"]}))["missing"] == ["gone"]
    page.get_by_role("button", name="true at any time").click()
    page.get_by_label("What was true").select_option("today")
    page.locator("#graph").focus()
    page.keyboard.press("n")
    form = page.get_by_role("dialog", name="New node")
    form.get_by_label("Type").fill("author")
    form.get_by_role("textbox", name=re.compile("^Id")).fill("unborn")
    form.get_by_label("Valid from").fill("2999-01-01T00:00:00")
    form.get_by_role("button", name="Create").click()
    expect(page.get_by_text("Created: unborn. The graph does not show it")).to_be_visible()


@pytest.mark.parametrize("touch", [False, True])
def test_an_edge_is_drawn_from_node_to_node(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str, touch: bool
) -> None:
    page = looking.graph(
        books, "?valid_at=any&ids=austen,eliot", viewport={"width": 390 if touch else 1280, "height": 800}
    )
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("button", name="Draw edges").click()
    expect(page.get_by_text("Drag from one node to another")).to_be_visible()
    [(x, y), (u, v)] = page.evaluate(POINTS, ["austen", "eliot"])
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move((x + u) / 2, (y + v) / 2, steps=4)
    page.mouse.move(u, v, steps=4)
    expect(page.locator(".draft-edge .over")).to_be_attached()
    page.mouse.up()
    form = page.get_by_role("dialog", name="New edge")
    expect(form.get_by_label("To", exact=False).first).to_have_value("George Eliot")
    form.get_by_label("Relation").fill("INSPIRED")
    form.get_by_label("Relation").press("Enter")
    expect(page.get_by_text("Created: Jane Austen INSPIRED George Eliot")).to_be_visible()
    assert [edge["to"] for edge in stored(http, api, "austen")["outgoing"] if edge["relation_type"] == "INSPIRED"]
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_text("Drag from one node to another")).to_be_hidden()


def edit(page: Page, name: str) -> Locator:
    page.get_by_role("region", name="Details").get_by_role("button", name="Edit").click()
    return page.get_by_role("form", name=f"Edit {name}")


def test_an_edit_stays_while_others_are_looked_at_and_is_undone(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    page = looking.graph(books, "?node=emma")
    form = edit(page, "emma")
    form.get_by_label("Title").fill("Emma")
    form.get_by_role("button", name="Edit as JSON").click()
    form.get_by_label("Attributes as JSON").fill('{"pages": [474], "fun": true}')
    form.get_by_role("button", name="Edit as a form").click()
    expect(form.get_by_role("group", name="pages").get_by_label("Kind")).to_have_value("json")
    for node_id in ("austen", "emma"):
        expect(form).to_be_visible(visible=node_id == "austen")
        page.evaluate("async id => { (await import('/explorer/state.js')).look(id); }", node_id)
    expect(form.get_by_label("Title")).to_have_value("Emma")
    form.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved as version 3")).to_be_visible()
    row = stored(http, api, "emma")["node"]
    assert (row["summary"], row["attributes"]) == ("Emma", {"pages": [474], "fun": True})
    undo(page)
    row = stored(http, api, "emma")["node"]
    assert ("summary" in row, row["attributes"], row["content"]) == (False, {}, "A comedy of manners")


def test_integers_that_a_browser_rounds_are_not_written(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    huge = {"id": "emma", "type": "book", "attributes": {"isbn": 9007199254740993}}
    accepted(http.post(f"{api}/nodes", json=huge))
    page = looking.graph(books, "?node=emma")
    form = edit(page, "emma")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("isbn is an integer beyond")
    assert stored(http, api, "emma")["node"]["attributes"] == huge["attributes"]


def test_a_deletion_is_undone_with_its_edges(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    before = stored(http, api, "highbury")
    page = looking.graph(books, "?node=highbury&valid_at=any")
    page.get_by_role("region", name="Details").get_by_role("button", name="Delete").click()
    page.get_by_role("dialog", name="Delete A village").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("listbox", name="Graph of 6 nodes")).to_be_visible()
    undo(page)
    after = stored(http, api, "highbury")
    assert {edge["id"] for edge in after["outgoing"] + after["incoming"]} == {
        "highbury~LIES_IN~england",
        "emma~SET_IN~highbury",
    }
    assert after["node"]["content"] == before["node"]["content"]
    details = page.get_by_role("region", name="Details")
    details.get_by_role("button", name="Retire the edge LIES_IN with A country").click()
    undo(page)
    assert "valid_to" not in stored(http, api, "highbury")["outgoing"][0]


def test_a_conflict_is_merged_field_by_field(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    looking.refusals = {409}
    page = looking.graph(books, "?node=persuasion", context=with_axe(looking.context(reduced_motion="reduce")))
    form = edit(page, "persuasion")
    form.get_by_label("Title").fill("My title")
    theirs = {"id": "persuasion", "type": "book", "content": "Their content", "based_on_version": 1}
    accepted(http.post(f"{api}/nodes", json=theirs))
    side = page.get_by_role("region", name="Compare")
    expect(side.get_by_role("row", name="Title")).to_contain_text("My title")
    expect(side.get_by_role("row", name="Content")).to_contain_text("Their content")
    assert not faults(page)
    form.get_by_role("button", name="Save").click()
    both = page.get_by_role("dialog", name="Two versions of persuasion")
    both.get_by_role("radio", name="Content of version 2").check()
    assert not faults(page)
    both.get_by_role("button", name="Save this choice").click()
    expect(page.get_by_text("Resolved as version 4")).to_be_visible()
    row = stored(http, api, "persuasion")["node"]
    assert (row["summary"], row["content"], row.get("conflicts")) == ("My title", "Their content", None)


def test_pasted_csv_is_previewed_mapped_and_imported(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    page = looking.graph(books, "?valid_at=any", context=with_axe(looking.context(reduced_motion="reduce")))
    page.evaluate(PASTE, PEOPLE)
    window = page.get_by_role("dialog", name="Import pasted text.csv")
    expect(window.get_by_label("Column name becomes")).to_have_value("summary")
    expect(window).to_contain_text("Enter “Type of all rows”")
    expect(window.get_by_role("button", name="Import")).to_be_disabled()
    window.get_by_label("Column nr becomes").select_option("id")
    window.get_by_label("Column age becomes").select_option("number")
    window.get_by_label("Column since becomes").select_option("valid_from")
    window.get_by_label("Column groups becomes").select_option("tags")
    window.get_by_label("Between tags").fill("|")
    window.get_by_label("Type of all rows").fill("person")
    expect(window).to_contain_text("1 node and 0 edges")
    expect(window).to_contain_text("Line 3: age is “old”, which is not a number")
    assert not faults(page)
    window.get_by_label("Column age becomes").select_option("text")
    expect(window).to_contain_text("2 nodes and 0 edges")
    window.get_by_role("button", name="Import").click()
    expect(page.get_by_text("Imported: 2 nodes and 0 edges.")).to_be_visible()
    row = stored(http, api, "1")["node"]
    assert (row["type"], row["summary"], row["tags"], row["attributes"]) == ("person", "Ada", ["a", "b"], {"age": "36"})
    assert row["valid_from"] == "2020-01-02T00:00:00.000000Z"
    page.evaluate(PASTE, "from,to,since\n1,2,2020\n1,9,2021\n")
    window.get_by_label("Relation of all rows").fill("KNOWS")
    expect(window).to_contain_text("0 nodes and 2 edges")
    window.get_by_role("button", name="Import").click()
    left = window.get_by_role("region", name="Lines that were left out")
    expect(left.get_by_role("listitem")).to_contain_text("Line 3: no such node")


def test_dropped_graphml_and_lines_are_previewed(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    page = looking.graph(books, "?valid_at=any")
    page.evaluate(DROP, ["graph.graphml", GRAPHML])
    window = page.get_by_role("dialog", name="Import graph.graphml")
    expect(window).to_contain_text("2 nodes and 1 edge")
    expect(window.get_by_role("region", name="Nodes")).to_contain_text("First")
    window.get_by_role("button", name="Import").click()
    expect(page.get_by_text("Imported: 2 nodes and 1 edge.")).to_be_visible()
    assert stored(http, api, "a")["outgoing"][0]["to"] == "b"
    rows = [
        {"kind": "node", "id": "emma", "type": "book"},
        {"id": "other", "type": "book"},
        {"kind": "edge", "to": "a"},
    ]
    lines = "\n".join([*map(json.dumps, rows), "nonsense", ""])
    page.evaluate(DROP, ["half.jsonl", lines])
    window = page.get_by_role("dialog", name="Import half.jsonl")
    expect(window).to_contain_text("1 node of these exists in the store and will be updated.")
    expect(window).to_contain_text("1 node and 0 edges")
    for fault in ("Line 2: it needs", "Line 3: it has no from", "Line 4: Invalid JSON"):
        expect(window).to_contain_text(fault)
    page.keyboard.press("Escape")
    page.evaluate(DROP, ["broken.graphml", "<graphml>"])
    expect(page.get_by_role("alert")).to_contain_text("This is not GraphML")
    page.get_by_label("Paste JSON lines").fill(json.dumps(rows[0]))
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("dialog", name="Import pasted text.jsonl")).to_contain_text("1 node and 0 edges")


def test_a_key_that_may_only_read_is_refused_in_plain_words(
    browser: Browser, keyed: RunningServer, admin: httpx.Client, store: str, api: str
) -> None:
    library(admin, api)
    looking = ExplorerBrowser(browser, keyed.url)
    page = looking.at(f"#/{store}?valid_at=any&node=emma&key={given(keyed.data, 'read', [store], name='reader')}")
    settled(page)
    expect(page.get_by_role("region", name="Details")).to_contain_text("A comedy of manners")
    for name in ("Add", "Edit", "New edge", "Delete"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    page.locator("#graph").focus()
    page.keyboard.press("n")
    page.keyboard.press("e")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("go to the graph")
    expect(page.get_by_role("dialog")).not_to_contain_text("new node")
    page.keyboard.press("Escape")
    page.evaluate(PASTE, PEOPLE)
    expect(page.get_by_role("alert")).to_contain_text("Your key may only read")
    page.get_by_role("combobox", name="Search or run").fill("new node")
    expect(page.get_by_role("option", name="Search for")).to_be_visible()
    expect(page.get_by_role("option", name=re.compile("New node"))).to_have_count(0)
    looking.close()


def test_nothing_is_entered_while_an_earlier_time_is_shown(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?valid_at=any&as_of=2&node=emma")
    expect(page.get_by_role("button", name="Add", exact=True)).to_have_count(0)
    page.evaluate(PASTE, PEOPLE)
    expect(page.get_by_role("alert")).to_contain_text("Go back to now")


def test_the_sample_is_what_its_script_writes_and_small() -> None:
    assert TARGET.read_bytes() == render_sample(), "run `python -m scripts.sample_graph`"
    assert len(render_sample()) < 100_000
    assert sum("memories" in step for step in build_steps()) == 2


@pytest.mark.parametrize("width", [1280, 390])
def test_the_sample_is_loaded_and_its_tour_can_be_skipped(
    looking: ExplorerBrowser, http: httpx.Client, width: int
) -> None:
    context = with_axe(looking.context(viewport={"width": width, "height": 800}, reduced_motion="reduce"))
    page = looking.at("#/", context)
    page.get_by_role("button", name="Load an example").click()
    tour = page.get_by_role("dialog", name="Tour")
    expect(tour).to_contain_text("1 of 4")
    settled(page)
    name = page.url.split("#/")[1].split("?")[0]
    about = accepted(http.get(f"/api/memory/{name}/stats"))
    assert {"person", "application", "requirement", "decision", "fact"} <= set(about["types"])
    assert about["sequence"] >= 10
    analytics = accepted(http.get("/api/analytics/overview", params={"store": name}))
    assert analytics["total_memories"] == 12
    assert analytics["ended"] == {"superseded": 2}
    for step in ("2 of 4", "3 of 4", "4 of 4"):
        assert not faults(page)
        tour.get_by_role("button", name="Next").click()
        expect(tour).to_contain_text(step)
        box = tour.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    tour.get_by_role("button", name="Back").click()
    tour.get_by_role("button", name="Skip the tour").click()
    expect(tour).to_be_hidden()
    expect(page.locator("#graph")).to_be_focused()
    page.get_by_role("combobox", name="Search or run").fill("tour")
    page.get_by_role("option", name="Take the tour").click()
    expect(tour).to_be_visible()
    page.keyboard.press("Escape")
    expect(tour).to_be_hidden()
    page.get_by_role("combobox", name="Search or run").fill("tour")
    page.get_by_role("option", name="Take the tour").click()
    expect(tour).to_be_visible()
    page.get_by_role("button", name="Changes").click()
    expect(tour).to_be_hidden()
    page.get_by_role("link", name="kgserve").click()
    page.get_by_role("button", name="Load an example").click()
    window = page.get_by_role("dialog", name="Load an example")
    expect(window.get_by_role("button", name="Load another example")).to_be_visible()
    window.get_by_role("link", name="Open it").click()
    settled(page)
    assert page.url.split("#/")[1].split("?")[0] == name
    page.close()  # It would ask for the store that is gone.
    accepted(http.delete(f"/api/memory/{name}", params={"confirm": name}))
