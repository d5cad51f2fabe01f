"""Render the Helm chart into the plain manifests of `deploy/kubernetes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helm_python.chart import Chart

TOP = Path(__file__).parents[1]
CHART = TOP / "deploy" / "helm"
CLUSTER_VALUES: dict[str, Any] = {"replicas": 3, "cluster": {"secret": "kgserve-cluster"}}
MANIFEST_VALUES: dict[str, dict[str, Any]] = {"kgserve.yaml": {}, "kgserve-cluster.yaml": CLUSTER_VALUES}
"""Values of the chart, by the manifest that is rendered with them."""
_HEADINGS = {
    "kgserve.yaml": ("One server with one volume. It needs the Secret kgserve-keys; see docs/install.md."),
    "kgserve-cluster.yaml": (
        "Three nodes of a cluster. They need the Secrets kgserve-keys and kgserve-cluster; see docs/install.md."
    ),
}


def render_chart(values: dict[str, Any]) -> str:
    """Return the manifests that the chart renders with ``values`` for a release named kgserve."""
    with Chart.load(CHART) as chart:
        rendered = chart.render(values=values, name="kgserve", namespace="default")
    texts = (rendered[path].strip() for path in sorted(rendered) if path.endswith(".yaml"))
    return "\n---\n".join(text for text in texts if text) + "\n"


def render_manifest(name: str) -> str:
    """Return the text of a file in `deploy/kubernetes`."""
    return f"# {_HEADINGS[name]}\n# Rendered from deploy/helm.\n---\n{render_chart(MANIFEST_VALUES[name])}"


def main() -> None:
    """Write all manifests."""
    for name in MANIFEST_VALUES:
        (TOP / "deploy" / "kubernetes" / name).write_text(render_manifest(name))


if __name__ == "__main__":
    main()
