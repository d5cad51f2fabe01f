"""What writing memories must show: fading, what is merged and what is not, many clients, kills, consolidation."""

from __future__ import annotations

import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bench.measure import Line, Report, Times, clock, times
from bench.memories import stamp
from bench.server import Client, Server

DAY = 86_400.0
LISTS = Path(__file__).parents[1] / "tests" / "platform" / "text" / "likeness"
PLACE = re.compile(r"\{([^{}|]*)\|([^{}]*)\}")
CLIENTS = 32
SENTENCES = 200
KILLS = 20
STORE = "memories"
MEMORIES = f"/api/memories?store={STORE}"
SEARCH, INJECT = f"/api/memory/{STORE}/search", f"/api/memory/{STORE}/inject"


def fading(settings: dict[str, object]) -> Report:
    """What is left of a confidence by age, after a use, and what pruning ends."""
    report = Report("fading, use and pruning of memories of known age")
    ages = {"new": 0, "15 d": 15, "30 d": 30, "60 d": 60, "129 d": 129, "131 d": 131}
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), settings) as server, server.client() as client:
        now = time.time()
        ids = {name: _store(client, f"fact number {age} of {name}", created_at=stamp(now - age * DAY))["id"]
               for name, age in ages.items()}  # fmt: skip
        sure = _store(client, "fairly sure", confidence=0.95)["id"]
        for name, age in ages.items():
            found, due = _get(client, ids[name], touch=False)["effective_confidence"], 0.5 ** (age / 30)
            report.check(f"effective, {name}", f"{found:.4f}, {due:.4f} is due", abs(found - due) <= 0.002)
        report_prune(report, client, ids)
        used = _get(client, ids["15 d"])["confidence"]
        report.check("15 d, once used", f"{used:.4f}, 1 is due", used == 1.0)
        used = _get(client, sure)["confidence"]
        report.check("0.95, once used", f"{used:.4f}", used == 1.0)
    return report


def report_prune(report: Report, client: Client, ids: dict[str, str]) -> None:
    """Prune, and say what went."""
    client.call("POST", f"/api/memories/prune?store={STORE}", {})
    left = {memory["id"] for memory in client.call("GET", f"{MEMORIES}&limit=100")["memories"]}
    gone = sorted(name for name, node_id in ids.items() if node_id not in left)
    report.check("pruned", ", ".join(gone) or "nothing", gone == ["131 d"])


def duplicates(settings: dict[str, object]) -> Report:
    """Pairs that differ in what matters, and pairs that do not, stored one after the other."""
    report = Report("what is merged when it is stored")
    different, same = pairs("different"), pairs("same")
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), settings) as server, server.client() as client:
        merged, told, silent = _merged(client, different), 0, 0
        report.check("differ, merged", f"{len(merged)} of {len(different)}", not merged)
        merged = _merged(client, same)
        told = len(merged)
        report.lines.append(_share("the same, merged", told, len(same), 0.9))
        off = _merged(client, same, dedup="off")
        report.check("the same with dedup off, merged", str(len(off)), not off)
        silent = _unexplained(client, different)
        report.check("near, kept apart and not told why", str(silent), silent == 0)
    return report


def _share(what: str, found: int, of: int, least: float) -> Line:
    return Line(what, f"{found} of {of}", mark=f"at least {least:.0%}", met=found >= least * of)


def _merged(client: Client, some: Sequence[tuple[str, str]], **fields: Any) -> list[tuple[str, str]]:
    """The pairs whose second text was taken in by the first; each pair has a layer of memories of its own."""
    found: list[tuple[str, str]] = []
    for number, pair in enumerate(some):
        kind = f"pair-{number}-{len(fields)}"
        outcomes = [_store(client, text, memory_type=kind, source=kind, **fields) for text in pair]
        if outcomes[1]["id"] == outcomes[0]["id"]:
            found.append(pair)
        client.call("POST", f"/api/memories/delete?store={STORE}", {"memory_types": [kind]})
    return found


def _unexplained(client: Client, some: Sequence[tuple[str, str]]) -> int:
    """How many second texts were told of a near first one without what they differ in."""
    missing = 0
    for one, other in some[:100]:
        _store(client, one)
        told = _store(client, other)["similar"]
        missing += any(not each["differs"] for each in told if each["content"].startswith(one[:50]))
    return missing


def pairs(name: str) -> list[tuple[str, str]]:
    """The pairs of a list: a line each, with {one|other} where its two sentences differ."""
    lines = (LISTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    written = [line for line in lines if line.strip() and not line.startswith("# ")]
    return [(PLACE.sub(r"\1", line), PLACE.sub(r"\2", line)) for line in written]


def at_once(settings: dict[str, object]) -> Report:
    """Many clients that say the same at the same time, left alone and while the server is killed."""
    report = Report(f"{CLIENTS} clients store the same {SENTENCES} sentences")
    sentences = [
        f"Sentence {_word(n)} says that item {_word(n * 7)} is kept in room {_word(n * 3)}" for n in range(SENTENCES)
    ]
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), settings) as server:
        told = _all_say(server.client, sentences)
        with server.client() as client:
            found = all_memories(client)
            used = sum(memory["access_count"] for memory in found)
            report.check("memories", str(len(found)), len(found) == SENTENCES)
            report.check("ids that resolve", f"{len(told)}", told <= {memory["id"] for memory in found})
            due = (CLIENTS - 1) * SENTENCES
            report.check("uses counted", f"{used} of {due}", used == due)
    with tempfile.TemporaryDirectory() as folder:
        _killed(report, Path(folder), settings, sentences)
    return report


