"""``kgserve deploy``: the files that put a server into service, for other programs to read."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from kgserve.cli.terminal import TableColumn, show_table
from kgserve.platform.resources import shipped

SHIPPED_FILE_COLUMNS = (TableColumn("What"), TableColumn("File"), TableColumn("Where to"), TableColumn("What it is"))


class Shipped(NamedTuple):
    """A file: its path in the repository, where it usually goes, and what it is."""

    path: str
    target: str
    summary: str

    @property
    def name(self) -> str:
        """Its own."""
        return self.path.rpartition("/")[2]

    def text(self) -> str:
        """Its text."""
        return shipped(self.path).read_text("utf-8")


_SYSTEMD_UNIT_DIR = "/etc/systemd/system/"
_NATS_CONFIG_FILE = Shipped("deploy/nats/kgserve-nats.conf", "/etc/nats/", "a server of replicated journals")
SHIPPED_FILES = {
    "systemd": (
        Shipped("deploy/systemd/kgserve.service", _SYSTEMD_UNIT_DIR, "the server, with a user of its own and confined"),
        Shipped("deploy/systemd/kgserve.env", "/etc/kgserve/", "its settings"),
        Shipped("deploy/systemd/kgserve.sysusers.conf", "/etc/sysusers.d/kgserve.conf", "its user"),
        Shipped("deploy/systemd/kgserve-backup.service", _SYSTEMD_UNIT_DIR, "a backup of all stores"),
        Shipped("deploy/systemd/kgserve-backup.timer", _SYSTEMD_UNIT_DIR, "every night"),
    ),
    "nginx": (Shipped("deploy/nginx/kgserve.conf", "/etc/nginx/conf.d/", "a proxy with TLS"),),
    "caddy": (Shipped("deploy/caddy/Caddyfile", "/etc/caddy/", "a proxy with TLS that gets its certificate"),),
    "grafana": (Shipped("deploy/grafana/kgserve.json", "Grafana's import", "a dashboard"),),
    "alerts": (Shipped("deploy/prometheus/alerts.yml", "/etc/prometheus/", "alerts, with what to do about each"),),
    "compose": (Shipped("deploy/compose/compose.yaml", "a folder of its own", "a container with limits"),),
    "compose-cluster": (
        Shipped("deploy/compose-cluster/compose.yaml", "a folder of its own", "containers for a machine of a cluster"),
        Shipped("deploy/compose-cluster/node.env", "beside it", "what differs between the machines"),
        _NATS_CONFIG_FILE,
    ),
    "nats": (
        _NATS_CONFIG_FILE,
        Shipped("deploy/nats/kgserve-nats.env", "/etc/nats/", "what differs between the servers"),
        Shipped(
            "deploy/nats/kgserve-nats.service", _SYSTEMD_UNIT_DIR, "the server, with a user of its own and confined"
        ),
    ),
}
"""What there is, by the name that asks for it; of several files the first is the main one."""


@click.group()
def deploy() -> None:
    """Print what other programs need to run, watch or stand before a server."""


@deploy.command("list")
def list_() -> None:
    """List all files that there are, and where each belongs."""
    rows = [(what, each.name, each.target, each.summary) for what, found in SHIPPED_FILES.items() for each in found]
    show_table(SHIPPED_FILE_COLUMNS, rows)


@deploy.command("print")
@click.argument("what", type=click.Choice([*SHIPPED_FILES]))
@click.argument("file", required=False)
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Write all of its files into this folder.")
def print_(what: str, *, file: str | None, to: Path | None) -> None:
    """Print one of WHAT's files: the main one, or FILE.

    With --to all of them are written into a folder, where none of them may be yet.
    """
    if to is None:
        click.echo(_named(what, file).text(), nl=False)
        return
    if file is not None:
        raise click.UsageError("--to writes all files; leave out FILE")
    targets = {to / each.name: each for each in SHIPPED_FILES[what]}
    if there := [str(path) for path in targets if path.exists()]:
        raise click.ClickException(f"nothing is written over: {', '.join(there)}")
    to.mkdir(parents=True, exist_ok=True)
    for path, each in targets.items():
        path.write_text(each.text(), "utf-8")
        click.echo(str(path))


def _named(what: str, file: str | None) -> Shipped:
    found = {each.name: each for each in SHIPPED_FILES[what]}
    if file is not None and file not in found:
        raise click.UsageError(f"{what} has no file {file!r}; there are {', '.join(found)}")
    return found[file] if file is not None else SHIPPED_FILES[what][0]
