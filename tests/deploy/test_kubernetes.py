"""The Helm chart and the manifests: they render, and fit the schemas of Kubernetes and the program's settings."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python.chart import lint
from helm_python.errors import HelmRenderError

from kgserve.platform.settings import load_settings
from scripts.kubernetes_manifests import CHART, CLUSTER_VALUES, MANIFEST_VALUES, render_chart, render_manifest
from tests.project.reading import TOP
from tests.project.test_deploy import CONTAINER_USER, SETTINGS, variables

KUBERNETES = ("1.27", "1.37")
INGRESS: dict[str, Any] = {
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "tlsSecret": "kgserve-tls",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "0"},
    },
    "volume": {"storageClass": "fast"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "graphs", "operator": "Exists"}],
}


def rendered(values: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects of the chart by kind and name."""
    documents = [each for each in yaml.safe_load_all(render_chart(values)) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def pod(values: dict[str, Any]) -> dict[str, Any]:
    return rendered(values)["StatefulSet", "kgserve"]["spec"]["template"]["spec"]


def test_the_chart_has_no_lint_errors() -> None:
    found = lint(CHART, strict=True)
    assert found["errors"] == []


@pytest.mark.parametrize("values", [{}, CLUSTER_VALUES, INGRESS])
def test_every_object_fits_the_schemas_of_kubernetes(values: dict[str, Any]) -> None:
    objects = rendered(values)
    assert {kind for kind, _ in objects} >= {"StatefulSet", "Service", "PodDisruptionBudget"}
    assert (("Ingress", "kgserve") in objects) == ("ingress" in values)
    for each in objects.values():
        for release in KUBERNETES:
            kubernetes_validate.validate(each, release, strict=True)


@pytest.mark.parametrize("name", MANIFEST_VALUES)
def test_manifests_are_rendered_from_the_chart(name: str) -> None:
    found = (TOP / "deploy" / "kubernetes" / name).read_text()
    assert found == render_manifest(name), "run python -m scripts.kubernetes_manifests"


@pytest.mark.parametrize("values", MANIFEST_VALUES.values())
def test_the_pod_fits_the_image_and_the_settings(values: dict[str, Any]) -> None:
    spec = pod(values)
    (container,) = spec["containers"]
    given = {each["name"]: each.get("value", "") for each in container["env"]}
    assert set(given) <= SETTINGS
    settings = load_settings({}, variables() | {name: value for name, value in given.items() if value})
    assert container["ports"][0]["containerPort"] == settings.port
    assert spec["terminationGracePeriodSeconds"] > settings.shutdown_grace
    assert str(spec["securityContext"]["runAsUser"]) == CONTAINER_USER
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert str(settings.data_dir.parent) in mounts
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}


def test_nodes_of_a_cluster_name_themselves_and_their_servers() -> None:
    (container,) = pod(CLUSTER_VALUES)["containers"]
    env = {each["name"]: each for each in container["env"]}
    service = rendered(CLUSTER_VALUES)["Service", "kgserve-nodes"]["spec"]
    assert service["publishNotReadyAddresses"] is True
    assert env["KGSERVE_ADVERTISE_URL"]["value"] == "http://$(KGSERVE_NODE_NAME).kgserve-nodes:8080"
    assert env["KGSERVE_CLUSTER"]["valueFrom"]["secretKeyRef"] == {"name": "kgserve-cluster", "key": "servers"}
    names = [each["name"] for each in container["env"]]
    assert names.index("KGSERVE_NODE_NAME") < names.index("KGSERVE_ADVERTISE_URL"), "variables refer to earlier ones"


def test_several_servers_without_a_cluster_are_refused() -> None:
    with pytest.raises(HelmRenderError, match=r"replicas above 1 need cluster\.secret"):
        render_chart({"replicas": 2})