def _killed(report: Report, folder: Path, settings: dict[str, object], sentences: list[str]) -> None:
    chance, told = random.Random(5), set[str]()
    running = [Server(folder, settings)]
    lock = threading.Lock()

    def say(number: int) -> None:
        for sentence in sentences[number:] + sentences[:number]:
            while True:
                try:
                    with running[0].client(timeout=20) as client:
                        answer = _store(client, sentence)
                    with lock:
                        told.add(answer["id"])
                    break
                except Exception:  # noqa: BLE001  # the server is down, or was just now: it is said again
                    time.sleep(0.05)

    with ThreadPoolExecutor(CLIENTS) as pool:
        waiting = [pool.submit(say, number * 5) for number in range(CLIENTS)]
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.2, 1.0))
            running[0].kill()
            running[0] = Server(folder, settings)
            running[0].wait_ready()
        for each in waiting:
            each.result()
    with running[0].client() as client:
        found = all_memories(client)
        ids = {memory["id"] for memory in found}
        report.check(f"memories after {KILLS} kills", str(len(found)), len(found) == SENTENCES)
        report.check("acknowledged ids that do not resolve", str(len(told - ids)), told <= ids)
    running[0].stop()


def _all_say(client: Callable[[], Client], sentences: list[str]) -> set[str]:
    told: set[str] = set()
    lock = threading.Lock()

    def say(number: int) -> None:
        with client() as own:
            for sentence in sentences[number:] + sentences[:number]:
                answer = _store(own, sentence)
                with lock:
                    told.add(answer["id"])

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(say, [number * 5 for number in range(CLIENTS)]))
    return told


def pace(settings: dict[str, object]) -> Report:
    """What storing costs beside injecting and embedding, in small and large stores, alone and with many clients."""
    report = Report("storing a memory")
    paces: dict[int, Times] = {}
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), settings) as server, server.client() as client:
        for size in (1_000, 10_000, 100_000):
            _fill(client, size)
            kinds: dict[str, list[float]] = {"store": [], "inject": [], "embed": []}
            for number in range(150):
                text = f"at {size} the {number}th thing is {_word(number * 31 + size)} and {_word(number * 17)}"
                kinds["store"].append(clock(lambda text=text: _store(client, text)))
                node = {"nodes": [{"id": f"n{size}-{number}", "type": "t", "content": f"{text} injected"}]}
                kinds["inject"].append(
                    clock(lambda node=node: client.call("POST", f"/api/memory/{STORE}/inject", node))
                )
                asked = {"query": f"{text} asked", "mode": "semantic", "limit": 1}
                kinds["embed"].append(clock(lambda asked=asked: client.call("POST", SEARCH, asked)))
            took = {kind: times(found) for kind, found in kinds.items()}
            paces[size] = took["store"]
            due = took["inject"].p50 + took["embed"].p50 + 3
            report.within(
                f"store at {size:,}", str(took["store"]), took["store"].p50, due,
                f"inject {took['inject'].p50:.1f} + semantic search {took['embed'].p50:.1f} + 3",
            )  # fmt: skip
        report.compare("100,000 beside 1,000", str(paces[100_000]), str(paces[1_000]),
                       paces[100_000].p50 / paces[1_000].p50, ("≤", 1.3))  # fmt: skip
        one, many = _rate(server, 1, 200), _rate(server, CLIENTS, 1_600)
        report.compare(f"{CLIENTS} clients", f"{many:.0f} a second", f"one: {one:.0f}", many / one, ("≥", 3.0))
    return report


