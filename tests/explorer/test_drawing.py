"""The drawing of a graph: labels, fans, pins, paths, pictures and links to a view."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.explorer.looking import ExplorerBrowser, faults, settled, with_axe
from tests.explorer.stores import edge, inject, library, node

SEEN = """async () => {
  const {canvas} = await import('/explorer/panel/canvas.js');
  const {renderer, scene, view} = canvas.shown;
  const pen = new OffscreenCanvas(1, 1).getContext('2d');
  const marks = scene.nodes.map((drawn) => ({key: drawn.node.key, ...renderer.at(drawn)}));
  const labels = renderer.placed.map((one) => {
    pen.font = `${one.key ? 12 : 10}px system-ui, sans-serif`;
    return {...one, wide: one.right - one.left >= pen.measureText(one.text).width};
  });
  return {marks, labels, width: renderer.width, height: renderer.height, view,
    pinned: scene.nodes.filter(({node}) => node.pinned).map(({node}) => node.key)};
}"""
Drawing = dict[str, Any]


def look(page: Page) -> Drawing:
    """Return where the marks and labels of the picture are, in pixels."""
    return page.evaluate(SEEN)


def middle(drawing: Drawing, key: str) -> tuple[float, float]:
    """Return where a node is."""
    [mark] = [mark for mark in drawing["marks"] if mark["key"] == key]
    return mark["x"], mark["y"]


def is_over(label: Drawing, mark: Drawing) -> bool:
    """Tell whether a label covers a part of a node. A circle of nine tenths lies within every shape."""
    dx = max(label["left"] - mark["x"], 0, mark["x"] - label["right"])
    dy = max(label["top"] - mark["y"], 0, mark["y"] - label["bottom"])
    return dx * dx + dy * dy < (0.8 * mark["radius"]) ** 2


def is_overlapping(one: Drawing, other: Drawing) -> bool:
    apart = one["right"] <= other["left"] or other["right"] <= one["left"]
    return not (apart or one["bottom"] <= other["top"] or other["bottom"] <= one["top"])


def star(leaves: int) -> list[Drawing]:
    """A hub with leaves of two types, and two nodes beyond it."""
    rows = [node("hub", "service", "The hub of all"), node("gate", "gate"), node("far", "gate")]
    for number in range(leaves):
        kind = "client" if number % 3 else "job"
        rows += [node(f"leaf-{number:03}", kind, f"Leaf {number} with a long name")]
    rows += [edge(f"leaf-{number:03}", "USES", "hub") for number in range(leaves)]
    return [*rows, edge("hub", "OPENS", "gate"), edge("gate", "OPENS", "far"), edge("hub", "KEEPS", "hub")]


def words(count: int) -> list[Drawing]:
    """A tree of words with some cross-references."""
    rows = [node(f"w{number}", ("noun", "verb")[number % 2], f"Word number {number}") for number in range(count)]
    rows += [edge(f"w{number}", "KIND_OF", f"w{number * number % number // 2}") for number in range(1, count)]
    rows += [edge(f"w{number}", "KIND_OF", f"w{(number - 1) // 3}") for number in range(1, count)]
    return rows + [edge(f"w{number}", "PART_OF", f"w{number * 7 % count}") for number in range(3, count, 5)]


def parallel() -> list[Drawing]:
    rows = [node(name, "service", f"The service {name} with quite a long description") for name in "abcd"]
    rows += [edge("a", kind, "b") for kind in ("CALLS", "READS", "WRITES")]
    return [*rows, edge("b", "CALLS", "a"), edge("b", "RETRIES", "b"), edge("c", "CALLS", "d"), edge("d", "CALLS", "a")]


GRAPHS = {
    "parallel": parallel(),
    "words-20": words(20),
    "words-250": words(250),
    "star-300": star(290),
    "star-25": star(25),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("width", [1440, 390])
def test_labels_cover_nothing_and_are_whole(
    looking: ExplorerBrowser, http: httpx.Client, store: str, api: str, name: str, width: int
) -> None:
    inject(http, api, *GRAPHS[name])
    page = looking.graph(store, viewport={"width": width, "height": 850})
    drawing = look(page)
    labels, marks = drawing["labels"], drawing["marks"]
    named = {label["key"] for label in labels if label["key"]}
    assert len(named) >= min(10, 0.6 * len(marks))
    if len(marks) <= 30:
        assert len(named) >= 0.6 * len(marks)
    assert not [(label["text"], mark["key"]) for label in labels for mark in marks if is_over(label, mark)]
    pairs = [(one, other) for i, one in enumerate(labels) for other in labels[:i]]
    assert not [(one["text"], other["text"]) for one, other in pairs if is_overlapping(one, other)]
    assert all(len(label["text"]) <= 24 and label["wide"] for label in labels)
    size = drawing["width"], drawing["height"]
    assert all(label["left"] >= 0 and label["top"] >= 0 for label in labels)
    assert all(label["right"] <= size[0] and label["bottom"] <= size[1] for label in labels)


def test_a_hub_is_a_fan_with_counts_that_moves_with_it(
    looking: ExplorerBrowser, http: httpx.Client, store: str, api: str
) -> None:
    inject(http, api, *star(60))
    page = looking.graph(store)
    before = look(page)
    assert {"40 client", "20 job"} <= {label["text"] for label in before["labels"]}
    box = page.locator("canvas").bounding_box()
    assert box
    x, y = middle(before, "hub")
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.mouse.down()
    page.mouse.move(box["x"] + x + 30, box["y"] + y + 20, steps=3)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"pins=hub\."))
    after = look(page)
    assert after["pinned"] == ["hub"]
    for key in ("hub", "leaf-000", "leaf-059"):
        assert middle(after, key) == pytest.approx((middle(before, key)[0] + 30, middle(before, key)[1] + 20), abs=2)
    assert middle(after, "far") == pytest.approx(middle(before, "far"), abs=1)


def test_a_link_shows_the_very_picture(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?valid_at=any")
    page.get_by_role("button", name="Zoom in").click()
    page.locator("#graph").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("p")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("h")
    expect(page.get_by_role("button", name="Show 1 hidden node")).to_be_visible()
    page.get_by_role("button", name="Share and save").click()
    page.get_by_role("button", name="Copy a link to this picture").click()
    expect(page).to_have_url(re.compile(r"places=.*pins=.*hidden=.*camera="))
    before = look(page)
    again = looking.at(page.url.split("/", 3)[3])
    settled(again)
    after = look(again)
    assert after["pinned"] == before["pinned"]
    keys = {mark["key"] for mark in before["marks"]}
    assert keys == {mark["key"] for mark in after["marks"]}
    assert len(keys) == 6
    for key in keys:
        assert middle(after, key) == pytest.approx(middle(before, key), abs=2)
    again.get_by_role("button", name="Show 1 hidden node").click()
    expect(again.get_by_role("listbox", name="Graph of 7 nodes")).to_be_visible()


def test_a_path_brings_nodes_that_are_not_on_the_canvas(
    looking: ExplorerBrowser, http: httpx.Client, store: str, api: str
) -> None:
    library(http, api)
    inject(http, api, node("alone", "island"))
    page = looking.graph(store, "?ids=austen,england,alone&valid_at=any")
    page.evaluate("""async () => {
      const {selected} = await import('/explorer/state.js');
      selected.value = new Set(['austen', 'england']);
    }""")
    chosen = page.get_by_role("toolbar", name="Selection")
    expect(chosen).to_contain_text("2 selected")
    chosen.get_by_role("button", name="Path between the two").click()
    expect(page.get_by_text("A path of 2 steps")).to_be_visible()
    expect(page.get_by_role("listbox", name="Graph of 4 nodes")).to_be_visible()
    chosen.get_by_role("button", name="Pin").click()
    expect(chosen.get_by_role("button", name="Unpin")).to_be_visible()
    page.evaluate("""async () => {
      const {selected} = await import('/explorer/state.js');
      selected.value = new Set(['austen', 'alone']);
    }""")
    chosen.get_by_role("button", name="Path between the two").click()
    expect(page.get_by_text("No path connects the two")).to_be_visible()
    chosen.get_by_role("button", name="Hide").click()
    expect(page.get_by_role("listbox", name="Graph of 2 nodes")).to_be_visible()


def test_pictures_are_saved(looking: ExplorerBrowser, http: httpx.Client, store: str, api: str) -> None:
    inject(http, api, *star(30), node("tagged", "gate", "<b> & \u0001"))
    page = looking.graph(store, context=with_axe(looking.context()))
    page.get_by_role("region", name="Types").get_by_role("heading", name="Types").click()
    page.get_by_role("button", name="Colour and shape of gate").click()
    page.get_by_role("button", name="Share and save").click()
    expect(page.get_by_role("button", name="violet")).to_be_visible()
    assert not faults(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Save as PNG")).to_be_hidden()
    for form, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg ")):
        page.get_by_role("button", name="Share and save").click()
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Save as {form}").click()
        content = saved.value.path().read_bytes()
        assert content.startswith(start)
    picture = ET.fromstring(content)  # noqa: S314 (the page made it)
    texts = {each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"The hub of all", "<b> & \ufffd", "20 client", "10 job"} <= texts
    assert not re.search(rb"NaN|undefined|Infinity", content)
