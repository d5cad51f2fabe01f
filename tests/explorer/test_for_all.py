"""For everybody: without a mouse, on a phone, in the dark, with still pictures; and with texts that mean harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cli.running import serving
from tests.explorer.looking import ExplorerBrowser, faults, settled, with_axe
from tests.explorer.states import SIZE, SIZES, visit_states
from tests.explorer.stores import edge, inject, node

HARM = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066 <b>bold</b>",
    "a\x00b & \ufffe ${7*7} {{7*7}}",
    "' onmouseover='alert(1)",
]


def violations(page: Page, state: str, turn: int) -> list[str]:
    """Return what is wrong with a state at two of the widths, which ``turn`` chooses.

    axe looks for all violations in the light theme and for those of contrast in the dark one; nothing may lie outside.
    """
    before, found = page.viewport_size, list[str]()
    checks: list[tuple[Literal["light", "dark"], list[str]]] = [("light", []), ("dark", ["color-contrast"])]
    for number, (theme, rules) in enumerate(checks, turn):
        size = SIZES[number % len(SIZES)]
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=theme)
        wrong = faults(page, *rules)
        if page.evaluate("document.documentElement.scrollWidth") > size["width"]:
            wrong.append("wider than the window")
        found += [f"{state}, {size['width']} px, {theme}: {each}" for each in wrong]
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(before or SIZE)
    return found


def visit_panels(page: Page) -> Iterator[str]:
    """Yield the name of each part of the page that is shown, of those that no other state shows."""
    for view in ("Table", "Graph"):
        page.get_by_role("button", name=view, exact=True).click()
        yield view
    page.keyboard.press("t")
    page.get_by_role("button", name="Compare").click()
    page.keyboard.press("t")
    page.get_by_role("slider", name="What we knew").wait_for()
    yield "time and comparison"
    page.get_by_role("button", name="Stop comparing").click()
    page.keyboard.press("t")
    page.keyboard.press("Control+k")
    page.keyboard.type("comedy")
    page.get_by_role("option", name="A comedy of manners book").wait_for()
    yield "command bar"
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Results")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Details").click()
    page.get_by_role("region", name="Details").get_by_role("button", name="Edit").click()
    page.get_by_role("form", name="Edit emma").wait_for()
    yield "edit"
    page.get_by_role("button", name="Cancel").click()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Shortcuts and help").wait_for()
    yield "help"
    page.keyboard.press("Escape")
    page.get_by_role("link", name="kgserve").click()
    page.get_by_role("heading", name="Stores").wait_for()
    yield "stores"


def test_axe_finds_nothing_on_any_panel(looking: ExplorerBrowser, books: str) -> None:
    context = with_axe(looking.context(reduced_motion="reduce"))  # Colours change at once.
    page = looking.at(f"#/{books}?valid_at=any&node=emma&q=novel", context)
    settled(page)
    page.get_by_role("tab", name="Results").click()
    expect(page.get_by_role("region", name="Results")).to_be_visible()
    wrong = violations(page, "results", 0)
    page.get_by_role("tab", name="Details").click()
    for turn, panel in enumerate(visit_panels(page), 1):
        wrong += violations(page, panel, turn)
    assert not wrong, "\n".join(wrong)


def test_axe_finds_nothing_in_any_state_that_pictures_are_taken_of(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--indexes", "words") as server:
        looking = ExplorerBrowser(browser, server.url)
        looking.refusals = {404}
        context = with_axe(looking.context(viewport=SIZE, reduced_motion="reduce"))
        with httpx.Client(base_url=server.url, timeout=60) as http:
            states = enumerate(visit_states(looking, http, context))
            wrong = [fault for turn, (state, page) in states for fault in violations(page, state, turn)]
        assert not wrong, "\n".join(wrong)
        looking.close()


def test_a_fact_and_what_surrounds_it_are_found_without_a_mouse(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?valid_at=any")
    page.keyboard.press("/")
    page.keyboard.type("comedy")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Results").get_by_role("listitem").first).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.locator(".hit:focus").count():
            break
    page.keyboard.press("Enter")
    details = page.get_by_role("region", name="Details")
    expect(details.get_by_role("heading", name="A comedy of manners")).to_be_visible()
    page.keyboard.press("g")
    option = page.get_by_role("option", name="A comedy of manners, book, 2 edges here")
    expect(option).to_be_attached()
    expect(option).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Space")
    expect(option).to_have_attribute("aria-selected", "false")
    met = {details.get_by_role("heading").first.inner_text()}
    for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
        met.add(page.locator("#graph-focus").inner_text().split(",")[0])
    assert len(met) > 1
    for key in "+-0":
        page.keyboard.press(key)
    page.keyboard.press("h")
    expect(page.get_by_role("listbox", name="Graph of 6 nodes")).to_be_visible()
    page.keyboard.press("H")
    expect(page.get_by_role("listbox", name="Graph of 7 nodes")).to_be_visible()
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Shortcuts and help")
    expect(keys).to_contain_text("expand or collapse the node")
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    page.keyboard.press("c")
    expect(page.get_by_role("textbox", name="Statement")).to_be_visible()


def test_details_that_open_do_not_take_the_focus_from_where_it_moved_meanwhile(
    looking: ExplorerBrowser, books: str
) -> None:
    page = looking.graph(books, "?valid_at=any")
    hit = page.locator(".hit").first
    for element, focused in ((None, "H2"), ("graph", "DIV")):
        page.get_by_role("combobox", name="Search or run").fill("comedy")
        page.keyboard.press("Enter")
        hit.focus()
        assert focused == hit.evaluate(
            """async (hit, moved) => {
                hit.click();
                if (moved) document.getElementById(moved).focus();
                await new Promise((done) => setTimeout(done, 100));
                return document.activeElement.tagName;
            }""",
            element,
        )


@pytest.mark.parametrize("width", [390, 320])
def test_on_a_phone_there_is_one_column_and_nothing_lies_outside(
    looking: ExplorerBrowser, books: str, width: int
) -> None:
    page = looking.graph(books, "?valid_at=any", viewport={"width": width, "height": 800}, has_touch=True)
    for part in ("View", "Details"):
        page.get_by_role("button", name=part).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_role("button", name="View").click()
    expect(page.locator("canvas")).to_be_visible()
    box = page.locator("canvas").bounding_box()
    assert box is not None
    assert box["height"] >= 300
    page.get_by_role("combobox", name="Search or run").fill("comedy")
    page.keyboard.press("Enter")
    page.get_by_role("region", name="Results").get_by_role("button", name="A comedy of manners").click()
    expect(page.get_by_role("region", name="Details")).to_contain_text("A comedy of manners")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_reduced_motion_stops_all_animation(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, reduced_motion="reduce")
    page.keyboard.press("t")
    expect(page.get_by_role("button", name="Compare")).to_be_visible()
    expect(page.get_by_role("button", name="Play")).to_be_hidden()


def test_texts_that_mean_harm_are_only_texts(
    looking: ExplorerBrowser, http: httpx.Client, store: str, api: str
) -> None:
    ids = [f"{harm}-{number}" for number, harm in enumerate(HARM)]
    nodes = [
        node(each, harm, f"{harm} content", summary=harm, tags=[harm], attributes={harm: {harm: harm}})
        for each, harm in zip(ids, HARM, strict=True)
    ]
    inject(http, api, *nodes, *[edge(one, harm, other) for one, other, harm in zip(ids, ids[1:], HARM, strict=False)])
    inject(http, api, node("long", "text", "x" * (1 << 20)))
    page = looking.graph(store)
    page.get_by_role("button", name="Table", exact=True).click()
    table = page.get_by_role("region", name="Table of the graph")
    for row in range(1, len(HARM) + 2):
        table.get_by_role("row").nth(row).get_by_role("button").first.click()
        expect(page.get_by_role("region", name="Details").get_by_text("Version", exact=True)).to_be_visible()
    page.get_by_role("button", name="Statistics").click()
    expect(page.get_by_role("table", name="Types")).to_contain_text("<img src=x")
    page.get_by_role("button", name="Cypher", exact=True).click()
    expect(page.get_by_role("region", name="Statistics")).to_be_hidden()
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("tabpanel", name="Table")).to_be_visible()
    assert page.locator("main img, main script, main b").count() == 0
    page.get_by_role("button", name="Statistics").click()
    expect(page.get_by_role("region", name="Cypher")).to_be_hidden()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as SVG").click()
    drawn = page.evaluate(
        "text => new DOMParser().parseFromString(text, 'image/svg+xml').querySelector('parsererror, script, img')",
        saved.value.path().read_text(),
    )
    assert drawn is None
