"""The alerts, evaluated by Prometheus, and the existence of everything their advice mentions."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import msgspec
import pytest
import yaml

from kgserve.cli.deploy import SHIPPED_FILES
from kgserve.platform.settings import Settings
from kgserve.storage.model.store_settings import StoreSettings
from tests.programs import program
from tests.project.command_lines import command_lines, fault
from tests.project.reading import TOP

SERIES = ("alerts_test.yml", "alerts_of_days_test.yml")
"""Minute by minute, and every five minutes for days: Prometheus evaluates all rules at each step."""
TEXT = SHIPPED_FILES["alerts"][0].text()
RULES = [rule for group in yaml.safe_load(TEXT)["groups"] for rule in group["rules"]]


def promtool(*arguments: object, folder: Path) -> str:
    """Run promtool, which must succeed, and return its output."""
    (folder / SHIPPED_FILES["alerts"][0].name).write_text(TEXT)
    command = [program("promtool", "DEPLOY_TESTS", "prometheus"), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    said = promtool("check", "rules", SHIPPED_FILES["alerts"][0].name, folder=tmp_path)
    assert f"{len(RULES)} rules found" in said


@pytest.mark.parametrize("series", SERIES)
def test_alerts_fire_on_time_and_not_before(tmp_path: Path, series: str) -> None:
    (tmp_path / series).write_text((Path(__file__).parent / series).read_text())
    assert "SUCCESS" in promtool("test", "rules", series, folder=tmp_path)


@cache
def source() -> str:
    return "\n".join(path.read_text() for path in (TOP / "kgserve").rglob("*.py"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_names_in_the_advice_exist(rule: dict[str, dict[str, str]]) -> None:
    advice = rule["annotations"]["description"]
    commands = [line for code in re.findall(r"`([^`]+)`", advice) for line in command_lines(code)]
    assert [found for line in commands if (found := fault(line))] == []
    fields = {each.name for kind in (Settings, StoreSettings) for each in msgspec.structs.fields(kind)}
    named = set(re.findall(r"(?<![\w.])[a-z]+(?:_[a-z]+)+", advice))
    of_others = {name for name in named if name.startswith("kgserve_")}  # metrics, covered by another test
    assert {name for name in named - fields - of_others if f'"{name}"' not in source()} == set()


def test_every_command_in_the_alerts_is_checked() -> None:
    told = re.findall(r"`(kgserve[^`]*)`", TEXT)
    assert len([line for each in told for line in command_lines(each)]) == len(told) > 3
