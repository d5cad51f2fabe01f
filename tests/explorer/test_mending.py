"""Editing, retiring and deleting nodes; concurrent editors."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import expect

from tests.explorer.looking import ExplorerBrowser, held
from tests.server.http.serving import accepted


def test_an_edit_is_a_version_based_on_what_was_seen(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    page = looking.graph(books, "?node=emma")
    details = page.get_by_role("region", name="Details")
    details.get_by_role("button", name="Edit").click()
    window = page.get_by_role("form", name="Edit emma")
    window.get_by_role("button", name="Edit as JSON").click()
    window.get_by_label("Attributes").fill("{broken")
    window.get_by_role("button", name="Save").click()
    expect(window.get_by_role("alert")).to_contain_text("Invalid JSON")
    window.get_by_label("Attributes").fill('{"pages": 474}')
    window.get_by_label("Content").fill("Corrected by hand")
    window.get_by_label("Valid from").fill("1815-12-23T00:00:00")
    window.get_by_role("button", name="Save").click()
    expect(details.get_by_role("heading", name="Corrected by hand")).to_be_visible()
    now = accepted(http.get(f"{api}/nodes/emma"))["node"]
    assert (now["content"], now["attributes"], now["tags"]) == ("Corrected by hand", {"pages": 474}, ["genre:novel"])
    assert (now["version"], now["valid_from"]) == (3, "1815-12-23T00:00:00.000000Z")


def test_concurrent_editors_see_both_versions(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    looking.refusals = {409}
    page = looking.graph(books, "?node=persuasion")
    details = page.get_by_role("region", name="Details")
    details.get_by_role("button", name="Edit").click()
    window = page.get_by_role("form", name="Edit persuasion")
    window.get_by_label("Content").fill("Mine")
    theirs = {"id": "persuasion", "type": "book", "content": "Theirs", "based_on_version": 1}
    accepted(http.post(f"{api}/nodes", json=theirs))
    expect(details.get_by_text("Another caller has written version 2.")).to_be_visible()
    window.get_by_role("button", name="Save").click()
    both = page.get_by_role("dialog", name="Two versions of persuasion")
    expect(both.get_by_role("region", name="Version 3")).to_contain_text("Mine")
    both.get_by_role("region", name="Version 2").get_by_role("button", name="Keep version 2").click()
    expect(details.get_by_role("heading", name="Theirs")).to_be_visible()
    now = accepted(http.get(f"{api}/nodes/persuasion"))["node"]
    assert (now["content"], now["version"], now.get("conflicts")) == ("Theirs", 4, None)


def test_the_last_write_keeps_other_changes_and_an_edit_outlives_a_deletion(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    accepted(http.patch(api, json={"conflict_policy": "lww"}))
    page = looking.graph(books, "?node=persuasion")
    details = page.get_by_role("region", name="Details")
    details.get_by_role("button", name="Edit").click()
    window = page.get_by_role("form", name="Edit persuasion")
    window.get_by_label("Content").fill("Mine")
    theirs = {"id": "persuasion", "type": "book", "content": "Theirs", "summary": "Their title"}
    accepted(http.post(f"{api}/nodes", json=theirs))
    expect(details.get_by_text("Saving replaces its values below with yours")).to_be_visible()
    expect(details.get_by_role("region", name="Compare").get_by_role("row", name="Title")).to_have_count(0)
    window.get_by_role("button", name="Save").click()
    expect(details.get_by_role("heading", name="Their title")).to_be_visible()
    row = accepted(http.get(f"{api}/nodes/persuasion"))["node"]
    assert (row["content"], row["summary"], row["version"]) == ("Mine", "Their title", 3)
    details.get_by_role("button", name="Edit").click()
    window.get_by_label("Content").fill("Written again")
    accepted(http.delete(f"{api}/nodes/persuasion"))
    expect(details.get_by_text("Another caller has deleted this node.")).to_be_visible()
    window.get_by_role("button", name="Save").click()
    expect(window).to_be_hidden()
    assert accepted(http.get(f"{api}/nodes/persuasion"))["node"]["content"] == "Written again"


def test_what_was_written_before_events_came_is_seen_as_soon_as_they_do(
    looking: ExplorerBrowser, http: httpx.Client, books: str, api: str
) -> None:
    context = looking.context()
    with held(context, "**/api/events*") as late:
        page = looking.graph(books, "?node=persuasion", context=context)
        page.get_by_role("region", name="Details").get_by_role("button", name="Edit").click()
        expect(page.get_by_role("form", name="Edit persuasion")).to_be_visible()
        accepted(http.post(f"{api}/nodes", json={"id": "persuasion", "type": "book", "content": "Theirs"}))
    assert late
    expect(page.get_by_text("Another caller has written version 2.")).to_be_visible()


@pytest.mark.parametrize("key", ["Escape", "Enter"])
def test_a_dialog_opens_again_as_soon_as_it_was_closed(looking: ExplorerBrowser, books: str, key: str) -> None:
    page = looking.graph(books, "?node=highbury")
    delete = page.get_by_role("region", name="Details").get_by_role("button", name="Delete").first
    delete.click()
    dialog = page.get_by_role("dialog", name="Delete A village near London")
    dialog.get_by_role("button", name="Cancel").focus()
    delete.evaluate(
        "button => button.addEventListener('focus', () => queueMicrotask(() => button.click()), { once: true })"
    )
    page.keyboard.press(key)
    expect(delete).not_to_be_focused()
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(delete).to_be_focused()
    expect(dialog).to_have_count(0)


def test_retiring_and_deleting(looking: ExplorerBrowser, http: httpx.Client, books: str, api: str) -> None:
    page = looking.graph(books, "?node=highbury&valid_at=any")
    details = page.get_by_role("region", name="Details")
    details.get_by_role("button", name="Retire the edge LIES_IN with A country").click()
    expect(details.get_by_text("until", exact=False).first).to_be_visible()
    page.evaluate("address => { location.hash = address }", f"#/{books}?node=highbury")
    details.get_by_role("button", name="Retire", exact=True).last.click()
    shown = page.get_by_role("listbox", name="Graph of 5 nodes")
    expect(shown).to_be_visible()
    page.get_by_role("dialog", name="Retire A village near London").get_by_role("button", name="Retire").click()
    expect(page.get_by_role("listbox", name="Graph of 4 nodes")).to_be_visible()
    expect(details).to_contain_text("no start –")
    details.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Cancel").click()
    expect(details.get_by_role("button", name="Delete")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("dialog", name="Delete A village near London").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Deleted: A village near London")).to_be_visible()
    assert http.get(f"{api}/nodes/highbury").status_code == 404
