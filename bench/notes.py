"""Import and export of an Obsidian vault of 2,000 notes made from a seed, by the command line without a server.

`python -m bench.notes [--quick]`
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.measure import BenchmarkReport, clock, parser, run_parts
from bench.server import scratch_folder

SEED = 20_261_129
NOTES = 2_000
QUICK_NOTES = 200
MAX_FIRST_SECONDS = 30.0
MAX_AGAIN_SECONDS = 3.0
_WORDS = (
    *("graph", "index", "vault", "memory", "server", "query", "journal", "window", "engine", "letter", "harbour"),
    *("meeting", "plan", "draft", "review", "garden", "river", "decision", "budget", "translation"),
    *("über", "café", "東京", "данные"),
)
_FOLDERS = ("", "Projects", "People", "Daily/2026", "Areas/Research notes")


def write_vault(folder: Path, count: int, seed: int = SEED) -> None:
    """Write a vault: front matter, links with aliases and headings, embeds, tags, code, and links to no note."""
    choice = random.Random(seed)
    stems = [f"{choice.choice(_FOLDERS)}/Note {number} {choice.choice(_WORDS)}".lstrip("/") for number in range(count)]
    (folder / ".obsidian").mkdir(parents=True)
    (folder / ".obsidian" / "app.json").write_text("{}")
    (folder / "image.png").write_bytes(b"\x89PNG")
    for number, stem in enumerate(stems):
        path = folder / f"{stem}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_note_text(choice, number, stems).encode())


def _note_text(choice: random.Random, number: int, stems: list[str]) -> str:
    head = (
        f"---\ntags: [{choice.choice(_WORDS)}, area/{choice.choice(_WORDS)}]\naliases:\n  - Alias {number}\n"
        f"created: 2026-01-{number % 28 + 1:02}\nstart: 12:30\nrating: {number % 5}\n"
        f'up: "[[{choice.choice(stems)}]]"\n---\n'
        if number % 3
        else ""
    )
    lines = [f"# {choice.choice(_WORDS)} {number}", ""]
    for _ in range(choice.randrange(3, 12)):
        words = " ".join(choice.choices(_WORDS, k=choice.randrange(8, 30)))
        target = choice.choice(stems)
        link = choice.choice(
            (
                f"[[{target}]]",
                f"[[{target.rpartition('/')[2]}|as before]]",
                f"[[{target}#Part two|part]]",
                f"![[{target}]]",
                "![[image.png]]",
                f"#{choice.choice(_WORDS)}",
                "`[[not a link]]`",
                f"[[Unwritten {number}]]",
            )
        )
        lines += [f"{words} {link}.", ""]
    if number % 10 == 0:
        lines += ["```python", "print('[[no link]]')  # no-tag", "```"]
    text = head + "\n".join(lines)
    return text.replace("\n", "\r\n") if number % 50 == 7 else text


def read_vault(folder: Path) -> dict[str, bytes]:
    """Return the notes of a vault by their paths."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.md")}


def transfer(*, quick: bool) -> BenchmarkReport:
    """Measure a first import, a repeated one, and an export, each as its own process."""
    count = QUICK_NOTES if quick else NOTES
    report = BenchmarkReport(f"Obsidian vault of {count:,} notes, by kgserve import and export")
    with scratch_folder() as folder:
        write_vault(folder / "vault", count)
        data = folder / "data"
        data.mkdir()
        first = clock(lambda: _run("import", "notes", str(folder / "vault"), "--data", str(data))) / 1000
        report.at_most("first import", f"{first:.1f} s", first, MAX_FIRST_SECONDS, "s")
        before = _run("export", "notes", "--data", str(data))
        again = clock(lambda: _run("import", "notes", str(folder / "vault"), "--data", str(data))) / 1000
        report.at_most("second import, nothing changed", f"{again:.1f} s", again, MAX_AGAIN_SECONDS, "s")
        same = before == _run("export", "notes", "--data", str(data))
        report.check("store after the second import", "unchanged" if same else "CHANGED", same)
        out = clock(
            lambda: _run("export", "notes", "--format", "markdown", "-o", str(folder / "out"), "--data", str(data))
        )
        report.fact("export as Markdown", f"{out / 1000:.1f} s")
        same = read_vault(folder / "out") == read_vault(folder / "vault")
        report.check("exported notes and the vault", "equal" if same else "DIFFERENT", same)
    return report


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "kgserve", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


PARTS: dict[str, Callable[..., BenchmarkReport]] = {"transfer": transfer}


def main(arguments: Sequence[str]) -> int:
    """Print the table. Return 1 when a round trip was not equal."""
    return run_parts(PARTS, parser("notes", "Import and export of Markdown notes.", PARTS).parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
