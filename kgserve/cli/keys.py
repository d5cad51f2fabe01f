"""``kgserve keys`` and ``kgserve audit``: API keys, and the audit log.

``keys`` edits the data folder's key file; a running server detects the change automatically.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kgserve.cli.options import add_server_options, add_setting_options, open_server_client, require_data_folder
from kgserve.cli.terminal import (
    TerminalTableColumn,
    as_json_option,
    make_json_option,
    print_json_if_requested,
    print_table_or_tsv,
)
from kgserve.platform.file_permissions import create_private_folder, private_umask
from kgserve.platform.settings import load_settings

if TYPE_CHECKING:
    from kgserve.platform.access.authentication import ApiKey, Role

ROLES = ("read", "write", "admin")
KEY_COLUMNS = tuple(
    map(TerminalTableColumn, ("Key", "Name", "Role", "Stores", "State", "Created", "Expires", "Revoked"))
)


class ApiKeyListEntry(msgspec.Struct, frozen=True):
    """An API key as printed by `kgserve keys list --json`, without the secret."""

    id: str
    prefix: str
    name: str
    role: str
    stores: tuple[str, ...]
    state: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None


@click.group("keys")
def api_key_command_group() -> None:
    """Create, list and revoke API keys.

    While a data folder has no key, its server accepts connections from this machine only, without authentication. Once
    a key exists, every caller needs one, except commands on this machine that can read the data folder.
    """


@api_key_command_group.command("create")
@click.option("--role", type=click.Choice(ROLES), required=True, help="Role; each includes the previous ones.")
@click.option("--name", required=True, metavar="NAME", help="Owner of the key, shown in lists and logs.")
@click.option(
    "--stores",
    default="*",
    show_default=True,
    metavar="NAMES",
    help="Stores that the key can access: names, or prefixes such as team-*, separated by commas.",
)
@click.option("--expires", metavar="TIME", help="Lifetime of the key: 12h, 30d, 6w, 1y.  [default: never]")
@add_setting_options("data_dir")
@private_umask()
def create_api_key_command(role: Role, name: str, stores: str, expires: str | None, data_dir: str | None) -> None:
    """Create a key and print it. It cannot be shown again: only its hash is stored."""
    from kgserve.platform.access.authentication import add_api_key, create_api_key, parse_api_key_lifetime

    folder, now = _folder(data_dir), _now()
    until = None if expires is None else now + parse_api_key_lifetime(expires)
    key, text = create_api_key(name, role, [part.strip() for part in stores.split(",")], now, until)
    if not folder.is_dir():
        create_private_folder(folder)
        click.echo(f"created the data folder {folder}", err=True)
    add_api_key(folder, key)
    _record(folder, "keys create", key)
    click.echo(text)
    click.echo(
        f"This is the key {key.name!r}; it cannot be shown again. Send it as `Authorization: Bearer …`, "
        "or set KGSERVE_KEY for kgserve's own commands.",
        err=True,
    )


@api_key_command_group.command("list")
@make_json_option("Print JSON.")
@add_setting_options("data_dir")
def list_api_keys_command(*, data_dir: str | None) -> None:
    """List all keys, including revoked and expired ones, without their secrets."""
    from kgserve.platform.access.authentication import read_api_keys

    now = _now()
    listed = [_listed(key, now) for key in read_api_keys(_folder_there(data_dir))]
    if print_json_if_requested(listed):
        return
    print_table_or_tsv(KEY_COLUMNS, [_row(key) for key in listed])


@api_key_command_group.command("revoke")
@click.argument("id_or_name")
@add_setting_options("data_dir")
@private_umask()
def revoke_api_key_command(id_or_name: str, data_dir: str | None) -> None:
    """Revoke a key with immediate effect. It remains in the list."""
    from kgserve.platform.access.authentication import revoke_api_key

    folder = _folder_there(data_dir)
    key = revoke_api_key(folder, id_or_name, _now())
    _record(folder, "keys revoke", key)
    click.echo(f"revoked the key {key.name!r} ({key.prefix}…)", err=True)


def _folder(data_dir: str | None) -> Path:
    return load_settings({"data_dir": data_dir}).data_dir


def _folder_there(data_dir: str | None) -> Path:
    settings = load_settings({"data_dir": data_dir})
    require_data_folder(settings)
    return settings.data_dir


def _now() -> int:
    """Return the current time in microseconds since 1970."""
    return time.time_ns() // 1000


def _record(folder: Path, act: str, key: ApiKey) -> None:
    from kgserve.platform.access.audit import AuditLog

    about = f"{key.prefix} {key.name}: {key.role} on {','.join(key.stores)}"
    AuditLog(folder, rotating=False).record_admin_action(act, "done", caller="local", about=about)


def _listed(key: ApiKey, now: int) -> ApiKeyListEntry:
    from kgserve.platform.timestamps import format_rfc3339_timestamp

    def moment(time_: int | None) -> str | None:
        return None if time_ is None else format_rfc3339_timestamp(time_)

    return ApiKeyListEntry(
        id=key.id,
        prefix=key.prefix,
        name=key.name,
        role=key.role,
        stores=key.stores,
        state=key.state(now),
        created_at=format_rfc3339_timestamp(key.created_at),
        expires_at=moment(key.expires_at),
        revoked_at=moment(key.revoked_at),
    )


def _row(key: ApiKeyListEntry) -> tuple[Any, ...]:
    times = (key.created_at, key.expires_at, key.revoked_at)
    return key.prefix, key.name, key.role, ",".join(key.stores), key.state, *((each or "")[:19] for each in times)


AUDIT_COLUMNS = tuple(map(TerminalTableColumn, ("Time", "Node", "Caller", "Address", "Act", "Store", "Outcome")))


@click.command("audit")
@click.option("--node", metavar="NODE", help="Only records of this node of the cluster.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Number of newest records.",
)
@as_json_option
@add_server_options
def show_audit_log_command(*, node: str | None, limit: int) -> None:
    """Show rejected requests and administrative actions, oldest first, from all nodes of a cluster."""
    with open_server_client() as client:
        found = client.audit(node=node, limit=limit)
    if print_json_if_requested(found):
        return
    print_table_or_tsv(
        AUDIT_COLUMNS,
        [
            (each.time, each.node, each.caller, each.address, each.act, each.store or "", each.outcome)
            for each in found.records
        ],
    )
