"""What a write costs at a node of a cluster, beside a server without one: `python -m bench.cluster_serving`.

Three nodes of kgserve and three NATS servers are processes on loopback. What befalls them otherwise is tried by
`bench.cluster_nemesis`.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.measure import Report, clock, times
from tests.cluster.nodes import ServingNode, serving_nodes
from tests.cluster.servers import free_ports, nats_servers

COSTED = 300


def cost(report: Report, folder: Path, node: ServingNode) -> None:
    """Milliseconds of a write by one client to one store: of this node, and of a server without a cluster, in turn."""
    alone = ServingNode("alone", folder, "", free_ports(1)[0])
    alone.start()
    try:
        taken: dict[str, list[float]] = {"cluster": [], "alone": []}
        with ExitStack() as stack:
            clients = {"cluster": stack.enter_context(node.client()), "alone": stack.enter_context(alone.client())}
            for number in range(COSTED):
                for name, client in clients.items():
                    inject = partial(client.store("cost").inject, nodes=[_node(number)])
                    taken[name].append(clock(inject))
        for name, each in taken.items():
            report.fact(f"inject of one node, {name}", str(times(each)))
    finally:
        alone.end()


def _node(number: int) -> dict[str, str]:
    return {"id": str(number), "type": "t", "content": "x" * 1000}


def main() -> int:
    """Measure."""
    report = Report("A write at a node of a cluster")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with nats_servers(folder / "nats") as servers, serving_nodes(servers, folder / "nodes") as nodes:
            cost(report, folder, nodes[0])
    report.show()
    return int(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
