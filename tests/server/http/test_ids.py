"""Ids may hold any character that a URL can escape."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

from tests.server.http.serving import accepted, refusal

ODD = [
    "/",
    "a/b",
    "//",
    "..",
    ".",
    "a b",
    "ü",
    "日本",
    "😀",
    "a?b",
    "a#b",
    "100%",
    "%2F",
    "a+b",
    "a;b",
    "a&b=c",
    "'\"`\\",
    "nodes",
]


@pytest.mark.parametrize("name", ODD)
def test_odd_ids_round_trip(http: httpx.Client, api: str, name: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": name, "type": "t"}, {"id": "other", "type": "t"}]}))
    url = f"{api}/nodes/{quote(name, safe='').replace('.', '%2E')}"
    assert accepted(http.get(url))["node"]["id"] == name
    deleted = accepted(http.delete(url))
    assert (deleted["deleted_id"], deleted["existed"]) == (name, True)
    refusal(http.get(url), 404)
    assert [node["id"] for node in accepted(http.get(f"{api}/nodes"))["nodes"]] == ["other"]


def test_an_escaped_slash_stays_in_the_id(http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "a/b", "type": "t"}, {"id": "a", "type": "t"}]}))
    assert accepted(http.delete(f"{api}/nodes/a%2Fb"))["deleted_id"] == "a/b"
    refusal(http.delete(f"{api}/nodes/a/b"), 404)
    assert [node["id"] for node in accepted(http.get(f"{api}/nodes"))["nodes"]] == ["a"]


def test_ids_are_decoded_once(http: httpx.Client, api: str) -> None:
    accepted(http.post(f"{api}/inject", json={"nodes": [{"id": "%2F", "type": "t"}]}))
    assert accepted(http.get(f"{api}/nodes/%252F"))["node"]["id"] == "%2F"


def test_an_id_that_is_not_utf8_is_refused(http: httpx.Client, api: str) -> None:
    assert refusal(http.delete(f"{api}/nodes/%ff%fe"), 400)["errors"][0]["path"] == "id"
