"""Run each command of kgserve against a cluster of three nodes, and print a table of the results.

Each command runs where the asked node serves the store, where another node serves it, and against the two remaining
nodes after one was killed whose stores they have to take over. Commands that work on folders run on the killed node's.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.cli.running import kgserve_process
from tests.cluster.nodes import ServingNode, serving_nodes
from tests.cluster.servers import nats_servers

_TAKEOVER_TIMEOUT_SECONDS = 60.0
_SLOW_COMMAND_SECONDS = 5.0
_HEADINGS = ("command", "served by the asked node", "served by another node", "after its node was killed")


class CommandTrial(NamedTuple):
    """A command with placeholders for the store, the folder for files and the asked node's data."""

    words: str
    expected: str = ""
    """Text that its output contains."""
    is_remote: bool = True
    standard_input: str = ""


_LINES = json.dumps({"kind": "node", "id": "imported", "type": "note", "content": "an imported text"})
TRIALS = (
    CommandTrial("create {store} history=90"),
    CommandTrial("import {store} - --wait-index", standard_input=_LINES),
    CommandTrial("stores", "{store}"),
    CommandTrial("settings {store} name=Team", "Team"),
    CommandTrial("search {store} imported", "imported"),
    CommandTrial("shell {store} --url {url} -c 'MATCH (n:Entity) RETURN count(*) AS c' --mode csv", "1"),
    CommandTrial("export {store}", "an imported text"),
    CommandTrial("retain {store} 'The meeting is on Monday' --about meeting"),
    CommandTrial("recall {store} meeting", "Monday"),
    CommandTrial("reflect {store} --dry-run"),
    CommandTrial("consolidate {store} --dry-run"),
    CommandTrial("forget {store} --entity meeting --dry-run"),
    CommandTrial("reindex {store}"),
    CommandTrial("prune-history {store} --before 1d"),
    CommandTrial("backup {store} --to {folder}/backup-{store} --data {data}", "{store}"),
    CommandTrial("verify {folder}/backup-{store}", "{store}", is_remote=False),
    CommandTrial("restore {folder}/backup-{store} --store {store} --as {store}-again --data {data}", "{store}-again"),
    CommandTrial("open {store} --print", "{url}"),
    CommandTrial("drop {store} --yes"),
    CommandTrial("top --once"),
    CommandTrial("health --ready"),
    CommandTrial("audit"),
    CommandTrial("cluster status", "k1"),
    CommandTrial("cluster move {store}-again k1", "k1"),
)


def main(arguments: Sequence[str]) -> int:
    """Print the table. Return 1 if a command failed."""
    if arguments:
        print(__doc__)
        return 0
    with TemporaryDirectory(prefix="kgserve-commands-") as name:
        folder = Path(name)
        with nats_servers(folder / "nats") as servers, serving_nodes(servers, folder) as nodes:
            table = _CommandTable(nodes, folder)
            rows = table.run()
    print("| " + " | ".join(_HEADINGS) + " |\n|" + " --- |" * len(_HEADINGS))
    for words, *results in rows:
        print(f"| `kgserve {words}` | " + " | ".join(results) + " |")
    for fault in table.faults:
        print(fault, file=sys.stderr)
    return 1 if table.faults else 0


class _CommandTable:
    """Runs the trials at the first of three nodes."""

    def __init__(self, nodes: Sequence[ServingNode], folder: Path) -> None:
        self.faults: list[str] = []
        self._nodes = nodes
        self._folder = folder

    def run(self) -> list[list[str]]:
        """Return a row for each command."""
        asked, other, lost = self._nodes
        rows = [[_shown(trial.words)] for trial in TRIALS]
        for number, trial in enumerate(TRIALS):
            rows[number].append(self._try(trial, "here", asked))
        # The node that is asked to create a store serves it.
        for store, owner in (("there", other), ("lost", lost)):
            for trial in TRIALS[:2]:
                self._try(trial, store, owner)
        rows[0].append("409: exists")
        for number, trial in enumerate(TRIALS[1:], 1):
            rows[number].append(self._try(trial, "there", asked))
        lost.end(signal.SIGKILL)
        rows[0].append("409: exists")
        for number, trial in enumerate(TRIALS[1:], 1):
            rows[number].append(self._try(trial, "lost", asked, patience=_TAKEOVER_TIMEOUT_SECONDS))
        return [*rows, *self._try_folders(asked, lost)]

    def _try(self, trial: CommandTrial, store: str, asked: ServingNode, *, patience: float = 0.0) -> str:
        """Run a command, repeatedly while the store has no node, and return its result for the table."""
        text = trial.words.format(store=store, folder=self._folder, url=asked.url, data=asked.data_dir)
        words = shlex.split(text)
        if trial.is_remote and not {"--url", "--data"} & {*words}:
            words += ["--server", asked.url]
        began = time.monotonic()
        while True:
            done = kgserve_process(*words, stdin=trial.standard_input)
            waited = time.monotonic() - began
            if done.code == 0 or waited > patience:
                break
            time.sleep(0.5)
        expected = trial.expected.format(store=store, folder=self._folder, url=asked.url, data=asked.data_dir)
        if done.code or expected not in done.out:
            self.faults.append(f"{store}: kgserve {text}: exit code {done.code}\n{done.out}{done.err}")
            return f"exit code {done.code}"
        return f"ok, after {waited:.0f} s" if waited > _SLOW_COMMAND_SECONDS and patience else "ok"

    def _try_folders(self, asked: ServingNode, stopped: ServingNode) -> list[list[str]]:
        """Run commands on the folders of a running and of a stopped node, and at the stopped node's address."""
        rows: list[list[str]] = []
        for words, at_running, code, at_stopped in (
            ("doctor", "is in use by process", 0, "ok"),
            ("keys list", "", 0, "ok"),
        ):
            running = kgserve_process(*words.split(), "--data", asked.data_dir)
            if at_running not in running.err:
                self.faults.append(f"kgserve {words} on a running node: {running}")
            done = kgserve_process(*words.split(), "--data", stopped.data_dir)
            if done.code != code:
                self.faults.append(f"kgserve {words} on a stopped node: {done}")
            rows.append([f"{words} --data FOLDER", "refused while it runs" if at_running else "ok", "", at_stopped])
        for words in ("stores", "health", "cluster status"):
            done = kgserve_process(*words.split(), "--server", stopped.url)
            if done.code not in {1, 3} or "Traceback" in done.err:
                self.faults.append(f"kgserve {words} at a stopped node: {done}")
            rows.append([f"{words} --server URL", "ok", "ok", f"at the killed node: exit code {done.code}"])
        done = kgserve_process("stop", "--data", self._nodes[1].data_dir)
        if done.code:
            self.faults.append(f"kgserve stop: {done}")
        return [*rows, ["stop --data FOLDER", "ok", "", ""]]


def _shown(words: str) -> str:
    return (
        words.replace("{store}", "STORE").replace("{folder}/", "").replace("{url}", "URL").replace("{data}", "FOLDER")
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
