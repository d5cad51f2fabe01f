"""``kgserve keys`` and ``audit``: who may do what, and what was refused and administered.

``keys`` works on the data folder's file; a running server notices by itself.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kgserve.cli.options import connect, require_data, server_options, settings_options
from kgserve.cli.terminal import TableColumn, as_json_option, json_option, show_table, told_as_json
from kgserve.platform.permissions import private_files, private_folder
from kgserve.platform.settings import load

if TYPE_CHECKING:
    from kgserve.platform.access.authentication import Key, Role

ROLES = ("read", "write", "admin")
KEY_COLUMNS = tuple(map(TableColumn, ("Key", "Name", "Role", "Stores", "State", "Created", "Expires", "Revoked")))


class ListedKey(msgspec.Struct, frozen=True):
    """What `kgserve keys list --json` says of a key: nothing that opens anything."""

    id: str
    prefix: str
    name: str
    role: str
    stores: tuple[str, ...]
    state: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None


@click.group()
def keys() -> None:
    """Make, list and revoke the keys that a server asks for.

    While a data folder has no key, its server lets in everybody on this machine and listens to nobody else. From the
    first key on everybody needs one, but commands on this machine that can read the data folder.
    """


@keys.command()
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do; each includes the one before.")
@click.option("--name", required=True, metavar="NAME", help="Whose it is, for lists and logs.")
@click.option(
    "--stores",
    default="*",
    show_default=True,
    metavar="NAMES",
    help="The stores that it sees: names and beginnings such as team-*, separated by commas.",
)
@click.option("--expires", metavar="TIME", help="When it ends: 12h, 30d, 6w, 1y.  [default: never]")
@settings_options("data_dir")
@private_files()
def create(role: Role, name: str, stores: str, expires: str | None, data_dir: str | None) -> None:
    """Make a key and print it, this once: only a hash of it is kept."""
    from kgserve.platform.access.authentication import add_key, mint, parse_span

    folder, now = _folder(data_dir), _now()
    until = None if expires is None else now + parse_span(expires)
    key, text = mint(name, role, [part.strip() for part in stores.split(",")], now, until)
    if not folder.is_dir():
        private_folder(folder)
        click.echo(f"made the data folder {folder}", err=True)
    add_key(folder, key)
    _record(folder, "keys create", key)
    click.echo(text)
    click.echo(
        f"This is the key {key.name!r}; it is shown this once. Send it as `Authorization: Bearer …`, "
        "or set KGSERVE_KEY for kgserve's own commands.",
        err=True,
    )


@keys.command("list")
@json_option("Print JSON.")
@settings_options("data_dir")
def list_keys(*, data_dir: str | None) -> None:
    """List all keys, revoked and expired ones as well, without what opens anything."""
    from kgserve.platform.access.authentication import read_keys

    now = _now()
    listed = [_listed(key, now) for key in read_keys(_folder_there(data_dir))]
    if told_as_json(listed):
        return
    show_table(KEY_COLUMNS, [_row(key) for key in listed])


@keys.command()
@click.argument("id_or_name")
@settings_options("data_dir")
@private_files()
def revoke(id_or_name: str, data_dir: str | None) -> None:
    """Have a key open nothing any more, at once. It stays in the list."""
    from kgserve.platform.access.authentication import revoke_key

    folder = _folder_there(data_dir)
    key = revoke_key(folder, id_or_name, _now())
    _record(folder, "keys revoke", key)
    click.echo(f"revoked the key {key.name!r} ({key.prefix}…)", err=True)


def _folder(data_dir: str | None) -> Path:
    return load({"data_dir": data_dir}).data_dir


def _folder_there(data_dir: str | None) -> Path:
    settings = load({"data_dir": data_dir})
    require_data(settings)
    return settings.data_dir


def _now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def _record(folder: Path, act: str, key: Key) -> None:
    from kgserve.platform.access.audit import Audit

    about = f"{key.prefix} {key.name}: {key.role} on {','.join(key.stores)}"
    Audit(folder, rotating=False).administered(act, "done", caller="local", about=about)


def _listed(key: Key, now: int) -> ListedKey:
    from kgserve.platform.times import format_time

    def moment(time_: int | None) -> str | None:
        return None if time_ is None else format_time(time_)

    return ListedKey(
        id=key.id,
        prefix=key.prefix,
        name=key.name,
        role=key.role,
        stores=key.stores,
        state=key.state(now),
        created_at=format_time(key.created_at),
        expires_at=moment(key.expires_at),
        revoked_at=moment(key.revoked_at),
    )


def _row(key: ListedKey) -> tuple[Any, ...]:
    times = (key.created_at, key.expires_at, key.revoked_at)
    return key.prefix, key.name, key.role, ",".join(key.stores), key.state, *((each or "")[:19] for each in times)


AUDIT_COLUMNS = tuple(map(TableColumn, ("Time", "Node", "Caller", "Address", "Act", "Store", "Outcome")))


@click.command()
@click.option("--node", metavar="NODE", help="Only what this node of the cluster wrote.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="So many, the newest.")
@as_json_option
@server_options
def audit(*, node: str | None, limit: int) -> None:
    """Show what was refused, and what was administered, oldest first; in a cluster, at all of its nodes."""
    with connect() as client:
        found = client.audit(node=node, limit=limit)
    if told_as_json(found):
        return
    show_table(
        AUDIT_COLUMNS,
        [
            (each.time, each.node, each.caller, each.address, each.act, each.store or "", each.outcome)
            for each in found.records
        ],
    )
