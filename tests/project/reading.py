"""Reading the project's own files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
README = (TOP / "README.md").read_text()


def blocks(mark: str, language: str) -> list[str]:
    """The code blocks of README.md that stand behind ``<!-- mark -->``."""
    return re.findall(rf"<!-- {mark} -->\n```{language}\n(.*?)```", README, re.DOTALL)


def project_files() -> list[Path]:
    """Every file that belongs to the project: tracked, or new and not ignored."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=TOP, capture_output=True, check=True)
    paths = (TOP / line.decode() for line in listing.stdout.splitlines())
    return [path for path in paths if path.is_file()]
