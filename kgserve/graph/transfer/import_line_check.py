"""Checks of the lines of an import without a store, for dry runs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kgserve.graph.answers import ImportLineError
from kgserve.graph.request_bodies import EdgeNdjsonLine, NodeNdjsonLine
from kgserve.graph.request_validation import ValidationErrorCollector, validate_edge_input, validate_node_input
from kgserve.platform.codecs import json_decoder

_decode = json_decoder(NodeNdjsonLine | EdgeNdjsonLine).decode


def check_import_lines(blocks: Iterable[bytes]) -> list[ImportLineError]:
    """Return what a store would refuse about lines of nodes and edges, given in blocks of whole lines."""
    errors: list[ImportLineError] = []
    lines = (line for block in blocks for line in block.split(b"\n") if line)
    for number, line in enumerate(lines, 1):
        faults = ValidationErrorCollector()
        try:
            row = _decode(line)
        except msgspec.MsgspecError as error:
            faults("", str(error))
        else:
            if isinstance(row, NodeNdjsonLine):
                validate_node_input(number, row, faults)
            else:
                validate_edge_input(number, row, faults)
        if faults.errors:
            message = "; ".join(f"{error.path} {error.message}".strip() for error in faults.errors)
            errors.append(ImportLineError(line=number, message=message))
    return errors
