"""GraphML, as kgserve writes it and as others do, read piece by piece.

The parser is defusedxml's: entities and references to elsewhere end it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO
from xml.sax import SAXException, SAXParseException
from xml.sax.handler import ContentHandler

from defusedxml import DefusedXmlException
from defusedxml.sax import make_parser

from kgserve.errors import InvalidInput
from kgserve.formats.graphml_flavours import GRAPHICS, Element, Flavour, foreign, ours
from kgserve.formats.graphml_write import FORMAT_KEY, Key
from kgserve.formats.records import MAX_LINE_BYTES, Record, Wrong, edge, node

PIECE_BYTES = 64 << 10
MAX_DEPTH = 200
MAX_KEYS = 20_000


def read_graphml(file: BinaryIO, name: str) -> Iterator[Record]:
    """Nodes and edges as they come, numbered by the line on which each begins.

    Raises InvalidInput where the file is no GraphML, or holds what is refused in any XML; what came before is given.
    """
    place = name or "the body"
    handler = _Handler()
    parser = make_parser()
    parser.setContentHandler(handler)
    handler.line = parser.getLineNumber
    idle = 0
    try:
        while piece := file.read(PIECE_BYTES):
            before = handler.events
            parser.feed(piece)
            idle = idle + len(piece) if handler.events == before else 0
            if idle > MAX_LINE_BYTES:
                line = parser.getLineNumber()
                raise InvalidInput(f"line {line}: one tag or comment is over {MAX_LINE_BYTES:,} bytes")
            yield from handler.taken()
        parser.close()
    except DefusedXmlException as error:
        where = f"{place} line {parser.getLineNumber()}"
        raise InvalidInput(f"{where}: entities and external references are refused") from error
    except SAXParseException as error:
        where = f"{place} line {error.getLineNumber()}"
        raise InvalidInput(f"{where}: is not well-formed XML: {error.getMessage()}") from error
    except (SAXException, InvalidInput) as error:
        raise InvalidInput(f"{place} {error}") from error
    except (LookupError, ValueError) as error:
        raise InvalidInput(f"{place} is in an encoding that is not read: {error}; convert it to UTF-8") from error
    yield from handler.taken()
    if not handler.is_graphml:
        raise InvalidInput(f"{place} is no GraphML: there is no <graphml> in it")


class _Handler(ContentHandler):
    """Collects elements; ``events`` moves whenever the parser gets on."""

    def __init__(self) -> None:
        super().__init__()
        self.line: Any = None
        self.events = 0
        self.is_graphml = False
        self._keys: dict[str, Key] = {}
        self._defaults: dict[Key, str] = {}
        self._flavour: Flavour = foreign
        self._depth = 0
        self._open: list[Element] = []
        self._key: Key | None = None
        self._data_depth = 0
        self._declared: Key | None = None
        self._text: list[str] | None = None
        self._text_depth = 0
        self._directed = [True]
        self._done: list[Record] = []

    def taken(self) -> list[Record]:
        """What is complete, and has not been taken yet."""
        done, self._done = self._done, []
        return done

    def startElement(self, name: str, attrs: Any) -> None:  # noqa: N802 - named by the interface
        self.events += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidInput(f"line {self.line()}: elements are nested more than {MAX_DEPTH} deep")
        local = name.rpartition(":")[2]
        if self._key is None:
            self._start(local, attrs)
        elif local in {"NodeLabel", "EdgeLabel"}:
            self._collect()

    def _start(self, local: str, attrs: Any) -> None:
        match local:
            case "graphml":
                self.is_graphml = True
            case "key":
                self._declare(dict(attrs))
            case "default" if self._declared is not None:
                self._collect()
            case "graph":
                self._directed.append(attrs.get("edgedefault", "directed") != "undirected")
            case "node" | "edge":
                self._begin(local, dict(attrs))
            case "hyperedge":
                self._done.append(Wrong(self.line(), "a hyperedge joins more than two nodes; it is left out"))
            case "data":
                self._data(attrs.get("key", ""))
            case _:
                pass

    def endElement(self, name: str) -> None:  # noqa: N802 - named by the interface
        self.events += 1
        if self._text is not None and self._depth == self._text_depth:
            self._take_text("".join(self._text))
            self._text = None
        if self._key is not None:
            if self._depth == self._data_depth:
                self._key = None
        else:
            self._close(name.rpartition(":")[2])
        self._depth -= 1

    def characters(self, content: str) -> None:
        self.events += 1
        if self._text is None or self._depth != self._text_depth:
            return
        self._text.append(content)
        if self._open:
            self._open[-1].size += len(content)
            if self._open[-1].size > MAX_LINE_BYTES:
                raise InvalidInput(f"line {self._open[-1].line}: one element is over {MAX_LINE_BYTES:,} characters")

    def _collect(self) -> None:
        self._text, self._text_depth = [], self._depth

    def _declare(self, attributes: dict[str, str]) -> None:
        if len(self._keys) >= MAX_KEYS:
            raise InvalidInput(f"line {self.line()}: more than {MAX_KEYS:,} keys are declared")
        drawn = any(name.startswith("yfiles.") for name in attributes)
        name = attributes.get("attr.name", attributes.get("id", ""))
        kind = GRAPHICS if drawn else attributes.get("attr.type", "string")
        key = Key(attributes.get("for", "all"), name, kind)
        self._keys[attributes.get("id", "")] = self._declared = key
        if attributes.get("id") == FORMAT_KEY:
            self._flavour = ours

    def _begin(self, kind: str, attributes: dict[str, str]) -> None:
        parent = self._open[-1].attributes.get("id") if self._open and not self._open[-1].edge else None
        element = Element(self.line(), kind == "edge", attributes, parent=parent)
        element.directed = attributes.get("directed", "true" if self._directed[-1] else "false") == "true"
        self._open.append(element)

    def _data(self, key: str) -> None:
        if not self._open:
            return
        known = self._keys.get(key)
        if known is None:
            self._open[-1].fault = f"has data of a key {key[:80]!r} that is not declared"
            known = Key("all", "", GRAPHICS)
        self._key, self._data_depth = known, self._depth
        self._collect()

    def _take_text(self, text: str) -> None:
        if self._declared is not None and self._key is None:
            self._defaults[self._declared] = text
        elif self._key is not None and self._depth > self._data_depth:
            self._open[-1].label = self._open[-1].label or text.strip()
        elif self._key is not None and self._key.type != GRAPHICS:
            self._open[-1].data.append((self._key, text))

    def _close(self, local: str) -> None:
        match local:
            case "key":
                self._declared = None
            case "graph":
                self._directed.pop()
            case "node" | "edge":
                self._done.append(self._record(self._open.pop()))
            case _:
                pass

    def _record(self, element: Element) -> Record:
        if element.fault:
            return Wrong(element.line, element.fault)
        of = "edge" if element.edge else "node"
        for key, text in self._defaults.items():
            if key.of in {of, "all"} and all(known != key for known, _ in element.data):
                element.data.append((key, text))
        try:
            values = self._flavour(element)
        except ValueError as error:
            return Wrong(element.line, str(error))
        return edge(element.line, values) if element.edge else node(element.line, values)
