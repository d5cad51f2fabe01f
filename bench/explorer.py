"""The explorer's budgets, measured in a real browser: `python -m bench.explorer`. Needs chromium.

Frames are drawn and read back, so that drawing is really done; without a GPU the processor draws.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
import zlib
from pathlib import Path
from shutil import which
from typing import Any

from playwright.sync_api import Page, sync_playwright

from bench import wordnet
from bench.server import Client, Server

PAGE = Path(__file__).parent.parent / "kgserve" / "server" / "http" / "static" / "explorer"
COMMITS = 10
FRAMES = """async () => {
  const { canvas } = await import('/explorer/panel/canvas.js');
  const shown = canvas.shown, times = [];
  for (let i = 0; i < 120; i++) {
    const begun = performance.now();
    shown.view.x += i < 60 ? 4 : -4;
    shown.draw();
    shown.renderer.context.getImageData(0, 0, 1, 1);
    times.push(performance.now() - begun);
  }
  return times.slice(20).sort((one, other) => one - other);
}"""
SLIDER = """async () => {
  const { asOf } = await import('/explorer/state.js');
  const { canvas } = await import('/explorer/panel/canvas.js');
  const times = [];
  for (let i = 0; i < 30; i++) {
    const begun = performance.now();
    asOf.value = 1 + (i % 9);
    canvas.shown.draw();
    canvas.shown.renderer.context.getImageData(0, 0, 1, 1);
    times.push(performance.now() - begun);
  }
  asOf.value = null;
  return times.sort((one, other) => one - other);
}"""
EXPAND = """async () => {
  const { expand } = await import('/explorer/load.js');
  const begun = performance.now();
  await expand('hub');
  return performance.now() - begun;
}"""


def fill(client: Client, store: str, nodes: int, edges: int) -> None:
    """A graph without a pattern, in ten commits."""
    chance = random.Random(7)
    pairs = {(chance.randrange(nodes), chance.randrange(nodes)) for _ in range(edges)}
    share = nodes // COMMITS
    for part in range(COMMITS):
        most = (part + 1) * share
        rows = [{"id": f"n{i}", "type": f"kind {i % 6}", "content": f"Node {i}"} for i in range(part * share, most)]
        joined = [
            {"from": f"n{a}", "to": f"n{b}", "relation_type": "R"}
            for a, b in pairs
            if max(a, b) // share == part and max(a, b) < most
        ]
        client.call("POST", f"/api/memory/{store}/inject", {"nodes": rows, "edges": joined})


def packed(names: list[Path]) -> float:
    """Kilobytes, compressed one by one."""
    return sum(len(zlib.compress(path.read_bytes(), 6)) for path in names) / 1000


def sizes() -> None:
    """What comes over the wire."""
    linked = (PAGE / "index.html").read_text().split('href="/explorer/')[1:]
    names = [PAGE / "index.html", PAGE / "main.js", *(PAGE / part.partition('"')[0] for part in linked)]
    told("before the first picture, packed", packed(names), 60, "kB")
    pane = ("cypher", "editor", "rows")
    told("editor, when it is opened, packed", packed([PAGE / "panel" / f"{name}.js" for name in pane]), 120, "kB")
    told("all files in the wheel, packed", packed([path for path in PAGE.rglob("*") if path.is_file()]), 150, "kB")


def told(what: str, value: float, budget: float, unit: str) -> None:
    """A line of the table."""
    print(f"{what:44} {value:10.1f} {unit:3} of {budget:7,.1f}{'' if value <= budget else '   over'}")


def opened(page: Page, url: str, store: str) -> tuple[float, float]:
    """Milliseconds until something of a store is drawn, and until it has settled."""
    begun = time.perf_counter()
    page.goto(f"{url}/#/{store}")
    page.locator("canvas[data-drawn]:not([data-drawn='0'])").wait_for()
    first = time.perf_counter() - begun
    page.locator('.canvas[data-settled="true"] canvas[data-drawn]:not([data-drawn="0"])').wait_for()
    return first * 1000, (time.perf_counter() - begun) * 1000


def measure(page: Page, url: str) -> None:
    """All that takes time."""
    page.goto(url)
    page.get_by_role("heading", name="Stores").wait_for()
    paint: Any = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    told("first paint", paint, 300, "ms")
    told("300 nodes drawn and settled", opened(page, url, "small")[1], 1_000, "ms")
    page.goto("about:blank")
    page.goto(f"{url}/#/large?ids=hub")
    page.locator('.canvas[data-settled="true"] canvas[data-drawn="1"]').wait_for()
    told("expansion of a node with 50 neighbours", page.evaluate(EXPAND), 400, "ms")
    page.goto("about:blank")
    opened(page, url, "large")
    before = page.evaluate("performance.now()")
    page.evaluate("""async () => { const { put } = await import('/explorer/load.js');
      await put(Array.from({length: 4950}, (_, i) => `n${i}`)); }""")
    page.locator('canvas[data-drawn^="49"]').wait_for()
    told("5,000 nodes asked for and drawn", page.evaluate("performance.now()") - before, 1_500, "ms")
    page.locator('.canvas[data-settled="true"]').wait_for()
    told("5,000 nodes settled", page.evaluate("performance.now()") - before, 6_000, "ms")
    panned(page, "5,000 nodes")
    slid: list[float] = page.evaluate(SLIDER)
    told("one position of the slider, median", slid[len(slid) // 2], 16, "ms")
    heap: Any = page.evaluate("performance.memory.usedJSHeapSize / 1e6")
    told("heap", heap, 60, "MB")


def panned(page: Page, what: str) -> None:
    """A hundred frames of what is on the canvas."""
    frames: list[float] = page.evaluate(FRAMES)
    told(f"a frame of panning {what}, median", frames[len(frames) // 2], 16.7, "ms")
    told("the same, 95th of 100", frames[int(len(frames) * 0.95)], 33, "ms")


def of_wordnet(page: Page, url: str, client: Client) -> None:
    """As much of WordNet as is drawn, and more than is; first while its history is still taking it in."""
    for when in ("at its import", "later"):
        page.goto("about:blank")
        drawn, settled = opened(page, url, "wordnet")
        told(f"WordNet's first nodes drawn, {when}", drawn, 1_000, "ms")
        told(f"WordNet's first nodes settled, {when}", settled, 1_000, "ms")
        while client.call("GET", "/api/memory/wordnet/stats")["history_lag"]:
            time.sleep(0.5)
    for most in (1_200, 4_800, 5_000):
        begun = time.perf_counter()
        page.get_by_role("button", name="Show more").first.click()
        page.get_by_role("listbox", name=f"Graph of {most:,} nodes").wait_for()
    told("5,000 of WordNet's nodes asked for and drawn", (time.perf_counter() - begun) * 1000, 1_500, "ms")
    page.locator('.canvas[data-settled="true"]').wait_for()
    told("the same settled", (time.perf_counter() - begun) * 1000, 6_000, "ms")
    panned(page, "WordNet")
    before = page.evaluate("performance.now()")
    page.evaluate("""async () => { const { put } = await import('/explorer/load.js');
      await put(Array.from({length: 100000}, (_, i) => `n${i}`)); }""")
    page.get_by_role("alert").filter(has_text="105,000 nodes are more than the 5,000").wait_for()
    told("100,000 asked for: said that they are too many", page.evaluate("performance.now()") - before, 1_000, "ms")


def main() -> int:
    """Print budgets and what was measured."""
    program = which("chromium")
    if program is None:
        print("There is no chromium here; `apt-get install chromium` brings it.", file=sys.stderr)
        return 1
    sizes()
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "data", {"indexes": False}) as server:
        with server.client() as client:
            fill(client, "small", 300, 420)
            fill(client, "large", 5_000, 6_400)
            hub = [{"from": "hub", "to": f"n{i}", "relation_type": "R"} for i in range(50)]
            body = {"nodes": [{"id": "hub", "type": "hub"}], "edges": hub}
            client.call("POST", "/api/memory/large/inject", body)
            client.upload("wordnet", wordnet.lines(wordnet.read(wordnet.folder())))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=options)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            measure(page, f"http://127.0.0.1:{server.port}")
            with server.client() as client:
                of_wordnet(page, f"http://127.0.0.1:{server.port}", client)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
