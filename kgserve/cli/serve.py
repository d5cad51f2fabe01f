"""``kgserve serve``, ``stop``, ``health``, ``version``, ``open`` and ``cluster``: servers and cluster nodes."""

from __future__ import annotations

import gc
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from kgserve import __version__
from kgserve.cli.options import (
    ServerUnreachable,
    add_server_options,
    add_setting_options,
    get_connected_server_url,
    open_server_client,
)
from kgserve.cli.terminal import TerminalTableColumn, as_json_option, print_json_if_requested, print_table_or_tsv
from kgserve.platform.file_permissions import private_umask
from kgserve.platform.settings import load_settings
from kgserve.platform.supported_platforms import describe_unsupported_platform

if TYPE_CHECKING:
    from kgserve.client import Client


@click.command("serve")
@add_setting_options()
@private_umask()
def serve_stores_command(**values: Any) -> int:
    """Serve the stores of a data folder over REST and MCP until stopped."""
    return serve_stores(values)


def serve_stores(values: Mapping[str, Any]) -> int:
    """Run a server with the given options until it is stopped; return the exit code."""
    if reason := describe_unsupported_platform():
        raise click.ClickException(reason)
    settings = load_settings(values)
    from kgserve.platform import malloc_control, startup_imports

    malloc_control.limit_malloc_arenas()
    gc.disable()  # until it listens: collecting garbage among imported modules takes a sixth of the startup time
    try:
        startup_imports.avoid_rich_and_numpy_threads_at_import()
        startup_imports.import_httpx_without_its_command()
        from kgserve.server import app

        return app.run_server(settings)
    finally:
        gc.enable()


@click.command("stop")
@add_setting_options("data_dir")
@click.option("--force", is_flag=True, help="Kill the server without a clean shutdown. Acknowledged writes are kept.")
def stop_server_command(*, data_dir: str | None, force: bool) -> None:
    """Stop the server of a data folder, and wait until the folder is unlocked.

    Exit codes: 0 if a server was stopped, 1 if it does not exit, 3 if none was running.
    """
    from kgserve.platform import server_discovery

    folder = server_discovery.resolve_data_folder(data_dir)
    try:
        stopped = server_discovery.stop_server(folder, force=force)
    except server_discovery.ServerStopFailed as error:
        raise click.ClickException(str(error)) from None
    if stopped is None:
        raise ServerUnreachable(f"no server is running for {folder}; nothing to stop")
    click.echo(f"{'killed' if force else 'stopped'} the server at {stopped.url} (process {stopped.pid}) of {folder}")


@click.command("health")
@click.option("--ready", is_flag=True, help="Also check that stores can be opened and written.")
@add_server_options
def check_server_health_command(*, ready: bool) -> None:
    """Check whether a server is alive. For containers and supervisors.

    Exit codes: 0 if it is, 1 if it is not ready, 3 if none answers.
    """
    with open_server_client() as client:
        client.ready() if ready else client.health()
    click.echo(f"{get_connected_server_url(client)} is {'ready' if ready else 'alive'}")


@click.command("version")
def print_software_versions_command() -> None:
    """Print the versions of kgserve, its engines and Python."""
    from contextlib import suppress
    from importlib import metadata

    click.echo(f"kgserve {__version__}")
    for engine in ("kuzu", "ladybug"):
        with suppress(metadata.PackageNotFoundError):
            click.echo(f"{engine} {metadata.version(engine)}")
    click.echo(f"Python {platform.python_version()}")


@click.command("open")
@click.argument("store", required=False)
@click.option("--write", is_flag=True, help="Allow the page to write, if the server requires keys.")
@click.option("--print", "only_print", is_flag=True, help="Print the address without opening it.")
@add_server_options
def open_explorer_command(*, store: str | None, write: bool, only_print: bool) -> None:
    """Open the explorer in a browser, at STORE if given, and print its address.

    If the server requires keys, it creates one for the page and adds it to the address. The key allows reading, or
    writing with --write, for 12 hours or until the server stops. Anyone with the address has the same access.
    """
    with open_server_client() as client:
        if store is not None:
            client.store(store).settings()
        key = None if client.whoami().open else _key(client, write=write)
        address = f"{get_connected_server_url(client)}/{_fragment(store, key)}"
    click.echo(address)
    if not only_print:
        import webbrowser

        if not webbrowser.open(address):
            click.echo("no browser could be started; open the address manually", err=True)


