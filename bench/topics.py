"""Sentences on many topics and the names of their topics: twelve on each, or twenty-five; or of WordNet's domains."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from bench import wordnet

TOPICS = Path(__file__).with_name("topics.txt")
FACTS = Path(__file__).with_name("facts.txt")
_MANY = 40


def topics(path: Path = TOPICS) -> dict[str, list[str]]:
    """The sentences of each topic."""
    found: dict[str, list[str]] = {}
    for block in path.read_text(encoding="utf-8").split("# ")[1:]:
        name, *sentences = block.splitlines()
        found[name] = sentences
    return found


def domains(most: int = 25) -> dict[str, list[str]]:
    """Words of each of WordNet's larger domains, with what they mean. Raises `wordnet.Unavailable`."""
    graph = wordnet.read(wordnet.folder())
    known = {each.id: each.content for each in graph.nodes}
    members: dict[str, list[str]] = defaultdict(list)
    for edge in graph.edges:
        if edge.relation_type == "domain_topic":
            members[edge.target].append(edge.source)
    large = sorted((each for each in members if len(members[each]) >= _MANY), key=lambda each: -len(members[each]))
    return {
        known[each].split(":")[0].split(",")[0]: [
            known[member].split("; ")[0] for member in sorted(members[each])[:: len(members[each]) // most][:most]
        ]
        for each in reversed(large)
    }
