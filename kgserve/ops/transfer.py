"""Moving whole stores in and out."""

from __future__ import annotations

from kgserve.ops.exporting import ExportStream, export
from kgserve.ops.importing import Importer

__all__ = ["ExportStream", "Importer", "export"]
