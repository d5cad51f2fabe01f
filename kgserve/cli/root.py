"""The ``kgserve`` command: subcommands, and the mapping of errors to messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import NamedTuple, NoReturn

import click
from typing_extensions import override

from kgserve import __version__
from kgserve.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_WRONG_USAGE


class CommandEntry(NamedTuple):
    """A command in the help, and the module and variable that define it."""

    summary: str
    module: str
    variable: str

    def import_command(self) -> click.Command:
        """Return the command."""
        found: click.Command = getattr(import_module(f"kgserve.cli.{self.module}"), self.variable)
        return found


COMMAND_GROUPS: Mapping[str, Mapping[str, CommandEntry]] = {
    "Server": {
        "serve": CommandEntry("Serve a data folder over REST and MCP until stopped.", "serve", "serve_stores_command"),
        "stop": CommandEntry("Stop the server of a data folder.", "serve", "stop_server_command"),
        "health": CommandEntry("Check whether a server is alive.", "serve", "check_server_health_command"),
        "top": CommandEntry("Show rates, latency and memory of a server.", "top", "show_live_metrics_command"),
        "keys": CommandEntry("Create, list and revoke API keys.", "keys", "api_key_command_group"),
        "audit": CommandEntry("Show rejected requests and admin actions.", "keys", "show_audit_log_command"),
        "cluster": CommandEntry("Show nodes, move stores, repair logs.", "serve", "cluster_command_group"),
        "deploy": CommandEntry(
            "Print files for programs that run or monitor it.", "deploy", "deployment_config_command_group"
        ),
        "version": CommandEntry(
            "Print versions of kgserve, engines and Python.", "serve", "print_software_versions_command"
        ),
    },
    "Stores": {
        "stores": CommandEntry("List stores with counts and sizes on disk.", "stores", "list_stores_command"),
        "create": CommandEntry("Create an empty store, with settings.", "stores", "create_store_command"),
        "settings": CommandEntry(
            "Show or change the settings of a store.", "stores", "show_or_update_store_settings_command"
        ),
        "drop": CommandEntry("Permanently delete a store.", "stores", "drop_store_command"),
        "reindex": CommandEntry("Rebuild both search indexes of a store.", "stores", "rebuild_indexes_command"),
        "prune-history": CommandEntry("Permanently delete previous states.", "stores", "prune_history_command"),
    },
    "Data": {
        "import": CommandEntry("Import files, or standard input.", "transfer", "import_files_command"),
        "export": CommandEntry("Export a consistent snapshot of a store.", "transfer", "export_store_command"),
        "search": CommandEntry(
            "Find nodes by words, meaning and relations.", "shell_and_search", "search_nodes_command"
        ),
        "shell": CommandEntry("Query a store in Cypher.", "shell_and_search", "cypher_shell_command"),
        "open": CommandEntry("Open the explorer in a browser.", "serve", "open_explorer_command"),
    },
    "Memories": {
        "retain": CommandEntry("Store a memory.", "memory", "retain_memory_command"),
        "recall": CommandEntry("Show memories about a question.", "memory", "recall_memories_command"),
        "reflect": CommandEntry("Merge duplicates and assign concepts.", "memory", "organize_memories_command"),
        "forget": CommandEntry("Soft-delete memories.", "memory", "soft_delete_memories_command"),
        "consolidate": CommandEntry("Merge memories of the same fact.", "memory", "consolidate_memories_command"),
    },
    "Backups": {
        "backup": CommandEntry("Back up stores incrementally.", "backup", "backup_stores_command"),
        "verify": CommandEntry("Check a backup or replication target.", "backup", "verify_backup_command"),
        "restore": CommandEntry("Restore stores of a backup.", "backup", "restore_backup_command"),
        "doctor": CommandEntry("Check and repair files while no server runs.", "stores", "check_stores_command"),
    },
    "Replication": {
        "replicate": CommandEntry("Ship stores to a target until stopped.", "replication", "replicate_stores_command"),
        "follow": CommandEntry("Serve a read-only copy of a target.", "replication", "follow_target_command"),
        "promote": CommandEntry("Make a stopped follower writable.", "replication", "promote_follower_command"),
    },
    "Editors and models": {
        "mcp": CommandEntry("Connect an editor to a server by MCP.", "mcp", "mcp_bridge_command"),
        "model": CommandEntry("Prepare, fetch and list embedding models.", "model", "embedding_model_command_group"),
    },
}
"""All commands by the heading under which the help lists them. The help imports none of their modules."""


class _ImportedCommands(MutableMapping[str, click.Command]):
    """Commands by name, each imported at its first use."""

    def __init__(self, entries: Mapping[str, CommandEntry]) -> None:
        self._commands: dict[str, CommandEntry | click.Command] = {**entries}

    @override
    def __getitem__(self, name: str) -> click.Command:
        found = self._commands[name]
        if isinstance(found, CommandEntry):
            found = self._commands[name] = found.import_command()
        return found

    @override
    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    @override
    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    @override
    def __len__(self) -> int:
        return len(self._commands)


class _SectionedGroup(click.Group):
    """Command group whose help lists commands under headings."""

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, self.commands))
        for heading, entries in COMMAND_GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{widest}}", entry.summary) for name, entry in entries.items()])


@click.group(
    "kgserve",
    cls=_SectionedGroup,
    commands=_ImportedCommands({name: entry for entries in COMMAND_GROUPS.values() for name, entry in entries.items()}),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def kgserve_root_command() -> None:
    """Serve many small knowledge graphs from one process."""


def run_command_line(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's arguments) and return its exit code."""
    try:
        code: object = kgserve_root_command.main(args=arguments, prog_name="kgserve", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.UsageError as error:
        error.show()
        return EXIT_WRONG_USAGE
    except BrokenPipeError:
        _discard_standard_output()
        return EXIT_FAILED
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - outermost frame: every error must become a message
        message, code = _outcome(error)
        click.echo(f"kgserve: {message}", err=True)
        return code


def main() -> NoReturn:
    """Entry point of the console script."""
    sys.exit(run_command_line())


def _outcome(error: BaseException) -> tuple[str, int]:
    """Return the message for the user and the exit code.

    With ``python -X dev``, unexpected errors are raised instead.
    """
    from kgserve.cli.options import format_invalid_input
    from kgserve.errors import InvalidInput, KgserveError

    match error:
        case click.ClickException():
            return error.format_message(), error.exit_code
        case click.Abort() | KeyboardInterrupt():
            return "interrupted", EXIT_INTERRUPTED
        case InvalidInput():
            return format_invalid_input(error), EXIT_WRONG_USAGE
        case KgserveError():
            return error.message, EXIT_FAILED
        case OSError():
            return _os_error_sentence(error), EXIT_FAILED
        case _ if sys.flags.dev_mode:
            raise error
        case _:
            defect = f"{type(error).__name__}: {error}"
            return (
                f"internal error in kgserve ({defect}); run `python -X dev -m kgserve …` for the traceback",
                EXIT_FAILED,
            )


def _os_error_sentence(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _discard_standard_output() -> None:
    """Redirect standard output to the null device: the reader has exited, and the interpreter flushes again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
