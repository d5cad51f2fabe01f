"""Print a version's section of CHANGELOG.md, for the notes of its release.

Usage: python -m scripts.release_notes vVERSION
"""

from __future__ import annotations

import re
import sys

from kgserve.platform.version import __version__
from scripts.pages import TOP

_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


def changelog_versions(text: str) -> list[tuple[str, str | None]]:
    """Return the versions of a changelog with their dates, in its order; Unreleased has no date."""
    return [(found["version"], found["date"]) for found in _HEADING.finditer(text)]


def extract_release_notes(text: str, tag: str, version: str = __version__) -> str:
    """Return the section of the version that a tag names. Raises ValueError if tag, program and changelog disagree."""
    if tag != f"v{version}":
        raise ValueError(f"the tag {tag} does not name version {version} of kgserve/platform/version.py")
    headings = list(_HEADING.finditer(text))
    sections = dict(zip((each["version"] for each in headings), _sections(text, headings), strict=True))
    if sections.get("Unreleased"):
        raise ValueError(f"CHANGELOG.md has entries under Unreleased; move them to [{version}]")
    if (version, True) not in {(each["version"], each["date"] is not None) for each in headings}:
        raise ValueError(f"CHANGELOG.md has no section `## [{version}] - DATE`")
    if not sections[version]:
        raise ValueError(f"the section of {version} in CHANGELOG.md is empty")
    return sections[version]


def _sections(text: str, headings: list[re.Match[str]]) -> list[str]:
    ends = [*(each.start() for each in headings[1:]), len(text)]
    return [text[each.end() : end].strip() for each, end in zip(headings, ends, strict=False)]


if __name__ == "__main__":
    try:
        print(extract_release_notes((TOP / "CHANGELOG.md").read_text(encoding="utf-8"), *sys.argv[1:2]))
    except ValueError as error:
        sys.exit(f"release_notes: {error}")
