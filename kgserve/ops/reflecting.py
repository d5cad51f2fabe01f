"""Reflecting: memories that nobody has placed are put below concepts, and what is to be decided is proposed.

No language model is needed, and nothing is inferred. What is certain is done, as one run that can be taken back; the
rest is proposals, by number, which the caller accepts or refuses. A model that is set names and comments on them, and
answers questions (`kgserve.ops.advised`).
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from kgserve.errors import InvalidInput, Unavailable
from kgserve.memories.memories import Fading, Memories
from kgserve.memories.selecting import MemoryPlace
from kgserve.model.consolidation import Plan, RunRecord
from kgserve.model.listing import MemoryFilter
from kgserve.model.memories import MAX_TOLD, Contradiction
from kgserve.model.reflection import (
    CONCEPT,
    CONTRADICTS,
    DOMAIN,
    MAX_NAME,
    MAX_PROPOSALS,
    MAX_PROPOSED,
    Candidate,
    Link,
    Proposal,
    Reflection,
    ReflectionRecord,
    ReflectRequest,
    new_run_id,
)
from kgserve.model.rows import NodeRow
from kgserve.model.times import format_time
from kgserve.model.vocabulary import listed
from kgserve.ops.affinity import Place, Vectors, groups, places
from kgserve.ops.consolidating import Pace
from kgserve.ops.extracting import NO_MODEL
from kgserve.ops.graph import Graph
from kgserve.ops.hierarchy import found_memory
from kgserve.ops.reflected import decide, decided_before, nothing, undo, write
from kgserve.ops.shown_memories import now_in_microseconds, settings_of
from kgserve.rows.snapshot import Rows
from kgserve.rows.upwards import parents
from kgserve.store.store import Store
from kgserve.views import consolidating
from kgserve.views.comparing import Wanted, plan_of
from kgserve.views.indexes import Indexes
from kgserve.views.text import Filter

MOST_CONCEPTS = 2_000
"""So many concepts take memories in, the newest ones."""
MOST_BELOW = 50
"""So many of those below a concept speak for it."""
NEAR = 0.8
"""From this cosine on two memories that differ in a number, a name or a negation may contradict each other."""
WAIT_SECONDS = 10.0
_MOST_ENTITIES = 20
_AT_ONCE = 200
_MOST_WORDS = 40
_STEM = 4
_WORD = re.compile(r"[^\W\d_]{4,}")
_SAYS_LITTLE = frozenset(listed("small")) | frozenset(listed("negations"))
_AUTHOR = "reflect"


def reflect(graph: Graph, request: ReflectRequest) -> Reflection:
    """Puts memories that stand below nothing below the concepts that they belong to, and proposes what is uncertain.

    Memories that say the same are made one first. What stands below a concept already, and which entities it is about,
    counts beside the concept's own text. What is left and near each other is proposed as a new concept; what is near
    and says something else as a contradiction; what has faded is listed. `accept` carries proposals out, `refuse` has
    them not be made again, `undo` takes a run back with all that was accepted of it. `dry_run` writes nothing.

    With `answer` the `query` is a question, which a language model, where one is set, answers from memories.

    Raises InvalidInput for a number that there is not, NotFound for a run or a memory `under` that there is not, and
    Conflict for a proposal that was decided already or that no longer holds.
    """
    started = time.perf_counter()
    if sum((bool(request.accept or request.refuse), request.undo, request.dry_run, request.answer)) > 1:
        raise InvalidInput("accept or refuse, undo, dry_run and answer are asked for one at a time")
    with graph.lease() as store:
        if request.answer:
            found = _answered(graph, store, request)
        elif request.undo:
            found = undo(graph, store, request)
        elif request.accept or request.refuse:
            found = decide(store, request)
        else:
            found = _Reflecting(graph, store, request).reflect()
        found.sequence = store.state.sequence
    found.took_ms = round((time.perf_counter() - started) * 1000, 3)
    return found


def _answered(graph: Graph, store: Store, request: ReflectRequest) -> Reflection:
    """A question, answered. Raises InvalidInput where no language model is set."""
    if (extractor := graph.graphs.extractor) is None:
        raise InvalidInput.at("answer", NO_MODEL)
    from kgserve.ops.advised import answer  # noqa: PLC0415 - of what asks a model nothing is loaded where none is set

    return answer(graph, extractor.of(store), request)


class _Concept(NamedTuple):
    """What takes memories in: its vector, and the vectors and the entities of some that stand below it."""

    id: str
    vector: Vectors
    below: Vectors
    entities: frozenset[str]


class _Reflecting:
    """One run."""

    def __init__(self, graph: Graph, store: Store, request: ReflectRequest) -> None:
        self._graph = graph
        self._store = store
        self._request = request
        self._now = now_in_microseconds()
        self._under = found_memory(store, request.under, graph.name).id if request.under else ""

    def reflect(self) -> Reflection:
        """Do what is certain, unless it is to be dry, and propose the rest."""
        found = nothing(None, dry_run=self._request.dry_run)
        found.stale = self._stale()
        found.stale_count = self._store.memories.ask(lambda view, _: view.below(self._least, self._now))
        indexes = self._indexes
        found.near_checked = indexes is not None
        if indexes is None:
            return found
        orphans = self._orphans(indexes)
        found.looked_at = len(orphans)
        plan = plan_of(
            self._store,
            indexes,
            Wanted(NEAR, guard=True, near="suggest", fresh=frozenset(orphans)),
            self._now,
            Pace(self._store),
        )
        absorbed = {each for cluster in plan.clusters for each in cluster.absorbed}
        found.merged = len(absorbed)
        known = indexes.vectors_of([each for each in orphans if each not in absorbed])
        links, proposals = self._placed(indexes, {each: known[each] for each in sorted(known)})
        proposals += self._contradicting(plan.contradictions)
        decided = decided_before(self._store)
        fresh = [each for each in proposals if each.key not in decided]
        found.proposals = _numbered(fresh)
        self._name(indexes, [each for each in found.proposals if each.kind == "concept"], known)
        found.proposals = self._advised(found.proposals)
        found.proposals_count = len(fresh)
        found.linked, found.linked_count = links[:MAX_TOLD], len(links)
        if not self._request.dry_run and (links or found.proposals or found.merged):
            found.run = new_run_id(self._now, os.urandom(4).hex())
            write(self._store, found.run, self._record(links, found.proposals, self._merge(plan)), links)
        return found

    @property
    def _least(self) -> float:
        return settings_of(self._store).min_confidence

    @cached_property
    def _indexes(self) -> Indexes | None:
        """What knows the meaning of memories; None without a model, or where it cannot be reached."""
        indexer = self._graph.graphs.indexer
        if indexer is None:
            return None
        try:
            indexes = indexer.of(self._store)
            if not indexes.understands:
                return None
            indexes.wait(self._store.state.sequence, WAIT_SECONDS)
        except Unavailable:
            return None
        return indexes

    def _stale(self) -> list[str]:
        faded = self._store.memories.ask(lambda view, _: view.faded(self._least, self._now, Fading(), MAX_TOLD))
        return [each.id for each in faded]

    def _orphans(self, indexes: Indexes) -> list[str]:
        wanted = MemoryFilter(now=self._now, orphans=True)
        if self._request.query is not None:
            vector = indexes.vectors([self._request.query])[0]
            near = indexes.meaning(vector, self._request.limit, Filter(memories=True))
            wanted = msgspec.structs.replace(wanted, among=frozenset(near))
        return self._listed(wanted, self._request.limit)

    def _listed(self, wanted: MemoryFilter, most: int) -> list[str]:
        def look(view: Memories, _: Rows) -> list[str]:
            found: list[str] = []
            place: MemoryPlace | None = MemoryPlace()
            while place is not None and len(found) < most:
                page = view.listed(wanted, "created", place, most - len(found))
                found += page.ids
                place = page.next
            return found

        return self._store.memories.ask(look)

    def _advised(self, proposals: list[Proposal]) -> list[Proposal]:
        """The proposals, with what a language model says of them, if the store's texts go to one."""
        extractor = self._graph.graphs.extractor
        if extractor is None or not settings_of(self._store).extract:
            return proposals
        from kgserve.ops.advised import advise  # noqa: PLC0415 - as above

        return advise(extractor.of(self._store), self._store, proposals)

    # What says the same

    def _record(self, links: Sequence[Link], proposals: list[Proposal], merging: str) -> ReflectionRecord:
        return ReflectionRecord(
            started_at=format_time(self._now),
            threshold=self._request.threshold,
            cluster_threshold=self._request.cluster_threshold,
            linked=len(links),
            merging=merging,
            proposals=proposals,
        )

    def _merge(self, plan: Plan) -> str:
        """Make one of memories that say the same; the id of the consolidation, if there is any."""
        if not plan.clusters:
            return ""
        record = RunRecord(
            status="running",
            trigger="manual",
            similarity_threshold=NEAR,
            guard=True,
            through=plan.sequence,
            started_at=format_time(self._now),
        )
        run = consolidating.Run(consolidating.new_run(self._now), record, self._graph.graphs.caller.name)
        consolidating.carry_out(self._store, run, plan.clusters, Pace(self._store))
        return run.id

    def _contradicting(self, apart: Sequence[Contradiction]) -> list[Proposal]:
        """Of memories that are near and differ, those that are about one entity, or stand below one memory."""
        ids = [*dict.fromkeys(chain.from_iterable(each.ids for each in apart))]
        with self._store.reading() as rows:
            there, above = rows.nodes(ids), parents(rows, ids)
            either_way = [(a, b, CONTRADICTS) for each in apart for a, b in (each.ids, each.ids[::-1])]
            known = {frozenset(key[:2]) for key in rows.edges(either_way)}
        about = self._about(ids)
        proposals: list[Proposal] = []
        for each in apart:
            one, other = each.ids
            joined = about[one] & about[other] or (one in above and above[one] == above.get(other))
            if joined and frozenset(each.ids) not in known and one in there and other in there:
                younger_first = sorted(each.ids, key=lambda node_id: (-there[node_id].created_at, node_id))
                proposals.append(Proposal(number=0, kind="contradiction", ids=younger_first, differs=each.differs))
        return proposals

    # Where it belongs

    def _placed(self, indexes: Indexes, known: Mapping[str, Vectors]) -> tuple[list[Link], list[Proposal]]:
        """What is certain of where memories belong, and what is to be decided."""
        ids = [*known]
        if not ids:
            return [], []
        vectors = np.stack([*known.values()])
        concepts = self._concepts(indexes)
        found = self._places(ids, vectors, concepts) if concepts else []
        links, rest = list[Link](), list[int]()
        for at, node_id in enumerate(ids):
            if found and found[at].is_certain(self._request.threshold):
                links.append(Link(id=node_id, parent_id=concepts[found[at].best].id, score=found[at].score))
            else:
                rest.append(at)
        left = _Left([ids[at] for at in rest], [found[at] for at in rest] if found else [], concepts)
        together = groups(vectors[rest], self._request.cluster_threshold) if rest else []
        return links, [*self._concepts_of(left, together), *left.links(together, self._half)]

    def _places(self, ids: Sequence[str], vectors: Vectors, concepts: Sequence[_Concept]) -> list[Place]:
        about = self._about(ids)
        shared = np.zeros((len(ids), len(concepts)), np.float32)
        for row, node_id in enumerate(ids):
            if own := about[node_id]:
                shared[row] = [len(own & each.entities) / len(own) for each in concepts]
        return places(vectors, np.stack([each.vector for each in concepts]), [each.below for each in concepts], shared)

    def _concepts(self, indexes: Indexes) -> list[_Concept]:
        """Concepts, and the domains that have none below them."""
        wanted = MemoryFilter(now=self._now, layer=CONCEPT, under=self._under)
        ids = self._listed(wanted, MOST_CONCEPTS)
        domains = self._listed(msgspec.structs.replace(wanted, layer=DOMAIN), MOST_CONCEPTS - len(ids))
        with self._store.reading() as rows:
            filled = {*parents(rows, ids).values()}
        ids += [each for each in domains if each not in filled]
        below = {each: self._below(each) for each in ids}
        known = indexes.vectors_of([*ids, *dict.fromkeys(chain.from_iterable(below.values()))])
        about = self._about([*chain.from_iterable(below.values())])
        found: list[_Concept] = []
        for each in (each for each in ids if each in known):
            some = [known[child] for child in below[each] if child in known]
            vectors = np.array(some, np.float32).reshape(-1, len(known[each]))
            entities = frozenset(chain.from_iterable(about[child] for child in below[each]))
            found.append(_Concept(each, known[each], vectors, entities))
        return found

    def _below(self, concept: str) -> list[str]:
        page = self._store.memories.ask(
            lambda view, _: view.beneath(concept, self._now, None, "", MOST_BELOW, near=True)
        )
        return [each.id for each in page.found]

    def _about(self, ids: Sequence[str]) -> dict[str, frozenset[str]]:
        def look(view: Memories, _: Rows) -> dict[str, frozenset[str]]:
            return {
                each: frozenset(entity for entity, _ in view.entities_of(each, self._now, _MOST_ENTITIES))
                for each in dict.fromkeys(ids)
            }

        return self._store.memories.ask(look)

    def _concepts_of(self, left: _Left, together: Sequence[Sequence[int]]) -> list[Proposal]:
        """New concepts of what belongs nowhere and together."""
        found = [[left.ids[at] for at in group] for group in together if left.place_of(group, self._half) is None]
        return [Proposal(number=0, kind="concept", ids=members) for members in found]

    def _name(self, indexes: Indexes, concepts: Sequence[Proposal], known: Mapping[str, Vectors]) -> None:
        """Name new concepts for now: by an entity that all their memories are about, or else by the words nearest."""
        ids = [*chain.from_iterable(each.ids for each in concepts)]
        with self._store.reading() as rows:
            texts = {node_id: row.content for node_id, row in rows.nodes(ids).items()}
        about = self._about(ids)
        words = [_words_of([texts.get(node_id, "") for node_id in each.ids]) for each in concepts]
        vectors = self._vectors(indexes, sorted({*chain.from_iterable(words)}))
        for concept, some in zip(concepts, words, strict=True):
            centre = np.sum([known[node_id] for node_id in concept.ids], axis=0)
            near = sorted(some, key=lambda word: -float(vectors[word] @ centre) if vectors else 0.0)
            told = " ".join(some[word] for word in _two_of(near)) or texts.get(concept.ids[0], concept.ids[0])
            concept.name = self._shared_name([about[node_id] for node_id in concept.ids]) or told[:MAX_NAME]

    def _vectors(self, indexes: Indexes, words: list[str]) -> dict[str, Vectors]:
        try:
            return dict(zip(words, indexes.vectors(words), strict=True)) if words else {}
        except Unavailable:
            return {}

    @property
    def _half(self) -> float:
        return self._request.threshold / 2

    def _shared_name(self, about: Sequence[frozenset[str]]) -> str:
        """The name of an entity that all of some memories are about, if there is one."""
        shared = frozenset[str].intersection(*about)
        with self._store.reading() as rows:
            found = rows.nodes(sorted(shared)[:1])
        return next((_name(row) for row in found.values()), "")[:MAX_NAME]