def consolidation(settings: dict[str, object]) -> Report:
    """A dry run, what is then applied, and undone; a plan that is stale; kills in the middle of a run."""
    report = Report("consolidation of 40 clusters of two")
    chance = random.Random(9)
    quiet = {**settings, "memory_consolidation": "off"}
    with tempfile.TemporaryDirectory() as folder:
        running = Server(Path(folder), quiet)
        with running.client() as client:
            for number in range(40):
                one, other, place = _word(number), _word(number * 11), _word(number * 5)
                for text in (f"The {one} of the {other} is in {place}", f"a {one} of {other} is in the {place}!"):
                    _store(client, text, dedup="off", entity_names=[one])
            _wait(client)
            before = _told(client)
            plan = _consolidated(client, dry_run=True)
            done = _consolidated(client, apply={"plan": plan["plan"]})
            report.check("clusters planned, done", f"{plan['clusters_found']}, {done['clusters_found']}",
                         plan["clusters_found"] == done["clusters_found"] > 0)  # fmt: skip
            report.check("as planned", "", plan["clusters"] == done["clusters"])
            client.call("POST", f"/api/memories/consolidations/{done['run']}/undo?store={STORE}", {})
            report.check("after undo", "the export as before", _told(client) == before)
            plan = _consolidated(client, dry_run=True)
            member = plan["clusters"][0]["absorbed"][0]
            client.call("PUT", f"/api/memories/{member}?store={STORE}", {"tags": ["other"]})
            body = msgspec.json.encode({"apply": {"plan": plan["plan"]}})
            stale = client.send("POST", f"/api/memories/consolidate?store={STORE}", body)
            report.check("a stale plan", str(stale.status), stale.status == 409)
        torn = 0
        for _ in range(KILLS):
            with running.client() as client, suppress(Exception):
                runs = threading.Thread(target=_run_to_death, args=(running,))
                runs.start()
                time.sleep(chance.uniform(0.0, 0.12))
                running.kill()
                runs.join()
            running = Server(Path(folder), quiet)
            running.wait_ready()
            with running.client() as client:
                torn += _torn(client)
                for run in client.call("GET", f"/api/memories/consolidations?store={STORE}")["runs"]:
                    if run["state"] in {"done", "interrupted"}:
                        client.call("POST", f"/api/memories/consolidations/{run['id']}/undo?store={STORE}", {})
        report.check(f"clusters torn by {KILLS} kills", str(torn), torn == 0)
        running.stop()
    return report


def _run_to_death(server: Server) -> None:
    with suppress(Exception), server.client(timeout=10) as client:
        _consolidated(client)


def _consolidated(client: Client, **wanted: Any) -> Any:
    return client.call("POST", f"/api/memories/consolidate?store={STORE}", wanted)


def _told(client: Client) -> dict[str, Any]:
    lines = [line for line in client.export(STORE) if line.get("kind") == "node"]
    return {line["id"]: (line["content"], line.get("ended"), line.get("tags"), line.get("valid_to")) for line in lines}


def _torn(client: Client) -> int:
    """Memories that are half absorbed: withdrawn without the relation that says by which, or the other way round."""
    lines = client.export(STORE)
    nodes = {line["id"]: line for line in lines if line.get("kind") == "node"}
    into = {line["from"]: line["to"] for line in lines if line.get("relation_type") == "MERGED_INTO"}
    merged = {node_id: line["belongs_to"] for node_id, line in nodes.items() if line.get("ended") == "merged"}
    gone = sum(primary not in nodes or "ended" in nodes[primary] for primary in merged.values())
    return gone + len(into.items() ^ merged.items())


def _wait(client: Client) -> None:
    deadline = time.monotonic() + 1_800
    while time.monotonic() < deadline:
        stats = client.call("GET", f"/api/memory/{STORE}/stats")
        present = [index for index in stats["indexes"] if not index["name"].startswith("past")]
        if all(index["sequence"] >= stats["sequence"] for index in present):
            return
        time.sleep(0.2)


def _rate(server: Server, clients: int, count: int) -> float:
    """Memories a second."""
    mark = time.time_ns()

    def say(number: int) -> None:
        with server.client() as own:
            for at in range(number, count, clients):
                _store(own, f"rate {mark} {_word(at)} of {clients}: {_word(at * 13)}")

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(say, range(clients)))
    return count / (time.perf_counter() - started)


def _fill(client: Client, size: int) -> None:
    there = client.call("GET", f"/api/memory/{STORE}/stats")["nodes"] if _exists(client) else 0
    for first in range(there, size, 5_000):
        some = range(first, min(first + 5_000, size))
        texts = {f"m{n}": f"filling {_word(n)} {_word(n * 7)}" for n in some}
        nodes = [{"id": key, "type": "fact", "content": text, "confidence": 1.0} for key, text in texts.items()]
        client.call("POST", INJECT, {"nodes": nodes})
    _wait(client)


def _exists(client: Client) -> bool:
    return any(store["name"] == STORE for store in client.call("GET", "/api/memory")["stores"])


def _store(client: Client, content: str, **fields: Any) -> Any:
    return client.call("POST", MEMORIES, {"content": content, **fields})


def _get(client: Client, node_id: str, *, touch: bool = True) -> Any:
    return client.call("GET", f"/api/memories/{node_id}?store={STORE}&touch={'true' if touch else 'false'}")


def all_memories(client: Client) -> list[Any]:
    """Every memory in force, as a list tells them; that writes no uses down."""
    return list(_pages(client))


def _pages(client: Client) -> Iterator[Any]:
    cursor = ""
    while True:
        page = client.call("GET", f"{MEMORIES}&limit=1000{cursor}")
        yield from page["memories"]
        if page["next_cursor"] is None:
            return
        cursor = f"&cursor={page['next_cursor']}"


def _word(number: int) -> str:
    """A pronounceable word of its own for each number."""
    syllables = ("ba", "ce", "di", "zo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va")
    word, rest = "", number + 4096
    while rest:
        rest, at = divmod(rest, len(syllables))
        word += syllables[at]
    return word
