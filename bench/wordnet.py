"""WordNet 3.0 as a graph: 117,659 synsets and 364,552 distinct pointers, in kgserve's exchange format.

The data is the Debian package `wordnet-base`, fetched by name with apt and unpacked into a cache folder, without root.
File format: https://wordnet.princeton.edu/documentation/wndb5wn
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

PACKAGE = "wordnet-base"
CACHE = Path(__file__).parent / "data"
NODE_COUNT = 117_659
EDGE_COUNT = 364_552

TYPES = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective_satellite", "r": "adverb"}
FILES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
POINTERS = {
    "!": "antonym",
    "@": "hypernym",
    "@i": "instance_hypernym",
    "~": "hyponym",
    "~i": "instance_hyponym",
    "#m": "member_holonym",
    "#s": "substance_holonym",
    "#p": "part_holonym",
    "%m": "member_meronym",
    "%s": "substance_meronym",
    "%p": "part_meronym",
    "=": "attribute",
    "+": "derivationally_related",
    ";c": "domain_topic",
    "-c": "domain_topic_member",
    ";r": "domain_region",
    "-r": "domain_region_member",
    ";u": "domain_usage",
    "-u": "domain_usage_member",
    "*": "entailment",
    ">": "cause",
    "^": "also_see",
    "$": "verb_group",
    "&": "similar_to",
    "<": "participle_of",
    "\\": "pertainym",
}
# Numbers of the lexicographer files, in order from 00.
_FILES_IN_ORDER = """
adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition
noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object
noun.person noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape
noun.state noun.substance noun.time verb.body verb.change verb.cognition verb.communication verb.competition
verb.consumption verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession
verb.social verb.stative verb.weather adj.ppl
"""
LEXICOGRAPHER_FILES = _FILES_IN_ORDER.split()


class Unavailable(Exception):
    """WordNet is not available here; the message says why."""


class Pointer(NamedTuple):
    """A directed, labelled edge between two synsets."""

    source: str
    target: str
    relation_type: str


class Synset(msgspec.Struct, frozen=True, kw_only=True):
    """One meaning, and the words that have it."""

    id: str
    type: str
    content: str
    attributes: dict[str, Any]


class Graph(NamedTuple):
    """All of WordNet, in the order of its files."""

    nodes: list[Synset]
    edges: list[Pointer]


def parse_synset(line: str) -> tuple[Synset, list[Pointer]]:
    """Parse a line of a data file into a synset and its pointers, which repeat per word pair."""
    body, gloss = line.split("|", 1)
    fields = body.split()
    offset, lexicographer_file, kind, word_count = fields[0], int(fields[1]), fields[2], int(fields[3], 16)
    words = [word.replace("_", " ") for word in fields[4 : 4 + 2 * word_count : 2]]
    synset = Synset(
        id=synset_id(kind, offset),
        type=TYPES[kind],
        content=f"{', '.join(words)}: {gloss.strip()}",
        attributes={"pos": kind, "lexicographer_file": LEXICOGRAPHER_FILES[lexicographer_file]},
    )
    rest = fields[4 + 2 * word_count :]
    pointers = [
        Pointer(synset.id, synset_id(rest[at + 2], rest[at + 1]), POINTERS[rest[at]])
        for at in range(1, 1 + 4 * int(rest[0]), 4)
    ]
    return synset, pointers


def synset_id(kind: str, offset: str) -> str:
    """Return a synset's id, such as `n00001740`; satellite adjectives are numbered in the adjectives' file."""
    return ("a" if kind == "s" else kind) + offset


def read(folder: Path) -> Graph:
    """Read all synsets and distinct pointers from the four data files in `folder`."""
    nodes: list[Synset] = []
    edges: dict[Pointer, None] = {}
    for name in FILES:
        for line in (folder / f"data.{name}").read_text(encoding="latin-1").splitlines():
            if not line.startswith(" "):  # the licence at the top of each file
                synset, pointers = parse_synset(line)
                nodes.append(synset)
                edges.update(dict.fromkeys(pointers))
    return Graph(nodes, list(edges))


def lines(graph: Graph) -> Iterator[bytes]:
    """Yield the graph as lines of kgserve's exchange format, nodes first."""
    encode = msgspec.json.Encoder().encode
    for node in graph.nodes:
        record = {"kind": "node", "id": node.id, "type": node.type, "content": node.content}
        yield encode(record | {"attributes": node.attributes}) + b"\n"
    for edge in graph.edges:
        record = {"kind": "edge", "from": edge.source, "to": edge.target, "relation_type": edge.relation_type}
        yield encode(record) + b"\n"


def folder(cache: Path = CACHE) -> Path:
    """Return the folder with WordNet's data files, downloading it if missing. Raises Unavailable."""
    data = cache / "root" / "usr" / "share" / "wordnet"
    if not (data / "data.noun").exists():
        _unpack(_download(cache / "apt"), cache / "root")
    return data


def exchange_file(cache: Path = CACHE) -> Path:
    """Return WordNet as an NDJSON file in the cache (about 60 MB), checked by its counts. Raises Unavailable."""
    path = cache / "wordnet.ndjson"
    if not path.exists():
        graph = read(folder(cache))
        if (len(graph.nodes), len(graph.edges)) != (NODE_COUNT, EDGE_COUNT):
            found = f"{len(graph.nodes):,} synsets and {len(graph.edges):,} pointers"
            raise Unavailable(f"the package {PACKAGE} contains {found}, which is not WordNet 3.0")
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            file.writelines(lines(graph))
        partial.replace(path)
    return path


def _download(apt: Path) -> Path:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise Unavailable(f"WordNet is the Debian package {PACKAGE}, but apt-get and dpkg are not installed")
    apt.mkdir(parents=True, exist_ok=True)
    if _apt(apt, "download", PACKAGE) != 0:
        # The machine's package lists are missing or old: fetch private lists, which needs no root.
        own = _fetch_package_lists(apt)
        if _apt(apt, *own, "update") != 0 or _apt(apt, *own, "download", PACKAGE) != 0:
            raise Unavailable(f"apt-get could not download {PACKAGE}")
    return next(apt.glob(f"{PACKAGE}_*.deb"))


def _apt(folder: Path, *arguments: str) -> int:
    # apt's sandbox user cannot write here; without root, no other user is available.
    command = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", *arguments]
    return subprocess.run(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode


def _fetch_package_lists(apt: Path) -> list[str]:
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    places = {"Dir::State::lists": apt / "lists", "Dir::Cache": apt, "Dir::State::status": os.devnull}
    return [part for key, value in places.items() for part in ("-o", f"{key}={value}")]


def _unpack(package: Path, root: Path) -> None:
    if subprocess.run(["dpkg", "-x", str(package), str(root)], check=False).returncode != 0:
        raise Unavailable(f"dpkg could not unpack {package.name}")