class _Left:
    """Memories whose place is not certain, with the best places of each, if there are any concepts."""

    def __init__(self, ids: Sequence[str], found: Sequence[Place], concepts: Sequence[_Concept]) -> None:
        self.ids = ids
        self._found = found
        self._concepts = concepts

    def place_of(self, group: Sequence[int], least: float) -> Place | None:
        """Where most of a group belong best, if they belong there well enough on average; with the mean score."""
        if not self._found:
            return None
        best = Counter(self._found[at].best for at in group).most_common(1)[0][0]
        mine = [self._found[at] for at in group if self._found[at].best == best]
        mean = sum(each.score for each in mine) / len(group)
        return Place(best, round(mean, 4), mine[0].second, mine[0].second_score) if mean >= least else None

    def links(self, together: Sequence[Sequence[int]], least: float) -> list[Proposal]:
        """What may belong below a concept: groups as one, and each of those that are in none."""
        grouped = {*chain.from_iterable(together)}
        some = [*together, *([at] for at in range(len(self.ids)) if at not in grouped)]
        found = ((group, self.place_of(group, least)) for group in some)
        return [self._link([self.ids[at] for at in group], place) for group, place in found if place is not None]

    def _link(self, ids: Sequence[str], place: Place) -> Proposal:
        best = [(place.best, place.score), (place.second, place.second_score)]
        told = [Candidate(id=self._concepts[at].id, score=score) for at, score in best if at >= 0]
        return Proposal(number=0, kind="link", ids=[*ids], candidates=told)


def _numbered(proposals: Sequence[Proposal]) -> list[Proposal]:
    """The first of them, as many as one run may name."""
    found: list[Proposal] = []
    room = MAX_PROPOSED
    for each in proposals:
        room -= len(each.ids)
        if room < 0 or len(found) == MAX_PROPOSALS:
            break
        each.number = len(found) + 1
        found.append(each)
    return found


def _words_of(texts: Sequence[str]) -> dict[str, str]:
    """Words of some texts, those first that most texts have, each with the spelling that is met first."""
    spelled: dict[str, str] = {}
    count = Counter[str]()
    for text in texts:
        here = [found[0] for found in _WORD.finditer(text) if found[0].lower() not in _SAYS_LITTLE]
        count.update({word.lower(): 1 for word in here})
        for word in here:
            spelled.setdefault(word.lower(), word)
    return {word: spelled[word] for word, _ in count.most_common(_MOST_WORDS)}


def _two_of(words: Sequence[str]) -> list[str]:
    """The first word and the next that is no other form of it."""
    return [*words[:1], *[word for word in words[1:] if word[:_STEM] != words[0][:_STEM]][:1]]


def _name(row: NodeRow) -> str:
    return (row.extras.name if row.extras is not None else "") or row.id
