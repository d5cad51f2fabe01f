"""Damage every file of a data folder in turn: `python -m bench.damage [--only PATTERN] [--every N] [--processes N]`.

Each file alone is emptied, truncated, altered, deleted, replaced by a folder, made unreadable, or restored from an
older copy. The folder must then answer as before, or reject requests for lost data by name. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import kgserve
from bench import damage_questions
from bench.damage_questions import Answers
from bench.server import scratch_folder
from kgserve.client.embedded import Library
from kgserve.errors import KgserveError
from kgserve.platform.access.audit import AuditLog
from kgserve.platform.access.authentication import add_api_key, create_api_key
from kgserve.stores.open_store import OpenStore

SETTINGS = {
    "KGSERVE_JOURNAL_RETENTION_MB": "0",
    "KGSERVE_BUFFER_POOL_MB": "64",
    "KGSERVE_LOG_LEVEL": "error",
}
SOLE_COPIES = re.compile(r"/journal/|/history\.sqlite$|^keys\.json$|^audit\.log$")
"""Files that no other file can replace: requests for their content may be rejected by name."""
MAY_LOSE_LINES = re.compile(r"^audit\.log$")
"""By docs/durability.md, damaged lines are skipped and the others kept."""
UNSTABLE_NAME = re.compile(r"[0-9a-f]{32}(\.\d+)?|\d{5,}")
NODES = 30
TRIM_SECONDS = 60

IDENTICAL, REBUILT, REFUSED = "identical", "rebuilt", "refused by name"
LOST_LINES, ACCEPTED = "lines left out", "accepted as it is"
SILENT, STUCK = "SILENT DIFFERENCE", "VIEW DOES NOT COME BACK"
OUTCOMES = (IDENTICAL, REBUILT, REFUSED, LOST_LINES, ACCEPTED, SILENT, STUCK)

Damage = Callable[[Path, Path], None]


class DamageFolders(NamedTuple):
    """A data folder, and an older copy of it."""

    data: Path
    older: Path


class DamageCase(NamedTuple):
    """A file, relative to the data folder, and the name of a damage."""

    file: str
    damage: str


UNDETECTABLE = {DamageCase("keys.json", "delete"), DamageCase("keys.json", "older")}
"""By docs/durability.md, administrators may delete or restore this file, so a missing or older file is valid."""


class Outcome(NamedTuple):
    """Behaviour of a folder after a damage."""

    case: DamageCase
    verdict: str
    remark: str
    seconds: float


def empty(path: Path, _older: Path) -> None:
    """Empty a file."""
    path.write_bytes(b"")


def cut(path: Path, _older: Path) -> None:
    """Truncate a file to its first half."""
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path, _older: Path) -> None:
    """Alter one byte in the middle of a file's content."""
    data = bytearray(path.read_bytes())
    used = [at for at in range(len(data)) if data[at]] or [*range(len(data))]
    if used:
        data[used[len(used) * 5 // 8]] ^= 0x10
    path.write_bytes(data)


def delete(path: Path, _older: Path) -> None:
    """Delete a file."""
    path.unlink()


def folder(path: Path, _older: Path) -> None:
    """Replace a file by a folder."""
    path.unlink()
    path.mkdir()


def unreadable(path: Path, _older: Path) -> None:
    """Replace a file by a dangling symbolic link, because permissions do not stop root."""
    path.unlink()
    path.symlink_to("/nowhere/at/all")


def older(path: Path, older_path: Path) -> None:
    """Replace a file by an older copy."""
    shutil.copyfile(older_path, path)


DAMAGES: dict[str, Damage] = {each.__name__: each for each in (empty, cut, flip, delete, folder, unreadable, older)}


def build_folders(root: Path) -> DamageFolders:
    """Create a data folder with files of every kind, and an older copy of it."""
    folders = DamageFolders(root / "data", root / "older")
    with open_library(folders.data) as library:
        _write_first(library)
        damage_questions.answer(library, folders.data)
    _write_records(folders.data, "first")
    shutil.copytree(folders.data, folders.older, symlinks=True)
    with open_library(folders.data) as library:
        _write_more(library)
        damage_questions.answer(library, folders.data)
    _write_records(folders.data, "second")
    return folders


def open_library(data: Path) -> Library:
    """Open a data folder in this process."""
    return kgserve.open(data, embedding_provider="hashing")


def _write_records(data: Path, name: str) -> None:
    add_api_key(data, create_api_key(name, "write", ["*"], 1_700_000_000_000_000)[0])
    with closing(AuditLog(data)) as audit:
        audit.record_admin_action("key.create", "done", key=name)


def _write_first(library: Library) -> None:
    store = library.store("s")
    animals = ("fox", "hen", "owl")
    nodes = [
        {"id": f"n{n}", "type": "t", "content": f"a {animals[n % 3]}", "tags": ["red"], "attributes": {"rank": n % 4}}
        for n in range(NODES)
    ]
    store.inject(
        nodes, [{"from": f"n{n}", "to": f"n{(n * 7 + 1) % NODES}", "relation_type": "R"} for n in range(NODES)]
    )
    library.store("other").inject([{"id": "x", "type": "t", "content": "elsewhere"}])
    store.inject([], [{"from": "n1", "to": "x", "to_graph": "other", "relation_type": "L"}])
    store.store_memory("Alice likes green tea", memory_type="fact", entities=[{"name": "Alice"}])
    store.recall("green tea")


def _write_more(library: Library) -> None:
    store = library.store("s")
    store.inject([{"id": f"n{n}", "content": f"an elk {n}"} for n in range(0, 20, 2)])
    store.delete_node("n23")
    store.merge("n21", "n22")
    store.store_memory("Carol plays chess", memory_type="fact", entities=[{"name": "Carol"}])
    store.recall("chess")
    with library.handle.use() as graphs, graphs.pool.lease("s") as opened:
        opened.accesses.flush()
        end = time.monotonic() + TRIM_SECONDS
        # Accesses are written and the history follows in separate threads.
        while not compact_and_check_trimmed(opened):
            if time.monotonic() > end:
                raise SystemExit("the journal still holds the history's commits")
            time.sleep(0.05)
    # These commits are only in the journal.
    store.inject([{"id": "n4", "content": "a late elk"}, {"id": "late", "type": "t", "content": "an ibex"}])
    store.recall("chess")


def compact_and_check_trimmed(store: OpenStore) -> bool:
    """Compact a store. Return True if its journal is empty afterwards."""
    store.end_segment()
    store.compactor.run()
    return store.journal.oldest > store.journal.last


def list_files(data: Path) -> list[Path]:
    """Return the files of a folder; of names that differ only in a random or running number, only one."""
    kinds = {UNSTABLE_NAME.sub("*", str(path.relative_to(data))): path.relative_to(data) for path in data.rglob("*")}
    return sorted(path for path in kinds.values() if (data / path).is_file())


def list_cases(folders: DamageFolders, only: str = "", every: int = 1) -> list[DamageCase]:
    """Return all pairs of files and applicable damages."""
    cases = [
        DamageCase(str(file), name)
        for file in list_files(folders.data)
        for name in DAMAGES
        if re.search(only, str(file)) and (name != "older" or (folders.older / file).is_file())
    ]
    return [*islice(cases, 0, None, every)]


def answer_folder(data: Path) -> Answers:
    """Open a folder and return its answers."""
    with open_library(data) as library:
        return damage_questions.answer(library, data)


def try_case(folders: DamageFolders, case: DamageCase, before: Answers) -> Outcome:
    """Damage a copy of a folder, and compare its answers with ``before``."""
    started = time.monotonic()
    with scratch_folder() as scratch:
        copy = shutil.copytree(folders.data, scratch / "data", symlinks=True)
        path = copy / case.file
        DAMAGES[case.damage](path, folders.older / case.file)
        damaged = _read_folder(path)
        try:
            now = answer_folder(copy)
        except KgserveError as error:
            verdict, remark = REFUSED if SOLE_COPIES.search(case.file) else STUCK, error.message
        except Exception as error:  # noqa: BLE001 - any error that prevents a folder from opening is a finding
            verdict, remark = STUCK, f"{type(error).__name__}: {error}"
        else:
            verdict, remark = judge(case, before, now, changed=_read_folder(path) != damaged)
    return Outcome(case, verdict, remark.replace("\n", " ")[:300], time.monotonic() - started)


def judge(case: DamageCase, before: Answers, now: Answers, *, changed: bool) -> tuple[str, str]:
    """Return the verdict on the answers after a damage, and the questions whose answers differ."""
    different = {name: each for name, each in now.items() if each != before[name]}
    if not different:
        return (REBUILT if changed else IDENTICAL), ""
    refused = {name: each for name, each in different.items() if damage_questions.is_refusal(each)}
    remark = "; ".join(f"{name}: {str(each)[:120]}" for name, each in islice(different.items(), 4))
    if len(refused) == len(different):
        return (REFUSED if SOLE_COPIES.search(case.file) else STUCK), remark
    if MAY_LOSE_LINES.search(case.file) and different.keys() == {"audit"}:
        return LOST_LINES, ""
    if case in UNDETECTABLE and different.keys() == {"keys"}:
        return ACCEPTED, ""
    silent = {name: each for name, each in different.items() if name not in refused}
    return SILENT, "; ".join(f"{name}: {str(each)[:120]}" for name, each in islice(silent.items(), 4))


def _read_folder(path: Path) -> Any:
    if path.is_file() and not path.is_symlink():
        return path.read_bytes()
    return path.is_symlink(), path.is_dir(), path.exists()


def run(folders: DamageFolders, cases: Iterable[DamageCase], processes: int) -> list[Outcome]:
    """Try cases in several processes."""
    before = answer_folder(shutil.copytree(folders.data, folders.data.with_name("before")))
    again = answer_folder(shutil.copytree(folders.data, folders.data.with_name("again")))
    if other := {name for name in before if before[name] != again[name]}:
        raise SystemExit(f"answers of an undamaged folder are not reproducible: {other}")
    if processes == 1:
        return [try_case(folders, case, before) for case in cases]
    # The settings are in the environment, which the processes inherit.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        coming = [pool.submit(try_case, folders, case, before) for case in cases]
        return [_print_progress(number, len(coming), each.result()) for number, each in enumerate(coming, 1)]


def _print_progress(number: int, count: int, outcome: Outcome) -> Outcome:
    print(f"{number}/{count} {outcome.case.file} {outcome.case.damage}: {outcome.verdict}", file=sys.stderr, flush=True)
    return outcome


def show(outcomes: Iterable[Outcome]) -> None:
    """Print a line per file with the verdict on each damage, then totals and failures."""
    outcomes = [*outcomes]
    by_file: dict[str, dict[str, str]] = {}
    for outcome in outcomes:
        by_file.setdefault(outcome.case.file, {})[outcome.case.damage] = outcome.verdict
    width = max(map(len, by_file), default=0)
    print(f"{'file':{width}}  " + "  ".join(f"{name:10}" for name in DAMAGES))
    for file, verdicts in by_file.items():
        print(f"{file:{width}}  " + "  ".join(f"{verdicts.get(name, '-')[:10]:10}" for name in DAMAGES))
    totals = Counter(outcome.verdict for outcome in outcomes)
    print("\n".join(f"{totals[verdict]:5}  {verdict}" for verdict in OUTCOMES))
    for outcome in outcomes:
        if outcome.verdict in {SILENT, STUCK}:
            print(f"! {outcome.case.file}, {outcome.case.damage}: {outcome.verdict}: {outcome.remark}")


def main() -> int:
    """Try every damage on every file and print one table."""
    parser = argparse.ArgumentParser(prog="python -m bench.damage", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", help="regular expression of file names")
    parser.add_argument("--every", type=int, default=1, help="try every N-th case (default 1: all)")
    parser.add_argument("--processes", type=int, default=2, help="number of parallel processes (default 2)")
    given = parser.parse_args()
    started = time.monotonic()
    os.environ.update(SETTINGS)
    with scratch_folder() as root:
        folders = build_folders(root)
        outcomes = run(folders, list_cases(folders, given.only, given.every), given.processes)
    show(outcomes)
    print(f"{len(outcomes)} damages, {time.monotonic() - started:.0f} s in total")
    return int(any(outcome.verdict in {SILENT, STUCK} for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
