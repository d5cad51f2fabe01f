"""Additional details of memories, and nodes of other stores."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import Dialog, Page, expect

from tests.explorer.looking import ExplorerBrowser, faults, settled, with_axe
from tests.explorer.stores import edge, inject, node
from tests.server.http.serving import accepted

MEMORIES = [
    {"id": "garden", "content": "Gardening at home", "layer": 1},
    {"id": "tomato", "content": "Tomatoes want sun", "layer": 2, "parent_id": "garden", "confidence": 0.8},
    {"id": "snow-1", "content": "Skiing needs snow and skis", "layer": 2},
    {"id": "snow-2", "content": "Skiing on snow needs good skis", "layer": 2},
    {"id": "snow-3", "content": "Skis glide on snow when skiing" + " or not" * 800, "layer": 2},
]

# A model of meaning would have proposed it; tests have none.
RUN = node(
    "reflection-1",
    "reflection",
    attributes={
        "started_at": "2026-01-01T00:00:00.000000Z",
        "threshold": 0.6,
        "cluster_threshold": 0.7,
        "linked": 0,
        "merging": "",
        "proposals": [
            {
                "number": 1,
                "kind": "concept",
                "ids": ["snow-1", "snow-2", "snow-3"],
                "candidates": [],
                "name": "Skiing",
                "differs": "",
                "state": "open",
            }
        ],
    },
)


def test_a_memory_shows_how_sure_it_is_and_where_it_stands(
    looking: ExplorerBrowser, http: httpx.Client, store: str
) -> None:
    accepted(http.post("/api/memories/batch", params={"store": store}, json={"memories": MEMORIES}))
    page = looking.graph(store, "?node=tomato", context=with_axe(looking.context(reduced_motion="reduce")))
    details = page.get_by_role("region", name="Details")
    expect(details.get_by_role("img", name="0.80 now, 0.80 when last used")).to_be_visible()
    expect(details).to_contain_text("2 fact")
    details.get_by_role("button", name="Gardening at home").first.click()
    expect(details.get_by_role("heading", name="Gardening at home")).to_be_visible()
    expect(details.get_by_text("Children", exact=True)).to_be_visible()
    accepted(http.put("/api/memories/tomato", params={"store": store}, json={"parent_id": ""}))
    expect(details.get_by_text("Children", exact=True)).to_be_hidden()
    page.keyboard.press("t")
    expect(page.get_by_role("slider", name="What we knew")).to_be_visible()
    page.keyboard.press("[")
    expect(details.get_by_text("Children", exact=True)).to_be_visible()
    page.keyboard.press("]")
    expect(details.get_by_text("Children", exact=True)).to_be_hidden()
    used = accepted(http.get("/api/memories/tomato", params={"store": store, "touch": False}))["access_count"]
    assert used == 0, "looking is no use of a memory"
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Memories").click()
    memories = page.get_by_role("region", name="Memories")
    listed = memories.get_by_role("region", name="List of memories").get_by_role("row")
    expect(listed).to_have_count(6)
    expect(listed.first).to_contain_text("Created")
    assert len(listed.filter(has_text="Skis glide").inner_text()) < 400
    memories.get_by_label("Confidence").select_option("at least 0.9")
    expect(listed).to_have_count(5)
    memories.get_by_role("button", name="Clear filters").click()
    memories.get_by_label("Search memories").fill("skis")
    expect(listed).to_have_count(4)
    memories.get_by_role("button", name="Clear filters").click()
    memories.get_by_role("button", name="Tomatoes want sun", exact=True).click()
    expect(details.get_by_role("heading", name="Tomatoes want sun")).to_be_visible()
    assert not faults(page)
    memories.get_by_role("tab", name="Numbers").click()
    expect(memories.get_by_role("table", name="Memories by type")).to_contain_text("fact")
    memories.get_by_role("tab", name="Proposals").click()
    inject(http, f"/api/memory/{store}", RUN)
    memories.get_by_role("button", name="Reflect now").click()
    run = memories.get_by_role("region", name="Reflection of ")
    expect(run.get_by_text("New concept")).to_be_visible()
    run.get_by_role("button", name="Accept").first.click()
    expect(run.get_by_text("accepted")).to_be_visible()
    run.get_by_role("button", name="Undo this run").click()
    expect(page.get_by_text("undone")).to_be_attached()


ADA, GRACE = [{"name": name, "entity_type": "person"} for name in ("Ada", "Grace")]
PEOPLE = [
    {"id": "coffee", "content": "Ada likes strong coffee", "entities": [ADA], "tags": ["taste"], "confidence": 0.8},
    {"id": "espresso", "content": "Ada likes strong coffee.", "entities": [ADA]},
    {"id": "team", "content": "Grace leads the compiler team", "entities": [GRACE, ADA]},
]


def remember_people(http: httpx.Client, store: str) -> None:
    memories = [{**memory, "dedup": "off"} for memory in PEOPLE]
    accepted(http.post("/api/memories/batch", params={"store": store}, json={"memories": memories}))
    relation = {"source": "Ada", "target": "Grace", "relation_type": "KNOWS"}
    accepted(http.post("/api/relations", params={"store": store}, json=relation), 201)


def list_memory_ids(http: httpx.Client, store: str) -> set[str]:
    listed = accepted(http.get("/api/memories", params={"store": store}))["memories"]
    return {memory["id"] for memory in listed}


def edit_with_conflict(page: Page, http: httpx.Client, store: str) -> None:
    """Edit a memory that another caller changes meanwhile, and undo it."""
    listed = page.get_by_role("region", name="List of memories")
    listed.get_by_role("button", name="Edit: Grace leads the compiler team").click()
    form = page.get_by_role("dialog", name="Edit memory")
    form.get_by_label("Content", exact=True).fill("Grace leads the linker team")
    form.get_by_label("About, one entity a line").fill("Grace")
    form.get_by_label("Confidence, 0 to 1").fill("0.5")
    assert not faults(page)
    asked: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.keyboard.press("Escape")
    form.get_by_role("button", name="Close").click()
    assert asked == ["Discard what you entered?"] * 2
    theirs = {"content": "Grace leads all teams", "tags": ["boss"]}
    accepted(http.put("/api/memories/team", params={"store": store}, json=theirs))
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("Grace leads all teams")
    assert not faults(page)
    form.get_by_role("button", name="Save").click()
    row = listed.get_by_role("row", name="Grace leads the linker team")
    expect(row).not_to_contain_text("Ada")
    expect(row).to_contain_text("boss")
    expect(row.get_by_role("img", name="0.50 now, 0.50 when last used")).to_be_visible()
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(listed.get_by_role("row", name="Grace leads all teams")).to_contain_text("Ada")
    accepted(http.put("/api/memories/team", params={"store": store}, json={"content": PEOPLE[2]["content"]}))


def filter_by_entity(page: Page) -> None:
    """Filter by an entity that does not exist, and by one that does."""
    listed = page.get_by_role("region", name="List of memories")
    about = page.get_by_label("About")
    about.fill("Nora")
    expect(page.get_by_text("No entity is called “Nora”.")).to_be_visible()
    expect(listed.get_by_role("row")).to_have_count(1)
    about.fill("grace")
    expect(listed.get_by_role("row")).to_have_count(2)
    page.get_by_role("button", name="Clear filters").click()


def test_a_memory_is_edited_merged_and_forgotten_with_undo(
    looking: ExplorerBrowser, http: httpx.Client, store: str
) -> None:
    remember_people(http, store)
    looking.refusals = {404, 409}
    page = looking.graph(store, "?view=memories", context=with_axe(looking.context(reduced_motion="reduce")))
    listed = page.get_by_role("region", name="List of memories")
    toast = page.locator(".toast")
    edit_with_conflict(page, http, store)
    filter_by_entity(page)
    listed.get_by_role("button", name="Merge: Ada likes strong coffee.").click()
    dialog = page.get_by_role("dialog", name="Merge Ada likes strong coffee.")
    dialog.get_by_label("Ada likes strong coffee observation", exact=True).check()
    dialog.get_by_label("both texts, one after the other").check()
    assert not faults(page)
    dialog.get_by_role("button", name="Merge", exact=True).click()
    expect(listed.get_by_role("row")).to_have_count(3)
    assert list_memory_ids(http, store) == {"coffee", "team"}
    toast.get_by_role("button", name="Undo").click()
    expect(listed.get_by_role("row")).to_have_count(4)

    listed.get_by_role("button", name="Forget: Grace leads the compiler team").click()
    dialog = page.get_by_role("dialog", name="Forget Grace leads the compiler team")
    expect(dialog).to_contain_text("2 relations")
    assert not faults(page)
    dialog.get_by_role("button", name="Forget").click()
    expect(listed.get_by_role("row")).to_have_count(3)
    assert list_memory_ids(http, store) == {"coffee", "espresso"}
    page.get_by_label("Status").select_option("forgotten")
    listed.get_by_role("button", name="Restore: Grace leads the compiler team").click()
    page.get_by_role("button", name="Clear filters").click()
    expect(listed.get_by_role("row")).to_have_count(4)
    assert list_memory_ids(http, store) == {"coffee", "espresso", "team"}
    listed.get_by_role("button", name="Grace leads the compiler team", exact=True).click()
    details = page.get_by_role("region", name="Details")
    expect(details.get_by_text("Each use renews it.")).to_be_visible()
    details.get_by_role("heading", name="History").click()
    expect(details.locator(".states > li[data-change]").first).to_be_visible()
    assert not faults(page)
    accepted(http.post("/api/v1/forget", params={"store": store}, json={"entity_id": "espresso"}))
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Changes").click()
    expect(page.get_by_text("No node or edge on the canvas became valid or ended")).to_be_visible()
    written = page.get_by_role("region", name="Written to the store")
    written.get_by_role("row", name="1 memory forgotten, 1 edge withdrawn").get_by_role("button").last.click()
    expect(details).to_contain_text(re.compile(r"Withdrawn\s*forgotten"))
    expect(details.get_by_text("withdrawn", exact=True)).to_be_visible()


def test_an_entity_has_a_page_and_equal_memories_are_merged_when_accepted(
    looking: ExplorerBrowser, http: httpx.Client, store: str
) -> None:
    remember_people(http, store)
    page = looking.graph(
        store, "?view=memories", context=with_axe(looking.context(color_scheme="dark", reduced_motion="reduce"))
    )
    memories = page.get_by_role("region", name="Memories", exact=True)
    memories.get_by_role("tab", name="Entities").click()
    memories.get_by_label("Name begins with").fill("gr")
    expect(memories.get_by_role("row")).to_have_count(2)
    memories.get_by_role("button", name="Grace").click()
    grace = memories.get_by_role("article", name="Grace")
    expect(grace.get_by_role("region", name="Memories about Grace").get_by_role("row")).to_have_count(2)
    assert not faults(page)
    grace.get_by_role("region", name="Relations of Grace").get_by_role("button", name="Ada").click()
    ada = memories.get_by_role("article", name="Ada")
    expect(ada.get_by_role("region", name="Memories about Ada").get_by_role("row")).to_have_count(4)
    ada.get_by_role("button", name="Show in the graph").click()
    details = page.get_by_role("region", name="Details")
    details.get_by_role("button", name="Memories").click()
    expect(ada).to_be_visible()

    memories.get_by_role("tab", name="Proposals").click()
    memories.get_by_role("button", name="Find memories that say the same").click()
    proposal = memories.get_by_role("listitem").filter(has_text="2 memories become one")
    expect(proposal.get_by_role("insertion")).to_contain_text("Ada likes strong coffee")
    assert not faults(page)
    proposal.get_by_role("button", name="Accept").click()
    expect(proposal).to_be_hidden()
    assert len(list_memory_ids(http, store)) == 2
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Undone", exact=True)).to_be_attached()
    assert list_memory_ids(http, store) == {"coffee", "espresso", "team"}


def test_nodes_of_other_stores_are_drawn_apart_and_followed_on_demand(
    looking: ExplorerBrowser, http: httpx.Client, store: str, api: str
) -> None:
    other = f"{store}-far"
    inject(http, f"/api/memory/{other}", node("rfc", "standard", "HTTP semantics"))
    inject(http, api, node("site", "page", "The site"))
    inject(http, api, edge("site", "FOLLOWS", "rfc", to_graph=other))
    page = looking.graph(store, "?ids=site&node=site")
    details = page.get_by_role("region", name="Details")
    expect(details.get_by_role("link", name=f"{other} / rfc")).to_be_visible()
    details.get_by_role("button", name="Expand").click()
    expect(page.get_by_role("listbox", name="Graph of 2 nodes")).to_be_visible()
    settled(page)
    page.keyboard.press("[")
    expect(page.get_by_role("listbox", name="Graph of 1 node")).to_be_visible()
    page.keyboard.press("]")
    expect(page.get_by_role("listbox", name="Graph of 2 nodes")).to_be_visible()
    page.get_by_role("button", name="Table", exact=True).click()
    page.get_by_role("region", name="Table of the graph").get_by_role("button", name=f"{other} / rfc").click()
    expect(details).to_contain_text("HTTP semantics")
    details.get_by_role("link", name=f"Open in {other}").click()
    expect(page.get_by_role("heading", name="HTTP semantics")).to_be_visible()


def test_a_person_is_forgotten_after_a_preview(
    looking: ExplorerBrowser, http: httpx.Client, store: str, api: str
) -> None:
    entities = [{"name": "Quixley", "entity_type": "person"}]
    for content in ("Quixley prefers green tea", "Likes sushi"):
        accepted(http.post(f"/api/v1/retain?store={store}", json={"content": content, "entities": entities}))
    page = looking.graph(store, "?ids=Quixley&node=Quixley")
    details = page.get_by_role("region", name="Details")
    details.get_by_role("button", name="Forget").click()
    dialog = page.get_by_role("dialog", name="Forget Quixley")
    expect(dialog.get_by_role("heading", name="2 memories to forget")).to_be_visible()
    expect(dialog).to_contain_text("Likes sushi")
    dialog.get_by_role("button", name="Forget").click()
    expect(page.get_by_text("Forgotten: Quixley, with 2 memories")).to_be_attached()
    assert http.get(f"{api}/nodes/Quixley").status_code == 404
    assert accepted(http.get("/api/memories", params={"store": store}))["memories"] == []
    page.get_by_role("button", name="Changes").click()
    written = page.get_by_role("region", name="Written to the store")
    expect(written.get_by_role("row", name="3 nodes deleted")).to_contain_text("Quixley prefers green tea")
