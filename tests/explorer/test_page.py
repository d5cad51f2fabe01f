"""The list of stores, the first store, and who may look."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, expect

from tests.cli.running import serving
from tests.explorer.looking import ExplorerBrowser, faults, settled, with_axe
from tests.explorer.stores import chain, edge, library, node
from tests.platform.access.keys import given
from tests.server.http.serving import RunningServer, accepted


def test_a_newcomers_minute_from_nothing_to_a_drawn_graph(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--indexes", "none") as server:
        looking = ExplorerBrowser(browser, server.url)
        page = looking.at(context=with_axe(looking.context()))
        expect(page.get_by_role("heading", name="There are no stores yet.")).to_be_visible()
        assert not faults(page)
        page.get_by_text("From a terminal").click()
        told = page.get_by_role("figure").filter(has_text="curl").locator("pre").inner_text()
        body = told.split("-d '")[1].rstrip("'")
        assert server.url in told
        accepted(httpx.post(f"{server.url}/api/memory/first/inject", content=body, timeout=30))
        page.get_by_role("button", name="Refresh").click()
        page.get_by_role("link", name="first").click()
        settled(page)
        expect(page.get_by_role("listbox", name="Graph of 2 nodes")).to_be_visible()
        page.get_by_role("combobox", name="Search or run").fill("au")
        page.keyboard.press("Enter")
        found = page.get_by_role("region", name="Results")
        expect(found).to_contain_text("Ids that begin with this text")
        expect(found.get_by_role("button", name="austen")).to_be_visible()
        fresh = looking.at()
        settled(fresh)
        assert fresh.url.endswith("#/first"), "the only store of a server on this machine is opened at once"
        looking.close()


def test_files_become_stores(browser: Browser, tmp_path: Path) -> None:
    lines = [node("emma", "book"), node("austen", "author"), edge("austen", "WROTE", "emma")]
    kinds = [{"kind": "node" if "id" in line else "edge", **line} for line in lines]
    (tmp_path / "My books.jsonl").write_text("\n".join(map(json.dumps, kinds)))
    (tmp_path / "books.txt").write_text("")
    with serving(tmp_path / "data", "--indexes", "none") as server:
        looking = ExplorerBrowser(browser, server.url)
        page = looking.at()
        field = page.get_by_label("Choose a file")
        field.last.set_input_files(tmp_path / "books.txt")
        expect(page.get_by_role("alert")).to_contain_text("The explorer imports files that end in .jsonl")
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)
        field.last.set_input_files(tmp_path / "My books.jsonl")
        window = page.get_by_role("dialog", name="Import My books.jsonl")
        expect(window.get_by_label("Store", exact=False)).to_have_value("my-books")
        window.get_by_role("button", name="Import").click()
        expect(page.get_by_role("listbox", name="Graph of 2 nodes")).to_be_visible()
        expect(page.get_by_text("Imported: 2 nodes and 1 edge")).to_be_visible()
        page.get_by_role("link", name="kgserve").click()
        (tmp_path / "half.jsonl").write_text(json.dumps(kinds[0]) + "\nnonsense\n")
        field.last.set_input_files(tmp_path / "half.jsonl")
        window = page.get_by_role("dialog", name="Import half.jsonl")
        window.get_by_role("button", name="Import").click()
        left = window.get_by_role("region", name="Lines that were left out")
        expect(left).to_contain_text("Imported: 1 node and 0 edges. Left out: 1 line.")
        expect(left.get_by_role("listitem")).to_contain_text("Line 2: JSON is malformed")
        left.get_by_role("button", name="Open the store").click()
        expect(page.get_by_role("listbox", name="Graph of 1 node")).to_be_visible()
        looking.close()


def test_stores_are_listed_filtered_and_made(looking: ExplorerBrowser, http: httpx.Client, books: str) -> None:
    page = looking.at("#/")
    table = page.get_by_role("region", name="Stores")
    expect(table.get_by_role("columnheader", name="Last write")).to_be_visible()
    expect(table.get_by_role("row").filter(has=page.get_by_role("link", name=books, exact=True))).to_contain_text("7")
    page.get_by_label("Filter").fill(books)
    page.get_by_label("New store").fill(f"{books}-new")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_text("This store is empty.")).to_be_visible()
    page.get_by_label("Store", exact=True).select_option(books)
    settled(page)
    expect(page.get_by_role("listbox", name="Graph of 5 nodes")).to_be_visible()
    page.get_by_role("link", name="kgserve").click()
    expect(page.get_by_role("heading", name="Stores")).to_be_visible()


def expect_no_writing(page: Page) -> None:
    """Check that neither the help nor the memories offer to write."""
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Shortcuts and help")
    expect(keys).to_contain_text("select the node")
    expect(keys).not_to_contain_text("new node")
    page.keyboard.press("Escape")
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Memories").click()
    memories = page.get_by_role("region", name="Memories", exact=True)
    expect(memories.get_by_role("row", name="Ada likes coffee")).to_be_visible()
    expect(memories.get_by_role("button", name=re.compile("^(Edit|Merge|Forget)"))).to_have_count(0)
    memories.get_by_role("button", name="Ada", exact=True).click()
    expect(memories.get_by_role("button", name="Show in the graph")).to_be_visible()
    expect(memories.get_by_role("button", name="Forget")).to_be_hidden()
    memories.get_by_role("tab", name="Proposals").click()
    expect(memories.get_by_text("Your key may only read")).to_be_visible()


def change_and_forget_key(page: Page, store: str, key: str) -> None:
    """Change the reader's key to the writer's, and forget that."""
    page.get_by_role("button", name="reader · read only").click()
    window = page.get_by_role("dialog", name="Your access")
    expect(window).to_contain_text(store)
    expect(window).not_to_contain_text("requires")
    window.get_by_label("Key", exact=True).fill(key)
    window.get_by_role("button", name="Use this key").click()
    page.get_by_role("button", name="writer · can edit").click()
    window.get_by_role("button", name="Forget the key").click()


def test_a_key_is_asked_for_kept_for_the_tab_and_forgotten(
    browser: Browser, keyed: RunningServer, admin: httpx.Client, store: str, api: str
) -> None:
    library(admin, api)
    about_ada = {"content": "Ada likes coffee", "entity_names": ["Ada"]}
    accepted(admin.post("/api/memories", params={"store": store}, json=about_ada), 201)
    looking = ExplorerBrowser(browser, keyed.url)
    looking.refusals = {401, 403}
    page = looking.at()
    page.get_by_label("Key", exact=True).fill("kgs_wrong")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_text("This key is not valid.")).to_be_visible()
    page.get_by_label("Key", exact=True).fill(given(keyed.data, "read", [store], name="reader"))
    page.get_by_role("button", name="Use this key").click()
    page.get_by_role("link", name=store).wait_for()
    expect(page.get_by_role("button", name="Load an example")).to_have_count(0)
    page.get_by_role("link", name=store).click()
    settled(page)
    assert "kgs_" not in page.url
    page.get_by_role("listbox").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("region", name="Details").get_by_role("heading").first).to_be_visible()
    expect(page.get_by_role("button", name="Edit")).to_be_hidden()
    page.get_by_role("button", name="Cypher", exact=True).click()
    expect(page.get_by_role("button", name="Run")).to_be_visible()
    expect(page.get_by_role("checkbox", name="may change the store")).to_be_hidden()
    expect_no_writing(page)
    page.get_by_role("button", name="Changes").click()
    expect(page.get_by_role("region", name="Written to the store")).to_contain_text("1 node deleted")
    page.get_by_role("button", name="Statistics").click()
    expect(page.get_by_role("region", name="Last writes")).to_be_visible()
    expect(page.get_by_role("heading", name="Keys")).to_be_hidden()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_text("Only a key with the role admin may change them.")).to_be_visible()
    change_and_forget_key(page, store, given(keyed.data, "write", [store], name="writer"))
    expect(page.get_by_text("This server requires a key.")).to_be_visible()
    assert page.evaluate("[sessionStorage.getItem('kgserve-key'), localStorage.length]") == [None, 0]
    handed = looking.at(f"#/{store}?key={given(keyed.data, 'write', name='handed')}")
    settled(handed)
    expect(handed.get_by_role("button", name="handed · can edit")).to_be_visible()
    assert "kgs_" not in handed.url
    looking.close()


def test_statistics(looking: ExplorerBrowser, books: str) -> None:
    page = looking.graph(books, "?view=stats")
    stats = page.get_by_role("region", name="Statistics")
    expect(stats.get_by_role("table", name="Types (3)")).to_contain_text("book")
    expect(stats.get_by_role("table", name="Indexes")).to_contain_text("keyword")
    expect(stats.get_by_role("img", name="Commits from")).to_be_visible()
    expect(stats.get_by_role("table", name="Views of the journal")).to_contain_text("history")
    # Those that were made most often, whatever others have asked of this server.
    asked = stats.get_by_role("table", name="Requests since the start").get_by_role("row").nth(1)
    expect(asked).to_contain_text(re.compile(r"(GET|POST|PUT|PATCH|DELETE) /.*\d+ ms"))
    expect(stats).to_contain_text("kgserve backup")
    expect(stats).to_contain_text("kgserve keys create --name NAME")
    expect(stats.get_by_role("table", name="Storage")).to_contain_text("Journal")
    expect(stats.get_by_role("img", name="Growth: 7 nodes")).to_be_visible()
    expect(stats.get_by_role("region", name="Last writes").get_by_role("row", name="1 node changed")).to_be_visible()
    expect(stats.get_by_role("region", name="Last writes")).to_contain_text("1 node deleted")
    with page.expect_download() as saved:
        stats.get_by_role("button", name="Save as JSON lines").click()
    assert len(Path(saved.value.path()).read_text().splitlines()) >= 14
    for form, begins in (("PNG", b"\x89PNG"), ("SVG", b"<svg xmlns")):
        with page.expect_download() as saved:
            stats.get_by_role("button", name=f"Save as {form}").click()
        assert Path(saved.value.path()).read_bytes().startswith(begins)
    expect(stats).to_contain_text("up to date")
    matrix = stats.get_by_role("region", name="Types and their relations")
    matrix.get_by_role("button", name="SET_IN from book to place: 3 edges").click()
    answer = page.get_by_role("region", name="Cypher").get_by_role("region", name="Rows of the result")
    expect(answer.get_by_role("row", name="A study of provincial life")).to_contain_text("A country")
    page.get_by_role("button", name="Statistics").click()
    stats.get_by_role("button", name="Show the store at commit 2").click()
    expect(page.get_by_role("listbox", name="Graph of 4 nodes")).to_be_visible()


def test_settings(looking: ExplorerBrowser, http: httpx.Client, books: str, api: str) -> None:
    looking.refusals = {400}
    page = looking.graph(books, "?view=settings")
    form = page.get_by_role("region", name="Settings")
    form.get_by_label("When two callers change the same version").select_option("The last write wins")
    types = form.get_by_label("Allowed types of nodes")
    for each in ("book", "author", "place", "note"):
        types.fill(each)
        types.press("Enter")
    form.get_by_role("button", name="Remove note").click()
    form.get_by_label("Former states").select_option("Keep for some days")
    form.get_by_label("Half-life in days").fill("90")
    form.get_by_label("Type of memory").fill("preference")
    form.get_by_role("button", name="Add").click()
    form.get_by_label("Notes (JSON)").fill("{")
    expect(form.get_by_role("alert")).to_contain_text("Invalid JSON")
    form.get_by_role("button", name="Save").click()
    assert accepted(http.get(api))["conflict_policy"] == "manual"
    page.get_by_role("button", name="Statistics").click()
    assert not page.evaluate("dispatchEvent(new Event('beforeunload', {cancelable: true}))")
    page.get_by_role("button", name="Settings").click()
    expect(form.get_by_label("Notes (JSON)")).to_have_value("{")
    form.get_by_label("Notes (JSON)").fill('{"owner": "library"}')
    form.get_by_label("Half-life in days").fill("0")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_have_text("Half-life in days: must be greater than 0")
    form.get_by_label("Half-life in days").fill("90")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("button", name="Save")).to_be_disabled()
    now = accepted(http.get(api))
    assert (now["conflict_policy"], now["kind_whitelist"]) == ("lww", ["book", "author", "place"])
    assert (now["history"], now["metadata"]) == (90, {"owner": "library"})
    assert (now["memory"]["half_life_days"], now["memory"]["half_life_by_type"]) == (90, {"preference": None})
    form.get_by_label("Half-life in days").fill("")
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("button", name="Save")).to_be_disabled()
    assert accepted(http.get(api))["memory"]["half_life_days"] is None


def test_who_administers_backs_stores_up_where_there_is_a_folder(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    with serving(tmp_path / "data", "--indexes", "none", "--backup-dir", str(tmp_path / "kept")) as server:
        with httpx.Client(base_url=server.url, timeout=30) as http:
            chain(http, "/api/memory/books", 3)
        looking = ExplorerBrowser(browser, server.url)
        looking.refusals = {400, 409}
        page = looking.graph("books", "?view=stats")
        page.get_by_role("button", name="Back up").click()
        window = page.get_by_role("dialog", name="Back up books")
        window.get_by_label("Folder").fill("mine")
        window.get_by_role("button", name="Back up").click()
        expect(window.get_by_role("region", name="Backed up")).to_contain_text("up to commit 1")
        assert (tmp_path / "kept" / "mine").is_dir()
        page.keyboard.press("Escape")
        page.get_by_role("link", name="kgserve").click()
        page.get_by_role("button", name="Back up all stores").click()
        window = page.get_by_role("dialog", name="Back up all stores")
        window.get_by_label("Folder").fill("")
        window.get_by_role("button", name="Back up").click()
        expect(page.get_by_role("alert")).to_contain_text("the backup folder holds other files")
        window.get_by_label("Folder").fill("all")
        window.get_by_role("button", name="Back up").click()
        expect(window.get_by_role("region", name="Backed up")).to_contain_text("books")
        looking.close()


def test_the_api_reference_shows_every_operation_and_tries_one_with_a_key(browser: Browser, tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = given(data, "admin")
    with serving(data, "--indexes", "none") as server:
        bearer = {"authorization": f"Bearer {key}"}
        paths = accepted(httpx.get(f"{server.url}/openapi.json", headers=bearer, timeout=30))["paths"]
        looking = ExplorerBrowser(browser, server.url)
        looking.refusals = {401}
        page = looking.at("docs")
        page.get_by_label("Key").fill(key)
        page.get_by_role("button", name="Use this key").click()
        operations = page.locator(".opblock")
        expect(operations).to_have_count(sum(len(item) for item in paths.values()))
        inject = operations.first
        expect(inject).to_contain_text("/api/memory/{store}/inject")
        inject.locator(".opblock-summary-control").click()
        inject.get_by_role("button", name="Execute").click()
        live = inject.locator(".live-responses-table")
        expect(live).to_contain_text("nodes_created")
        expect(inject.locator(".curl-command")).to_contain_text("$KGSERVE_KEY")
        assert key not in page.content()
        looking.close()
