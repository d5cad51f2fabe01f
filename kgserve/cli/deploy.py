"""``kgserve deploy``: configuration files for running a server with systemd, nginx, Caddy, NATS and others."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from kgserve.cli.terminal import TerminalTableColumn, print_table_or_tsv
from kgserve.platform.shipped_files import locate_shipped_file

SHIPPED_FILE_COLUMNS = (
    TerminalTableColumn("Topic"),
    TerminalTableColumn("File"),
    TerminalTableColumn("Destination"),
    TerminalTableColumn("Description"),
)


class DeploymentConfigFile(NamedTuple):
    """Configuration file for deployment: its path in the repository, its usual destination, and a summary.

    ``folder`` is the subfolder in which its topic needs it.
    """

    path: str
    target: str
    summary: str
    folder: str = ""

    @property
    def name(self) -> str:
        """File name without folder."""
        return self.path.rpartition("/")[2]

    def text(self) -> str:
        """Return the file's contents."""
        return locate_shipped_file(self.path).read_text("utf-8")


_SYSTEMD_UNIT_DIR = "/etc/systemd/system/"
_NATS_CONFIG_FILE = DeploymentConfigFile(
    "deploy/nats/kgserve-nats.conf", "/etc/nats/", "a NATS server that replicates the journals"
)
_NATS_TLS_FILE = DeploymentConfigFile(
    "deploy/nats/kgserve-nats-tls.conf", "/etc/nats/", "TLS between the servers and for kgserve"
)
_CHART_FOLDER = "a folder of its own"
SHIPPED_FILES = {
    "systemd": (
        DeploymentConfigFile(
            "deploy/systemd/kgserve.service", _SYSTEMD_UNIT_DIR, "the server, sandboxed, with its own user"
        ),
        DeploymentConfigFile("deploy/systemd/kgserve.env", "/etc/kgserve/", "its settings"),
        DeploymentConfigFile("deploy/systemd/kgserve.sysusers.conf", "/etc/sysusers.d/kgserve.conf", "its user"),
        DeploymentConfigFile("deploy/systemd/kgserve-backup.service", _SYSTEMD_UNIT_DIR, "a backup of all stores"),
        DeploymentConfigFile(
            "deploy/systemd/kgserve-backup.timer", _SYSTEMD_UNIT_DIR, "the schedule of the backup: every night"
        ),
        DeploymentConfigFile(
            "deploy/systemd/kgserve-replicate.service", _SYSTEMD_UNIT_DIR, "continuous replication to a target"
        ),
    ),
    "nginx": (DeploymentConfigFile("deploy/nginx/kgserve.conf", "/etc/nginx/conf.d/", "a proxy with TLS"),),
    "caddy": (
        DeploymentConfigFile("deploy/caddy/Caddyfile", "/etc/caddy/", "a proxy with TLS that gets its certificate"),
    ),
    "grafana": (DeploymentConfigFile("deploy/grafana/kgserve.json", "Grafana's import", "a dashboard"),),
    "alerts": (
        DeploymentConfigFile("deploy/prometheus/alerts.yml", "/etc/prometheus/", "alerts, with what to do about each"),
    ),
    "compose": (DeploymentConfigFile("deploy/compose/compose.yaml", "a folder of its own", "a container with limits"),),
    "compose-cluster": (
        DeploymentConfigFile(
            "deploy/compose-cluster/compose.yaml", "a folder of its own", "containers for a machine of a cluster"
        ),
        DeploymentConfigFile(
            "deploy/compose-cluster/node.env", "the same folder", "settings that differ between the machines"
        ),
        _NATS_CONFIG_FILE,
        _NATS_TLS_FILE,
    ),
    "kubernetes": (
        DeploymentConfigFile(
            "deploy/kubernetes/kgserve.yaml", "kubectl apply", "a server with a volume, probes and a disruption budget"
        ),
        DeploymentConfigFile("deploy/kubernetes/kgserve-cluster.yaml", "kubectl apply", "three nodes of a cluster"),
    ),
    "helm": (
        DeploymentConfigFile("deploy/helm/values.yaml", _CHART_FOLDER, "values of the chart"),
        DeploymentConfigFile("deploy/helm/Chart.yaml", _CHART_FOLDER, "the chart's description"),
        *(
            DeploymentConfigFile(f"deploy/helm/templates/{name}", f"{_CHART_FOLDER}: templates/", summary, "templates")
            for name, summary in (
                ("_labels.tpl", "labels of all objects"),
                ("statefulset.yaml", "servers with their volumes and probes"),
                ("service.yaml", "the addresses of all servers and of each"),
                ("poddisruptionbudget.yaml", "one server is stopped at a time"),
                ("ingress.yaml", "an optional proxy"),
            )
        ),
    ),
    "nats": (
        _NATS_CONFIG_FILE,
        _NATS_TLS_FILE,
        DeploymentConfigFile("deploy/nats/kgserve-nats.env", "/etc/nats/", "settings that differ between the servers"),
        DeploymentConfigFile(
            "deploy/nats/kgserve-nats.service", _SYSTEMD_UNIT_DIR, "the server, sandboxed, with its own user"
        ),
    ),
}
"""Shipped files by topic; the first file of each topic is its main file."""


@click.group("deploy")
def deployment_config_command_group() -> None:
    """Print configuration files for programs that run, monitor or proxy a server."""


@deployment_config_command_group.command("list")
def list_deployment_configs_command() -> None:
    """List all files and where each belongs."""
    rows = [(what, each.name, each.target, each.summary) for what, found in SHIPPED_FILES.items() for each in found]
    print_table_or_tsv(SHIPPED_FILE_COLUMNS, rows)


@deployment_config_command_group.command("print")
@click.argument("what", type=click.Choice([*SHIPPED_FILES]))
@click.argument("file", required=False)
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Write all files of WHAT to this folder.")
def print_deployment_config_command(what: str, *, file: str | None, to: Path | None) -> None:
    """Print a file of WHAT: the main one, or FILE.

    With --to, write all files of WHAT into a folder instead. Existing files are not overwritten.
    """
    if to is None:
        click.echo(_named(what, file).text(), nl=False)
        return
    if file is not None:
        raise click.UsageError("--to writes all files; omit FILE.")
    targets = {to / each.folder / each.name: each for each in SHIPPED_FILES[what]}
    if existing := [str(path) for path in targets if path.exists()]:
        raise click.ClickException(f"files already exist: {', '.join(existing)}. Nothing was written.")
    to.mkdir(parents=True, exist_ok=True)
    for path, each in targets.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(each.text(), "utf-8")
        click.echo(str(path))


def _named(what: str, file: str | None) -> DeploymentConfigFile:
    found = {each.name: each for each in SHIPPED_FILES[what]}
    if file is not None and file not in found:
        raise click.UsageError(f"{what} has no file {file!r}. Files of {what}: {', '.join(found)}.")
    return found[file] if file is not None else SHIPPED_FILES[what][0]
