from __future__ import annotations

import httpx

from tests.cli.running import CommandResult, ServerProcessHandle, kgserve


def load(server: ServerProcessHandle, store: str, versions: int) -> None:
    for number in range(versions):
        body = {"nodes": [{"id": "a", "type": "t", "content": f"{number}"}]}
        httpx.post(f"{server.url}/api/memory/{store}/inject", json=body).raise_for_status()


def prune(server: ServerProcessHandle, store: str, *options: str) -> CommandResult:
    return kgserve("prune-history", store, *options, "--server", server.url)


def states(server: ServerProcessHandle, store: str) -> int:
    answer = httpx.get(f"{server.url}/api/memory/{store}/nodes/a/history").raise_for_status()
    return len(answer.json()["states"])


def test_it_reports_the_number_of_deleted_states(server: ServerProcessHandle) -> None:
    load(server, "some", 5)
    done = prune(server, "some", "--before", "3")
    assert (done.code, done.out) == (0, "some: 2 states deleted; its history is available from sequence 3 on\n")
    assert states(server, "some") == 3
    assert prune(server, "some", "--before", "4").out.startswith("some: 1 state deleted")
    assert prune(server, "some", "--before", "7d").out.startswith("some: 0 states deleted")
    assert prune(server, "some", "--before", "2999-01-01T00:00:00Z").code == 0
    assert states(server, "some") == 1


def test_without_a_moment_the_settings_apply(server: ServerProcessHandle) -> None:
    load(server, "usual", 3)
    done = prune(server, "usual")
    assert (done.code, done.out) == (0, "usual: 0 states deleted; its history is available from the beginning\n")
    assert states(server, "usual") == 3


def test_the_data_folder_selects_the_server(server: ServerProcessHandle) -> None:
    load(server, "named", 2)
    done = kgserve("prune-history", "named", "--before", "2", "--data", server.data)
    assert (done.code, done.out[:22]) == (0, "named: 1 state deleted")


def test_invalid_requests_are_rejected(server: ServerProcessHandle) -> None:
    load(server, "off", 1)
    httpx.patch(f"{server.url}/api/memory/off", json={"history": "none"}).raise_for_status()
    for store, options, words in (
        ("off", (), "turned off"),
        ("no-such-store", (), "no-such-store"),
        ("off", ("--before", "soon"), "turned off"),
    ):
        refused = prune(server, store, *options)
        assert refused.code == 1
        assert words in refused.err
    load(server, "there", 1)
    refused = prune(server, "there", "--before", "soon")
    assert refused.code == 1
    assert "before: must be a sequence" in refused.err
