"""The ``kgserve`` command: subcommands, and the mapping of errors to messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click
from typing_extensions import override

from kgserve import __version__
from kgserve.cli.backup import backup_stores_command, restore_backup_command, verify_backup_command
from kgserve.cli.deploy import deployment_config_command_group
from kgserve.cli.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_WRONG_USAGE
from kgserve.cli.keys import api_key_command_group, show_audit_log_command
from kgserve.cli.mcp import mcp_bridge_command
from kgserve.cli.memory import (
    consolidate_memories_command,
    organize_memories_command,
    recall_memories_command,
    retain_memory_command,
    soft_delete_memories_command,
)
from kgserve.cli.model import embedding_model_command_group
from kgserve.cli.options import format_invalid_input
from kgserve.cli.serve import (
    check_server_health_command,
    cluster_command_group,
    open_explorer_command,
    print_software_versions_command,
    serve_stores_command,
    stop_server_command,
)
from kgserve.cli.shell_and_search import cypher_shell_command, search_nodes_command
from kgserve.cli.stores import (
    check_stores_command,
    create_store_command,
    drop_store_command,
    list_stores_command,
    prune_history_command,
    rebuild_indexes_command,
    show_or_update_store_settings_command,
)
from kgserve.cli.top import show_live_metrics_command
from kgserve.cli.transfer import export_store_command, import_files_command
from kgserve.errors import InvalidInput, KgserveError

COMMAND_GROUPS = {
    "Server": (
        serve_stores_command,
        stop_server_command,
        check_server_health_command,
        show_live_metrics_command,
        api_key_command_group,
        show_audit_log_command,
        cluster_command_group,
        deployment_config_command_group,
        print_software_versions_command,
    ),
    "Stores": (
        list_stores_command,
        create_store_command,
        show_or_update_store_settings_command,
        drop_store_command,
        rebuild_indexes_command,
        prune_history_command,
    ),
    "Data": (
        import_files_command,
        export_store_command,
        search_nodes_command,
        cypher_shell_command,
        open_explorer_command,
    ),
    "Memories": (
        retain_memory_command,
        recall_memories_command,
        organize_memories_command,
        soft_delete_memories_command,
        consolidate_memories_command,
    ),
    "Backups": (backup_stores_command, verify_backup_command, restore_backup_command, check_stores_command),
    "Editors and models": (mcp_bridge_command, embedding_model_command_group),
}
"""All commands by the heading under which the help lists them."""


class _SectionedGroup(click.Group):
    """Command group whose help lists commands under headings."""

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, self.list_commands(ctx)))
        for heading, commands in COMMAND_GROUPS.items():
            with formatter.section(heading):
                limit = formatter.width - widest - 6
                rows = [(f"{each.name or '':{widest}}", each.get_short_help_str(limit)) for each in commands]
                formatter.write_dl(rows)


@click.group("kgserve", cls=_SectionedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def kgserve_root_command() -> None:
    """Serve many small knowledge graphs from one process."""


for _commands in COMMAND_GROUPS.values():
    for _command in _commands:
        kgserve_root_command.add_command(_command)


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
