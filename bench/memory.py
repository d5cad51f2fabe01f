"""What the memory layer must show: `python -m bench.memory [--only reading filters …] [--count N] [--embedder local]`.

Each part makes a store of its own of real sentences, asks over HTTP, and prints its figures with their marks.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import locomo, memories, memory_counts, memory_events, memory_turns, memory_writing, wordnet
from bench.measure import Report, clock, times
from bench.memories import Made, Named
from bench.memory_model import Model, some_filters, some_words
from bench.server import Client, Server, end_when_told
from kgserve.embedding.embedder import Embedder, load_embedder
from kgserve.platform.settings import load

STORE = "memories"
SEARCH = f"/api/memories/search?store={STORE}"
MODES = ("keyword", "semantic", "hybrid", "graph")
EXACT_COUNT = 9_000
QUESTIONS = 300
SEED = 15
MOST = 100
INDEX_SECONDS = 3_600.0
CLIENTS = 8
RECALLS = 2_000
RECALL_AIM_MS = 25.0
LASTING_SECONDS = 36.0
"""So long after a use it is in the journal: it waits for 30 seconds, and the keeper looks each 5."""


class Options(NamedTuple):
    """What to measure with."""

    memories: int
    conversations: Path
    embedder: str

    @property
    def settings(self) -> dict[str, object]:
        """Those of the server."""
        # Nothing is to change but by what is measured.
        still = {"memory_prune": "off", "memory_consolidation": "off"}
        return {"embedding_provider": self.embedder, "shutdown_grace": 120, **still}

    def loaded(self) -> Embedder:
        """The same embedder in this process."""
        return load_embedder(load({"embedding_provider": self.embedder}))


class Filled(NamedTuple):
    """A server with a store of memories."""

    server: Server
    made: list[Made]
    named: list[Named]
    now: float


@contextmanager
def filled(options: Options, count: int) -> Generator[Filled]:
    """A server whose indexes have seen a store of so many memories."""
    texts, now = memories.sentences(count, options.conversations), time.time()
    made, named = memories.memories(texts, now), memories.entities()
    with _folder() as folder:
        memories.give(Path(folder), STORE)
        with Server(Path(folder), options.settings) as server, server.client() as client:
            client.upload(STORE, memories.lines(made, named))
            _indexed(client, STORE)
            yield Filled(server, made, named, now)


def filters(options: Options) -> Report:
    """Whether every filter is exact in every mode, and what they cost."""
    report = Report(f"recall against a look at every memory; {EXACT_COUNT:,}, then {options.memories:,} memories")
    embedder = options.loaded()
    with filled(options, EXACT_COUNT) as of, of.server.client() as client:
        model = Model(of.made, of.named, embedder, time.time())
        for mode in MODES:
            wrong = _disagreements(client, model, mode)
            report.check(f"{mode}: {QUESTIONS} random recalls", f"{len(wrong)} differ", not wrong)
            report.notes += wrong[:3]
    with filled(options, options.memories) as of, of.server.client() as client:
        _cost_of_filters(report, client, of)
        _overlap(report, client, of, embedder)
        report.check("a filter that lets 3 through", *_three(client, of))
    return report


def _disagreements(client: Client, model: Model, mode: str) -> list[str]:
    chance, made = random.Random(SEED), [*model.made.values()]
    found: list[str] = []
    for number in range(QUESTIONS):
        one = chance.choice(made)
        wanted = some_filters(chance, model.now, one, chance.choice([0.1, 0.3, 1.0]))
        if mode == "graph":
            wanted.setdefault("entity", one.about[0][0])
        query = some_words(chance, one)
        hits = _recall(client, query, mode=mode, limit=MOST, **wanted)["hits"]
        if reason := _difference(model, mode, query, wanted, hits):
            found.append(f"{mode} {number}: {reason}: {query!r} {wanted}")
    return found


def _difference(model: Model, mode: str, query: str, wanted: Mapping[str, Any], hits: list[Any]) -> str:
    surely, perhaps = model.passing(wanted, graph=mode == "graph")
    ids = {hit["id"] for hit in hits}
    if not ids <= perhaps:
        return f"{len(ids - perhaps)} hits do not pass"
    if mode == "semantic":
        near = model.near(query, surely, 0.5, MOST)
        least = near[-1].similarity if len(near) == MOST else 0.5
        missing = {hit.id for hit in near if hit.similarity > least + 1e-4} - ids
    elif mode == "keyword":
        holding = model.holding(query, surely)
        missing = holding - ids if len(holding) <= MOST else set[str]()
    elif mode == "graph":
        scores = model.around(wanted["entity"], surely)
        best = sorted(scores, key=lambda key: -scores[key])[:MOST]
        least = scores[best[-1]] * 1.001 if len(best) == MOST else 0.0
        missing = {key for key in best if scores[key] > least} - ids
    else:
        missing = set() if len(ids) == MOST else surely - ids
    return f"{len(missing)} are missing" if missing else ""


def _cost_of_filters(report: Report, client: Client, of: Filled) -> None:
    chance = random.Random(SEED)
    asked = [(some_words(chance, one), some_filters(chance, of.now, one, 1.0)) for one in chance.sample(of.made, 200)]
    for mode in MODES:
        plain: list[float] = []
        narrow: list[float] = []
        for query, wanted in asked:
            entity = {"entity": wanted["entity"]} if mode == "graph" else {}
            # The first asks for the vector of the query, which both then have.
            _recall(client, query, mode=mode, **entity)
            plain.append(_pace(client, query, mode=mode, **entity))
            narrow.append(_pace(client, query, mode=mode, **wanted))
        base, all_of_them = times(plain), times(narrow)
        what, ratio = f"{mode}, all filters", all_of_them.p50 / base.p50
        report.compare(what, str(all_of_them), f"without {base}", ratio, ("≤", 1.5))
    words = [f"{query} {number}" for number, (query, _) in enumerate(asked)]
    fresh = times([_pace(client, query, **asked[0][1]) for query in words])
    report.at_most("hybrid, all filters, with embedding", str(fresh), fresh.p50, RECALL_AIM_MS, "ms")


def _overlap(report: Report, client: Client, of: Filled, embedder: Embedder) -> None:
    model, chance = Model(of.made, of.named, embedder, time.time()), random.Random(SEED + 1)
    shares: list[float] = []
    for one in chance.sample(of.made, 100):
        wanted = some_filters(chance, of.now, one, 0.3)
        query = some_words(chance, one)
        near = model.near(query, model.passing(wanted, graph=False)[0], -1.0, 10)
        hits = _recall(client, query, mode="semantic", min_similarity=-1.0, limit=10, **wanted)["hits"]
        if near:
            shares.append(len({hit.id for hit in near} & {hit["id"] for hit in hits}) / len(near))
    share = statistics.fmean(shares)
    report.compare("semantic, overlap with exact", f"{share:.4f}", "exact", share, ("≥", 0.98))


def _three(client: Client, of: Filled) -> tuple[str, bool]:
    ids = [each["id"] for each in client.export(STORE) if each.get("id", "").startswith("m")][:3]
    nodes = [{"id": node_id, "type": "fact", "tags": ["only:these"], "confidence": 1.0} for node_id in ids]
    client.call("POST", f"/api/memory/{STORE}/inject", {"nodes": nodes, "edges": []})
    _indexed(client, STORE)
    asked = {"tags": ["only:these"], "min_confidence": 0.0}
    query = of.made[0].content
    found = {mode: len(_recall(client, query, mode=mode, **asked)["hits"]) for mode in ("hybrid",)}
    near = _recall(client, query, mode="semantic", min_similarity=-1.0, **asked)
    found["semantic"] = len(near["hits"])
    return str(found), set(found.values()) == {3}


def reading(options: Options) -> Report:
    """What many recalls leave behind, and what counting them costs."""
    report = Report(f"{RECALLS:,} recalls of 10 hits by {CLIENTS} clients; {options.memories:,} memories")
    with filled(options, options.memories) as of, of.server.client() as client:
        chance = random.Random(SEED)
        queries = [some_words(chance, one) for one in chance.sample(of.made, 500)]
        _spread(of.server, [(query, {"touch": False}) for query in queries])
        before, size = _rows(client), _sizes(of.server.data)
        stats = client.call("GET", f"/api/memory/{STORE}/stats")
        took: dict[bool, list[float]] = {True: [], False: []}
        for part in range(RECALLS // 250):
            for touch in (True, False):
                asked = [(query, {"touch": touch}) for query in queries[part % 2 * 250 :][:250]]
                took[touch] += _spread(of.server, asked)
        after, later = _rows(client), _sizes(of.server.data)
        changes = client.call("GET", f"/api/memory/{STORE}/changes?since={stats['sequence']}")["changes"]
        _killed_while_reading(report, of, options, queries)
    report.check("rows", f"{sum(1 for key in before if before[key] != after.get(key))} differ", before == after)
    report.check("changes told", str(len(changes)), not changes)
    for what, limit in (("journal", 4.0), ("engine", 1.0)):
        grown = (later[what] - size[what]) / (1 << 20)
        report.at_most(f"{what} grew by", f"{grown:.2f} MiB", grown, limit, "MiB")
    with_, without = times(took[True]), times(took[False])
    report.compare("counting as used", str(with_), f"touch=false {without}", with_.p50 / without.p50, ("≤", 1.05))
    return report


def _killed_while_reading(report: Report, of: Filled, options: Options, queries: Sequence[str]) -> None:
    """Recalls until the server is killed: what was counted a while before that is there, and no more than was asked."""
    server = of.server
    with server.client() as client:
        before = _uses(client)
        _spread(server, [(query, {"touch": True}) for query in queries])
        time.sleep(LASTING_SECONDS)
        lasting = _uses(client)
    asking = threading.Thread(target=_until_gone, args=(server, queries))
    asking.start()
    time.sleep(1.0)
    server.kill()
    asking.join()
    with Server(server.data, options.settings) as again, again.client() as client:
        again.wait_ready()
        found = _uses(client)
    report.check("memories after a kill", f"{len(found)} of {len(before)}", found.keys() == before.keys())
    lost = sum(found[key] < count for key, count in lasting.items())
    report.check(f"uses of {LASTING_SECONDS:.0f} s before it that are lost", str(lost), lost == 0)
    most = 2 * len(queries) * 10
    report.check("uses after it", f"{sum(found.values()) - sum(before.values())} of at most {most}",
                 sum(found.values()) - sum(before.values()) <= most)  # fmt: skip


def _until_gone(server: Server, queries: Sequence[str]) -> None:
    with suppress(OSError, HTTPException, AssertionError), server.client(timeout=10) as client:
        for query in queries:
            _pace(client, query, limit=10, touch=True)


def _uses(client: Client) -> dict[str, int]:
    return {memory["id"]: memory["access_count"] for memory in memory_writing.all_memories(client)}


def _rows(client: Client) -> dict[str, Any]:
    kept = ("type", "content", "version", "confidence", "updated_at")
    return {
        line["id"]: {name: line.get(name) for name in kept}
        for line in client.export(STORE)
        if line.get("kind") == "node"
    }


def _sizes(data: Path) -> dict[str, int]:
    folder = data / f"{STORE}_memory"
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        "journal": sum(path.stat().st_size for path in files if path.parent.name == "journal"),
        "engine": sum(path.stat().st_size for path in files if "kuzu" in path.name),
    }


def _spread(server: Server, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[float]:
    """Milliseconds that each took, asked by some clients at once."""
    took: list[float] = []

    def ask(own: Sequence[tuple[str, dict[str, Any]]]) -> None:
        with server.client() as client:
            for query, wanted in own:
                took.append(_pace(client, query, limit=10, **wanted))

    threads = [threading.Thread(target=ask, args=(asked[at::CLIENTS],)) for at in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def dated(options: Options) -> Report:
    """What memories that are no longer true cost those that are."""
    report = Report(f"recall, search and walks once something is withdrawn; {options.memories:,} memories")
    with filled(options, options.memories) as of, of.server.client() as client:
        chance = random.Random(SEED)
        queries = [some_words(chance, one) for one in chance.sample(of.made, 150)]
        base = _paces(client, queries, of.named)
        moment = memories.stamp(of.now - memories.DAY)
        for what, count, limit in (("one retired", 1, 1.1), ("one withdrawn", 1, 1.1), ("a tenth", None, 1.5)):
            some = chance.sample(of.made, count or len(of.made) // 10)
            bounds = {"valid_to": moment} if what == "one retired" else {"valid_from": moment, "valid_to": moment}
            _withdraw(client, some, bounds)
            for name, pace in _paces(client, queries, of.named).items():
                report.compare(
                    f"{what}: {name}", f"{pace:.2f} ms", f"{base[name]:.2f} ms", pace / base[name], ("≤", limit)
                )
    return report


def _withdraw(client: Client, some: Sequence[Made], bounds: Mapping[str, str]) -> None:
    for first in range(0, len(some), 500):
        nodes = [{"id": each.id, "type": each.type, **bounds} for each in some[first : first + 500]]
        client.call("POST", f"/api/memory/{STORE}/inject", {"nodes": nodes, "edges": []})
    _indexed(client, STORE)


def _paces(client: Client, queries: Sequence[str], named: Sequence[Named]) -> dict[str, float]:
    """Medians in milliseconds."""
    walk = {"depth": 2, "direction": "both", "max_nodes": 200}
    asks: dict[str, Callable[[int], Any]] = {
        "recall": lambda at: _recall(client, queries[at], touch=False),
        "search": lambda at: client.call("POST", f"/api/memory/{STORE}/search", {"query": queries[at]}),
        "walk": lambda at: client.call(
            "POST", f"/api/memory/{STORE}/traverse", {"start_id": named[-1 - at].id, **walk}
        ),
    }
    found: dict[str, float] = {}
    for name, ask in asks.items():
        for at in range(20):
            ask(at)
        found[name] = statistics.median(clock(lambda at=at, ask=ask: ask(at)) for at in range(len(queries)))
    return found


def conversations(options: Options) -> Report:
    """How much of the evidence recall finds, beside search in the same store."""
    found = locomo.read(options.conversations)
    total = sum(len(each.questions) for each in found)
    report = Report(f"{total} questions to {len(found)} conversations stored as memories, recall@10")
    with _folder() as folder, Server(Path(folder), options.settings) as server, server.client() as client:
        merged, turns = _remember(client, found)
        recalled = _evidence(found, lambda name, query: _of_recall(client, name, query, touch=False))
        searched = _evidence(found, lambda name, query: _of_search(client, name, query))
        for seed in (1, 2):
            used = _evidence(found, lambda name, query: _of_recall(client, name, query, touch=True), seed)
    report.compare("recall", f"{recalled:.4f}", f"the mark of search, {0.64}", recalled / 0.64, ("≥", 1.0))
    report.compare("recall", f"{recalled:.4f}", f"search {searched:.4f}", recalled - searched, ("≥", -0.005))
    report.at_most("asked twice, in other orders", f"{used:.4f}", abs(used - recalled), 0.01, "apart")
    report.at_most("merged when stored", f"{merged} of {turns}", merged / turns, 0.005, "of all turns")
    return report


def turns(options: Options) -> Report:
    """How much of the evidence recall finds in conversations that are retained as messages."""
    found = locomo.read(options.conversations)
    with _folder() as folder, Server(Path(folder), options.settings) as server, server.client() as client:
        return memory_turns.retained(client, found, _indexed)


def beside(options: Options) -> Report:
    """What turns that follow each other cost a recall in a large store."""
    texts, now = memories.sentences(options.memories, options.conversations), time.time()
    made, named = memories.memories(texts, now), memories.entities()
    with _folder() as folder:
        memories.give(Path(folder), STORE)
        with Server(Path(folder), options.settings) as server, server.client() as client:
            client.upload(STORE, memory_turns.with_turns(made, memories.lines(made, named)))
            _indexed(client, STORE)
            return memory_turns.paces(client, STORE, made)


def clusters(options: Options) -> Report:
    """What a whole run of consolidation takes in a large store, and what others notice of it."""
    report = Report(f"consolidation of {options.memories:,} memories, three of ten of them in clusters of three")
    texts, now = memories.sentences(options.memories * 4 // 5, options.conversations), time.time()
    made = memories.memories(texts, now)
    again = [
        msgspec.structs.replace(one, id=f"{one.id}-{at}", content=say(one.content))
        for one in made[:: len(made) * 10 // options.memories or 1][: options.memories // 10]
        for at, say in enumerate(("{}.".format, "{}!".format))
    ]
    with _folder() as folder:
        memories.give(Path(folder), STORE)
        with Server(Path(folder), options.settings) as server, server.client() as client:
            client.upload(STORE, memories.lines([*made, *again], memories.entities()))
            _indexed(client, STORE)
            _beside_consolidation(report, server, client, made, len(again))
    return report


def _beside_consolidation(report: Report, server: Server, client: Client, made: Sequence[Made], expected: int) -> None:
    chance = random.Random(SEED)
    queries = [some_words(chance, one) for one in chance.sample(made, 500)]
    found: list[Any] = []

    def consolidate() -> None:
        with server.client(timeout=INDEX_SECONDS) as own:
            found.append(own.call("POST", f"/api/memories/consolidate?store={STORE}", {}))

    def asked(count: int, goes_on: Callable[[], bool]) -> tuple[float, float]:
        recalls, writes = list[float](), list[float]()
        while len(recalls) < count and goes_on():
            query = queries[len(recalls) % len(queries)]
            recalls.append(_pace(client, query, limit=10, touch=False))
            content = f"{query} {chance.random()}"
            writes.append(clock(lambda: client.call("POST", f"/api/memories?store={STORE}", {"content": content})))  # noqa: B023
        return statistics.median(recalls), statistics.median(writes)

    asked(50, lambda: True)
    alone = asked(200, lambda: True)
    run, started = threading.Thread(target=consolidate), time.monotonic()
    run.start()
    beside = asked(1 << 30, run.is_alive)
    run.join()
    report.at_most("the run", f"{time.monotonic() - started:.0f} s", time.monotonic() - started, 300, "s")
    merged = found[0]["memories_merged"]
    report.fact("what says the same", f"{merged:,} merged, of {expected:,} made to be")
    for what, before, now in zip(("recall", "storing"), alone, beside, strict=True):
        report.compare(f"{what} beside it", f"{now:.1f} ms", f"{before:.1f} ms", now / before, ("≤", 1.5))


def analytics(options: Options) -> Report:
    """How long the numbers take, and whether they are those of a recount, after writes and with a view made anew."""
    report = Report(f"memories in numbers; {options.memories:,} memories, {memory_counts.WRITES} random writes")
    texts, made_at = memories.sentences(options.memories, options.conversations), time.time()
    made, named = memories.memories(texts, made_at), memories.entities()
    with _folder() as folder:
        with Server(Path(folder), options.settings) as server, server.client() as client:
            client.upload(STORE, memories.lines(made, named))
            memory_counts.compare(report, client, STORE, "as imported")
            memory_counts.paces(report, server, client, STORE)
            done = memory_counts.worked_over(client, STORE, [one.id for one in made], [one.id for one in named])
            report.fact("written", ", ".join(f"{count} {what}" for what, count in done.most_common()))
            memory_counts.compare(report, client, STORE, "after writes")
        memory_counts.without_views(Path(folder), STORE)
        with Server(Path(folder), options.settings) as server, server.client() as client:
            memory_counts.compare(report, client, STORE, "made anew")
    return report


def _remember(client: Client, found: Sequence[locomo.Conversation]) -> tuple[int, int]:
    merged = turns = 0
    for each in found:
        made = [{"id": turn.dia_id, "content": f"{turn.speaker}: {turn.text}"} for turn in each.turns]
        for first in range(0, len(made), 500):
            answer = client.call(
                "POST", f"/api/memories/batch?store={each.name}", {"memories": made[first : first + 500]}
            )
            merged += answer["duplicates"] + answer["merged"]
        turns += len(made)
        _indexed(client, each.name)
    return merged, turns


def _evidence(found: Sequence[locomo.Conversation], ask: Callable[[str, str], list[str]], seed: int = 0) -> float:
    questions = [(each.name, question) for each in found for question in each.questions]
    random.Random(seed).shuffle(questions)
    return statistics.fmean(locomo.recall(ask(name, one.question), one.evidence, 10) for name, one in questions)


def _of_recall(client: Client, store: str, query: str, *, touch: bool) -> list[str]:
    answer = client.call("POST", f"/api/memories/search?store={store}", {"query": query, "limit": 10, "touch": touch})
    return [hit["id"] for hit in answer["hits"]]


def _of_search(client: Client, store: str, query: str) -> list[str]:
    answer = client.call("POST", f"/api/memory/{store}/search", {"query": query, "limit": 10})
    return [hit["node"]["id"] for hit in answer["hits"]]


def _recall(client: Client, query: str, **wanted: Any) -> Any:
    return client.call("POST", SEARCH, {"query": query, "touch": False, **wanted})


def _pace(client: Client, query: str, **wanted: Any) -> float:
    """Milliseconds."""
    return clock(lambda: _recall(client, query, **wanted))


def _indexed(client: Client, store: str) -> None:
    end = time.monotonic() + INDEX_SECONDS
    while True:
        stats = client.call("GET", f"/api/memory/{store}/stats")
        present = [index for index in stats["indexes"] if not index["name"].startswith("past")]
        if all(index["sequence"] >= stats["sequence"] for index in present):
            return
        assert time.monotonic() < end, stats["indexes"]
        time.sleep(0.1)


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kgserve-bench-", ignore_cleanup_errors=True)


PARTS: dict[str, Callable[[Options], Report]] = {
    "fading": lambda options: memory_writing.fading(options.settings),
    "reading": reading,
    "duplicates": lambda options: memory_writing.duplicates(options.settings),
    "at-once": lambda options: memory_writing.at_once(options.settings),
    "pace": lambda options: memory_writing.pace(options.settings),
    "filters": filters,
    "consolidation": lambda options: memory_writing.consolidation(options.settings),
    "clusters": clusters,
    "withdrawn": dated,
    "analytics": analytics,
    "events": lambda options: memory_events.events(options.settings),
    "conversations": conversations,
    "turns": turns,
    "beside": beside,
}


def main(arguments: Sequence[str]) -> int:
    """Print a table for each part; 1 when something exact was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description="What the memory layer must show.")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="what to show (default: all)")
    parser.add_argument("--count", type=int, default=memories.COUNT, help="memories in the large store")
    parser.add_argument("--conversations", type=Path, default=locomo.FILE, help="conversations as LoCoMo has them")
    parser.add_argument("--embedder", choices=["hashing", "local"], default="hashing", help="letters, or the model")
    given = parser.parse_args(arguments)
    end_when_told()
    options = Options(given.count, given.conversations, given.embedder)
    wrong = False
    for name in given.only or PARTS:
        try:
            report = PARTS[name](options)
        except (wordnet.Unavailable, FileNotFoundError) as reason:
            print(f"{name} skipped: {reason}")
            continue
        report.show()
        wrong = wrong or report.wrong
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
