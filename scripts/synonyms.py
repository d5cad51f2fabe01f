"""Write synonyms.txt of kgserve/platform/text: words that share a synset in their first senses in WordNet."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from bench import wordnet
from kgserve.platform.text.wordlists import SYNONYMS_FILE
from scripts.opposites import licence_of

SENSES = 2
"""Number of senses considered; rarer senses join unrelated words, such as walk and base on balls."""
HEAD = """\
# Words that say the same, a pair a line: what the database WordNet 3.0 has in one set, as far as both are single words,
# and that is one of the first two senses of both, in alphabetical order. Derived from that database, whose licence
# follows.
#
"""


def main() -> None:
    """Write the file."""
    folder = wordnet.folder()
    found = sorted({pair for words in _sets(folder) for pair in combinations(sorted(words), 2)})
    licence = "".join(f"# {line}\n" if line else "#\n" for line in licence_of(folder))
    SYNONYMS_FILE.write_text(HEAD + licence + "".join(f"{one} {other}\n" for one, other in found))


def _sets(folder: Path) -> Iterator[set[str]]:
    """Yield the words of each synset, without words that rarely have its meaning."""
    words: dict[tuple[str, str], set[str]] = {}
    for kind in wordnet.FILES:
        for line in (folder / f"index.{kind}").read_text(encoding="latin-1").splitlines():
            word, *fields = line.split()
            if line.startswith(" ") or not word.isalpha() or not word.isascii():
                continue
            _count, used, *places = fields[3 + int(fields[2]) - 0 :]
            for place in places[: min(SENSES, int(used))]:
                words.setdefault((kind, place), set()).add(word)
    yield from words.values()


if __name__ == "__main__":
    main()
