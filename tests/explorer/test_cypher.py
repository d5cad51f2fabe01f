"""The pane for statements: results as graph, table, JSON and CSV; errors where they are; writing when it is let."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.explorer.looking import ExplorerBrowser, faults, with_axe


def write(editor: Locator, statement: str) -> None:
    """Type a statement in the place of what stands there."""
    editor.press("ControlOrMeta+a")
    editor.press("Delete")
    editor.press_sequentially(statement)
    editor.press("Escape")


def test_a_statement_as_table_json_graph_and_csv(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books)
    assert not any("editor.js" in url for url in looking.requests), "the editor is loaded when the pane is opened"
    page.get_by_role("button", name="Cypher", exact=True).click()
    pane = page.get_by_role("region", name="Cypher")
    editor = pane.get_by_role("textbox", name="Statement")
    side = page.get_by_role("complementary", name="Side panel").bounding_box()
    assert side is not None
    assert side["width"] > 500, "the side panel is wider next to the low drawer"
    write(editor, "MATCH (a)-[e:RELATES_TO]->(b) WHERE e.relation_type = 'WROTE' RETURN a, e, b.id ORDER BY b.id")
    pane.get_by_role("button", name="Run").click()
    expect(pane.get_by_role("row", name="Jane Austen Jane Austen –WROTE→ A comedy of manners emma")).to_be_visible()
    expect(pane.get_by_text("3 rows")).to_be_visible()
    pane.get_by_role("tab", name="JSON").click()
    expect(pane.get_by_role("tabpanel")).to_contain_text('"_label": "Entity"')
    pane.get_by_role("tab", name="Graph").click()
    expect(pane.get_by_role("tabpanel")).to_contain_text("are selected on the canvas")
    with page.expect_download() as saved:
        pane.get_by_role("button", name="All rows as CSV").click()
    assert len(Path(saved.value.path()).read_text().strip().splitlines()) == 4
    expect(pane.get_by_label("Earlier statements").get_by_role("option")).to_have_count(2)
    write(editor, "MATCH (a) RETURN count(*)")
    editor.press("Control+Enter")
    expect(pane.get_by_role("tabpanel", name="Table").get_by_role("row", name="7")).to_be_visible()
    pane.get_by_role("checkbox", name="remember statements in this browser").uncheck()
    assert page.evaluate("Object.keys(localStorage)") == ["kgserve-no-statements"]


def test_an_error_is_shown_where_it_is_and_writing_has_to_be_let(looking: ExplorerBrowser, books: str) -> None:
    looking.refusals = {400, 403}
    page = looking.graph(books)
    page.get_by_role("button", name="Cypher", exact=True).click()
    pane = page.get_by_role("region", name="Cypher")
    editor = pane.get_by_role("textbox", name="Statement")
    write(editor, "RETURN 1")
    editor.press("Control+Enter")
    expect(pane.get_by_role("tabpanel")).to_be_visible()
    write(editor, "MATCH (a RETURN a")
    editor.press("Control+Enter")
    expect(pane.get_by_role("alert")).to_contain_text("line 1, column 7")
    expect(pane.get_by_role("alert")).to_be_in_viewport(ratio=1)
    expect(pane.get_by_role("tabpanel")).to_have_count(0)
    for place in ("#/", f"#/{books}"):
        page.evaluate("place => { location.hash = place; }", place)
        expect(pane).to_be_visible(visible=place != "#/")
    expect(editor).to_have_value("MATCH (a RETURN a")
    expect(pane.get_by_role("alert")).to_have_count(0)
    write(editor, "MATCH (a {id: 'emma'}) SET a.content = 'Set by a statement'")
    pane.get_by_role("button", name="Run").click()
    expect(pane.get_by_role("alert")).to_contain_text("Mark “May change the store”")
    pane.get_by_role("checkbox", name="may change the store").check()
    pane.get_by_role("button", name="Run").click()
    expect(pane.get_by_text("nodes updated: 1")).to_be_visible()
    write(editor, "")
    editor.press_sequentially("MAT")
    offered = pane.get_by_role("listbox", name="Completions").get_by_role("option", name="MATCH")
    expect(offered).to_be_visible()
    editor.press("Enter")
    expect(editor).to_have_value("MATCH")
    editor.press_sequentially(" (n)")
    expect(pane.locator(".keyword")).to_have_text("MATCH")
    expect(pane.locator(".pair")).to_have_text(["(", ")"])
    editor.press("ControlOrMeta+a")
    editor.press_sequentially("MATCH (:")
    expect(pane.get_by_role("listbox", name="Completions").get_by_role("option", name="author label")).to_be_visible()
    editor.press_sequentially("aut")
    editor.press("Enter")
    expect(editor).to_have_value("MATCH (:author")
    expect(pane.locator(".label")).to_have_text("author")
    write(editor, "MATCH (n)")
    editor.press("ControlOrMeta+z")
    expect(editor).not_to_have_value("MATCH (n)")


def test_parameters_a_plan_and_saved_statements(looking: ExplorerBrowser, books: str) -> None:
    looking.refusals = {400}
    page = looking.graph(books, context=with_axe(looking.context(reduced_motion="reduce")))
    page.get_by_role("button", name="Cypher", exact=True).click()
    pane = page.get_by_role("region", name="Cypher")
    editor = pane.get_by_role("textbox", name="Statement")
    write(editor, "MATCH (a:author) WHERE a.id = $who RETURN a.id, $many AS many, '$none' AS text")
    group = pane.get_by_role("group", name="Parameters")
    expect(group.get_by_role("textbox")).to_have_count(2)
    group.get_by_label("$who").fill("eliot")
    pane.get_by_role("button", name="Run").click()
    expect(pane.get_by_text("Empty, so null was used: $many.")).to_be_visible()
    group.get_by_label("$many").fill("[1, 2]")
    pane.get_by_role("button", name="Run").click()
    expect(pane.get_by_role("row", name="eliot [1,2] $none")).to_be_visible()
    pane.get_by_role("button", name="Save statement").click()
    dialog = page.get_by_role("dialog", name="Save statement")
    dialog.get_by_label("Name").fill("An author")
    assert not faults(page)
    dialog.get_by_role("button", name="Save").click()
    pane.get_by_role("button", name="Plan").click()
    expect(pane.get_by_role("region", name="Plan").last).to_contain_text(re.compile("SCAN|MATCH", re.IGNORECASE))
    assert not faults(page)
    write(editor, "MATCH (a) RETURN missing")
    pane.get_by_role("button", name="Plan").click()
    expect(editor).to_have_attribute("aria-invalid", "true")
    expect(pane.locator(".wrong")).to_have_text("missing")
    expect(pane.get_by_role("alert")).to_contain_text("missing")
    assert not faults(page)
    editor.press("Control+ArrowUp")
    expect(editor).to_have_value(re.compile(r"WHERE a\.id = \$who"))
    page.reload()
    page.get_by_role("button", name="Cypher", exact=True).click()
    pane.get_by_label("Saved statements").select_option("An author")
    expect(group.get_by_label("$who")).to_have_value("eliot")
    pane.get_by_role("button", name="Save statement").click()
    dialog.get_by_role("button", name="Delete: An author").click()
    expect(pane.get_by_label("Saved statements")).to_be_hidden()


def test_what_is_pasted_is_text_whatever_it_was(looking: ExplorerBrowser, books: str) -> None:
    context = looking.context()
    elsewhere = context.new_page()
    elsewhere.set_content(
        '<p><span style="color: red; position: fixed">MATCH (n)</span> <b onclick="alert(1)">RETURN</b> n.id</p>'
    )
    elsewhere.locator("body").press("ControlOrMeta+a")
    elsewhere.keyboard.press("ControlOrMeta+c")
    page = looking.at(f"#/{books}", context)
    page.get_by_role("button", name="Cypher", exact=True).click()
    editor = page.get_by_role("textbox", name="Statement")
    editor.press("ControlOrMeta+a")
    editor.press("ControlOrMeta+v")
    expect(editor).to_have_value(re.compile(r"^MATCH \(n\)\s*RETURN n\.id\s*$"))
    editor.press("Control+Enter")
    expect(page.get_by_role("tabpanel", name="Table")).to_contain_text("austen")