def _key(client: Client, *, write: bool) -> str | None:
    from kgserve.errors import Forbidden

    try:
        return client.browser_key("write" if write else "read").key
    except Forbidden:
        click.echo("creating a key for the page requires the role admin; enter your own key in the page", err=True)
        return None


def _fragment(store: str | None, key: str | None) -> str:
    """Return the URL fragment with store and key.

    Browsers do not send it to servers; the page removes the key at once.
    """
    from urllib.parse import quote

    if store is None and key is None:
        return ""
    return f"#/{quote(store or '', safe='')}" + (f"?key={key}" if key else "")


CLUSTER_NODE_COLUMNS = (
    TerminalTableColumn("Node"),
    TerminalTableColumn("Address"),
    TerminalTableColumn("State"),
    TerminalTableColumn("Stores", "number"),
)


@click.group("cluster")
def cluster_command_group() -> None:
    """List the nodes of a cluster, move stores between them, and repair logs."""


@cluster_command_group.command("status")
@as_json_option
@add_server_options
def show_cluster_status_command() -> None:
    """List the nodes, whether they are alive, and the number of stores that each serves or would serve.

    Exit codes: 0 if all are alive, 1 if not, 3 if no server answers.
    """
    with open_server_client() as client:
        found = client.cluster()
    if not print_json_if_requested(found):
        print_table_or_tsv(
            CLUSTER_NODE_COLUMNS, [(each.name, each.url, each.state, each.stores) for each in found.nodes]
        )
        if found.silent:
            click.echo(f"{found.node} is disconnected from the NATS servers of the cluster", err=True)
    if found.silent or any(each.state != "alive" for each in found.nodes):
        raise click.exceptions.Exit(1)


@cluster_command_group.command("move")
@click.argument("store")
@click.argument("node")
@add_server_options
def move_store_command(store: str, node: str) -> None:
    """Move STORE to NODE, and wait until NODE has opened it. Requests to STORE wait meanwhile.

    The exit code is 1, with the reason, if NODE has not opened STORE within 30 seconds. NODE owns STORE in that case
    too.
    """
    with open_server_client() as client:
        moved = client.store(store).move(node)
    click.echo(f"{moved.store} is served by {moved.node}, at {moved.url}")
    if not moved.opened:
        click.echo(moved.reason, err=True)
        raise click.exceptions.Exit(1)


@cluster_command_group.command("drain")
@click.option("--undo", is_flag=True, help="Let the node own stores again.")
@add_server_options
def drain_cluster_node_command(*, undo: bool) -> None:
    """Move all stores of the connected node to other nodes. It accepts no stores until --undo or its next start.

    The exit code is 1 if stores could not be moved, or were not opened by their new nodes within 30 seconds. Those are
    listed with the reason.
    """
    with open_server_client() as client:
        found = client.drain(undo=undo)
    click.echo(
        f"{found.node} accepts stores again"
        if undo
        else f"{found.node}: {found.moved} stores were moved to other nodes"
    )
    for store, reason in found.failed.items():
        click.echo(f"{store} was not moved: {reason}", err=True)
    for store, reason in found.unopened.items():
        click.echo(f"{store} was moved, but not opened: {reason}", err=True)
    if found.failed or found.unopened:
        raise click.exceptions.Exit(1)


@cluster_command_group.command("repair")
@click.argument("store")
@add_server_options
def rebuild_replicated_log_command(store: str) -> None:
    """Rebuild the log of STORE from the files of the connected node, after the log has lost data.

    Run it on the node that served the store last: a node whose files are incomplete refuses.
    """
    with open_server_client() as client:
        done = client.store(store).repair()
    matching = f"{done.found} frames of its log were left and match the files of {done.node}"
    click.echo(f"{done.store} is served by {done.node} up to sequence {done.sequence}; {matching}")


@cluster_command_group.command("finish-upgrade")
@add_server_options
def finish_cluster_upgrade_command() -> None:
    """Switch all nodes to the newest format, once each runs the new version. Older versions can no longer join."""
    with open_server_client() as client:
        done = client.finish_upgrade()
    click.echo(f"the cluster writes format {done.format}")
