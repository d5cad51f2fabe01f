"""Write opposites.txt of kgserve/platform/text: antonym pairs of WordNet, with its licence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from bench import wordnet
from kgserve.platform.text.wordlists import OPPOSITES_FILE

_Pointer = tuple[str, str, int, int]
HEAD = """\
# Words that are opposites, a pair a line: what the database WordNet 3.0 marks as antonyms, as far as both are single
# words, in alphabetical order. Derived from that database, whose licence follows.
#
"""


def main() -> None:
    """Write the file."""
    folder = wordnet.folder()
    pairs = sorted(set(antonyms(folder)))
    licence = "".join(f"# {line}\n" if line else "#\n" for line in licence_of(folder))
    OPPOSITES_FILE.write_text(HEAD + licence + "".join(f"{one} {other}\n" for one, other in pairs))


def licence_of(folder: Path) -> Iterator[str]:
    """Yield the lines of the licence at the start of every data file, without their numbers."""
    for line in (folder / "data.adv").read_text(encoding="latin-1").splitlines():
        if not line.startswith(" "):
            return
        yield line.split(maxsplit=1)[1].rstrip() if len(line.split()) > 1 else ""


def antonyms(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield all pairs, each in alphabetical order."""
    words: dict[str, list[str]] = {}
    pointers: list[_Pointer] = []
    for name in wordnet.FILES:
        for line in (folder / f"data.{name}").read_text(encoding="latin-1").splitlines():
            if not line.startswith(" "):
                fields = line.split("|", 1)[0].split()
                synset, count = wordnet.synset_id(fields[2], fields[0]), int(fields[3], 16)
                words[synset] = [word.partition("(")[0].lower() for word in fields[4 : 4 + 2 * count : 2]]
                pointers += _antonym_pointers(synset, fields[4 + 2 * count :])
    for source, target, of_source, of_target in pointers:
        one, other = words[source][of_source - 1], words[target][of_target - 1]
        if one.isalpha() and other.isalpha():
            yield min(one, other), max(one, other)


def _antonym_pointers(synset: str, fields: list[str]) -> Iterable[_Pointer]:
    for at in range(1, 1 + 4 * int(fields[0]), 4):
        pointer, offset, kind, ends = fields[at : at + 4]
        if pointer == "!":
            of_source, of_target = bytes.fromhex(ends)
            yield synset, wordnet.synset_id(kind, offset), of_source, of_target


if __name__ == "__main__":
    main()
