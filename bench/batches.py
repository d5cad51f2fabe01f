"""Small batches for WordNet's store."""

from __future__ import annotations

import random
from typing import Any

from bench.prepared import STORE
from bench.wordnet import Graph

PATH = f"/api/memory/{STORE}/inject"


def new_batch(name: str, choice: random.Random, graph: Graph) -> dict[str, Any]:
    """Five new nodes; two edges among them and three to synsets."""
    ids = [f"{name}-{number}" for number in range(5)]
    nodes = [
        {"id": id_, "type": "note", "content": f"A note about {name}, number {number}.", "attributes": {"n": number}}
        for number, id_ in enumerate(ids)
    ]
    targets = [*ids[1:3], *(choice.choice(graph.nodes).id for _ in range(3))]
    edges = [
        {"from": source, "to": target, "relation_type": "mentions", "weight": 0.5}
        for source, target in zip(ids, targets, strict=True)
    ]
    return {"nodes": nodes, "edges": edges}


def changed_batch(choice: random.Random, graph: Graph) -> dict[str, Any]:
    """Five synsets with another content and five pointers with another weight."""
    nodes = [
        {"id": node.id, "type": node.type, "content": f"{node.content} ({choice.random():.6f})"}
        for node in choice.sample(graph.nodes, 5)
    ]
    edges = [
        {"from": edge.source, "to": edge.target, "relation_type": edge.relation_type, "weight": choice.random()}
        for edge in choice.sample(graph.edges, 5)
    ]
    return {"nodes": nodes, "edges": edges}
