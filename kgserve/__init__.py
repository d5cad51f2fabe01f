"""Many small knowledge graphs, served from one process; or opened in a program of your own with `open`."""

from __future__ import annotations

from kgserve.platform.version import __version__ as __version__

# As typing's constant: the editors' bridge starts with this module, and does without typing until it needs it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Literal

    from kgserve.client.embedded import Library
    from kgserve.platform.settings import Indexed
    from kgserve.syncing import BatchSyncer, VectorSyncer


def open(  # noqa: A001 - called as kgserve.open
    path: str | os.PathLike[str],
    *,
    history: bool = True,
    indexes: Indexed | bool = True,
    models_dir: str | os.PathLike[str] | None = None,
    embedding_provider: Literal["local", "openai", "hashing"] | None = None,
    syncers: Mapping[str, VectorSyncer | BatchSyncer] | None = None,
) -> Library:
    """Open a data folder in this process, for a notebook or a script; it is made if need be.

    What comes back has the methods of `kgserve.client.Client`, and `close`. Opening a folder again shares what is open.
    ``history=False`` keeps no past states. ``indexes`` is what is indexed of stores that do not say it themselves:
    "words+meaning", "words", or "none", which is False and leaves no search in any store. ``syncers``, by name, are
    told what stores contain after each commit. Other settings come from the environment
    (KGSERVE_…), as the server's do; by default models are looked for in the folder ``models`` of the data folder.
    Raises Conflict while a server or another process has the folder, InvalidInput for what cannot be one, and OSError
    on systems that no server runs on.
    """
    from kgserve.platform.platform_support import refusal  # noqa: PLC0415 - importing kgserve is quick

    if told := refusal():
        raise OSError(told)
    from kgserve.client.embedded import Library  # noqa: PLC0415 - as above

    return Library(
        path,
        history=history,
        indexes=indexes,
        models_dir=models_dir,
        embedding_provider=embedding_provider,
        syncers=syncers,
    )
