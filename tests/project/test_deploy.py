"""The files that put kgserve into service: what they name exists, and they agree with each other and the program."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kgserve.platform.settings import ENVIRONMENT_PREFIX, Settings, load_settings
from tests.project.command_lines import command_lines, fault
from tests.project.reading import TOP

SYSTEMD = TOP / "deploy" / "systemd"
NATS = TOP / "deploy" / "nats"
CLUSTER = TOP / "deploy" / "compose-cluster"
COMPOSE = TOP / "deploy" / "compose" / "compose.yaml"
SETTINGS = {ENVIRONMENT_PREFIX + field.name.upper() for field in msgspec.structs.fields(Settings)}
CONTAINER_USER = "10001"


class Instruction(msgspec.Struct, frozen=True):
    """One instruction of a Dockerfile, and which stage it is in, from 0."""

    stage: int
    name: str
    rest: str


def instructions() -> Iterator[Instruction]:
    text = re.sub(r"^#.*\n", "", (TOP / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stage = -1
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        stage += name == "FROM"
        yield Instruction(stage, name, rest.strip())


INSTRUCTIONS = list(instructions())
LAST = max(each.stage for each in INSTRUCTIONS)


def of(name: str, stage: int | None = None) -> list[str]:
    return [each.rest for each in INSTRUCTIONS if each.name == name and stage in {None, each.stage}]


def final(name: str) -> str:
    """Return the value of the last instruction of this name in the final stage."""
    return of(name, LAST)[-1]


def variables() -> dict[str, str]:
    """The environment of the final image."""
    return dict(word.split("=", 1) for line in of("ENV", LAST) for word in shlex.split(line))


def copied() -> list[str]:
    """The paths of the project that go into the image."""
    return [path for line in of("COPY") if "--from" not in line for path in line.split()[:-1]]


# --- Dockerfile ------------------------------------------------------------------------------------------------------


def test_every_path_that_is_copied_exists() -> None:
    assert copied()
    assert [path for path in copied() if not (TOP / path).exists()] == []


def test_dockerignore_lets_through_what_is_copied_and_no_more() -> None:
    lines = [line for line in (TOP / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert sorted(line[1:] for line in lines if line.startswith("!")) == sorted(copied())
    again = [line for line in lines[1:] if not line.startswith("!")]
    assert any(fnmatch("kgserve/__pycache__", each) for each in again)


def test_every_stage_that_is_named_was_there_before() -> None:
    known: list[str] = []
    for each in INSTRUCTIONS:
        if each.name == "FROM":
            base, _, name = each.rest.partition(" AS ")
            assert base in known or base.startswith("python:"), base
            known.append(name)
        for name in re.findall(r"--from=(\S+)", each.rest):
            assert name in known


def test_what_is_copied_from_a_stage_was_made_in_it() -> None:
    for line in of("COPY", LAST):
        name, source, target = re.fullmatch(r"--from=(\S+) (\S+) (\S+)", line).groups()  # pyright: ignore[reportOptionalMemberAccess]
        stages = [each.stage for each in INSTRUCTIONS if each.name == "FROM" and each.rest.endswith(f" AS {name}")]
        assert any(source in run for stage in stages for run in of("RUN", stage)), source
        assert source == target, "an environment knows its own place"


def test_no_compiler_and_no_installer_in_the_final_image() -> None:
    for line in of("RUN", LAST):
        assert not re.search(r"apt-get|pip|g\+\+|gcc", line), line
    assert any("g++" in line for line in of("RUN"))
    assert any("venv --without-pip" in line for line in of("RUN"))


def test_every_installation_keeps_to_the_pinned_versions() -> None:
    installs = [line for line in of("RUN") if " install " in line and "pip" in line]
    assert len(installs) == 2
    assert all("--constraint constraints.txt" in line for line in installs)


def test_the_process_is_a_fixed_user_and_gets_its_signals() -> None:
    assert final("USER") == f"{CONTAINER_USER}:{CONTAINER_USER}"
    assert any(f"--uid {CONTAINER_USER}" in line for line in of("RUN", LAST))
    # An array: no shell stands between, which would keep SIGTERM to itself.
    assert json.loads(final("ENTRYPOINT")) == ["kgserve"]
    assert json.loads(final("CMD")) == ["serve"]
    assert final("STOPSIGNAL") == "SIGTERM"


def test_the_volume_is_the_data_folder() -> None:
    settings = load_settings({}, variables())
    assert of("VOLUME") == [str(settings.data_dir)] == ["/data"]
    assert final("EXPOSE") == str(settings.port)
    assert settings.host == "0.0.0.0"  # noqa: S104 - a container's ports are published one by one
    assert str(settings.models_dir) in " ".join(of("COPY", LAST))
    # Root makes the model, and for root alone; another user serves it.
    assert any(f"chmod -R a+rX {settings.models_dir}" in line for line in of("RUN"))


def test_the_health_check_is_a_command_and_needs_no_curl() -> None:
    _, _, command = final("HEALTHCHECK").partition("CMD ")
    program, *words = json.loads(command)
    assert program == "kgserve"
    assert fault(words) is None


@pytest.mark.parametrize(
    "name",
    [
        "Dockerfile",
        "deploy/compose/compose.yaml",
        "deploy/systemd/kgserve.env",
        "deploy/nginx/kgserve.conf",
        "deploy/caddy/Caddyfile",
    ],
)
def test_commands_and_settings_that_are_named_exist(name: str) -> None:
    text = (TOP / name).read_text()
    assert set(re.findall(r"\bKGSERVE_[A-Z_]*[A-Z]\b", text)) <= SETTINGS
    plain = re.sub(r"^ *#  +", "", text, flags=re.MULTILINE)  # examples are indented, sentences are not
    plain = re.sub(r"docker compose (run --rm|exec) kgserve (kgserve )?", "kgserve ", plain)
    assert [found for line in command_lines(plain) if (found := fault(line))] == []


def test_labels_say_what_it_is() -> None:
    words = dict(word.split("=", 1) for line in of("LABEL", LAST) for word in shlex.split(line))
    for name in ("title", "description", "source", "licenses"):
        assert words[f"org.opencontainers.image.{name}"]


# --- compose ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service() -> dict[str, Any]:
    return yaml.safe_load((COMPOSE).read_text())["services"]["kgserve"]


def test_compose_builds_what_the_dockerfile_says(service: dict[str, Any]) -> None:
    assert (COMPOSE.parent / service["build"]).resolve() == TOP


def test_compose_keeps_data_in_a_named_volume(service: dict[str, Any]) -> None:
    document = yaml.safe_load((COMPOSE).read_text())
    (mounted,) = service["volumes"]
    name, target = mounted.split(":")
    assert name in document["volumes"]
    assert [target] == of("VOLUME")


def test_compose_waits_until_the_stores_are_closed(service: dict[str, Any]) -> None:
    settings = load_settings({}, service["environment"])
    assert seconds(service["stop_grace_period"]) > settings.shutdown_grace


def test_the_engines_fit_into_the_memory_that_is_allowed(service: dict[str, Any]) -> None:
    files = [(service["environment"], service["deploy"]["resources"]["limits"]["memory"])]
    files += [(environment_file(), unit(SYSTEMD / "kgserve.service")["Service"]["MemoryHigh"])]
    for variables, limit in files:
        settings = load_settings({}, variables)
        gibibytes = int(limit.lower().removesuffix("g"))
        assert settings.buffer_pool_mb * settings.max_open_stores + 1024 <= gibibytes * 1024


def test_compose_publishes_to_this_machine_alone(service: dict[str, Any]) -> None:
    port = final("EXPOSE")
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]


def test_compose_confines_the_container(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert any(each.startswith("/tmp") for each in service["tmpfs"])  # noqa: S108 - the container's own
    assert {"cpus", "memory", "pids"} <= set(service["deploy"]["resources"]["limits"])


def test_compose_checks_health_as_the_image_does(service: dict[str, Any]) -> None:
    check = final("HEALTHCHECK")
    assert service["healthcheck"]["test"][1:] == json.loads(check.partition("CMD ")[2])
    assert f"--interval={service['healthcheck']['interval']}" in check


# --- a cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine() -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]


def filled_in(service: dict[str, Any]) -> dict[str, str]:
    given = environment_file(CLUSTER / "node.env")
    return {
        name: re.sub(r"\$\{(\w+)\}", lambda found: given[found[1]], value)
        for name, value in service["environment"].items()
    }


def test_a_node_of_the_cluster_takes_what_its_file_says(machine: dict[str, Any]) -> None:
    given = filled_in(machine["kgserve"])
    assert set(given) <= SETTINGS
    settings = load_settings({}, given)
    here = machine["nats"]["ports"][0].split(":")[-1]
    assert f"@{settings.node_name}:{here}" in settings.cluster
    assert settings.advertise_url == f"http://{settings.node_name}:{machine['kgserve']['ports'][0].split(':')[-1]}"
    assert seconds(machine["kgserve"]["stop_grace_period"]) > settings.shutdown_grace
    assert any("cluster" in each for each in of("RUN") if "pip" in each)


def test_the_nodes_connect_with_the_servers_password(machine: dict[str, Any]) -> None:
    password = filled_in(machine["nats"])["KGSERVE_NATS_PASSWORD"]
    servers = filled_in(machine["kgserve"])["KGSERVE_CLUSTER"].split(",")
    assert [each.startswith(f"nats://kgserve:{password}@") for each in servers] == [True] * 3


@pytest.mark.parametrize("of_container", [True, False])
def test_nats_takes_the_variables_that_it_is_given(machine: dict[str, Any], tmp_path: Path, of_container: bool) -> None:
    given = filled_in(machine["nats"]) if of_container else environment_file(NATS / "kgserve-nats.env")
    assert given["KGSERVE_NATS_FOLDER"] in {machine["nats"]["volumes"][1].split(":")[1], "/var/lib/kgserve-nats"}
    command = [Path(sys.executable).with_name("nats-server"), "-t", "-c", NATS / "kgserve-nats.conf"]
    complete = subprocess.run(
        command, env=given | {"KGSERVE_NATS_FOLDER": str(tmp_path)}, capture_output=True, check=False
    )
    assert complete.returncode == 0, complete.stderr
    assert re.findall(r"kgserve:(\w+)@", given["KGSERVE_NATS_ROUTES"]) == [given["KGSERVE_NATS_PASSWORD"]] * 3
    del given["KGSERVE_NATS_ROUTES"]
    assert subprocess.run(command, env=given, capture_output=True, check=False).returncode != 0


# --- systemd ---------------------------------------------------------------------------------------------------------


def test_nats_servers_get_the_time_that_lame_duck_mode_needs(machine: dict[str, Any]) -> None:
    (duration,) = re.findall(r'lame_duck_duration: "(\w+)"', (NATS / "kgserve-nats.conf").read_text())
    assert seconds(machine["nats"]["stop_grace_period"]) > seconds(duration)
    assert machine["nats"]["stop_signal"] == "SIGUSR2"
    service = unit(NATS / "kgserve-nats.service")["Service"]
    assert seconds(service["TimeoutStopSec"]) > seconds(duration)
    assert "USR2" in service["ExecStop"]


def test_the_nats_unit_finds_the_server_that_the_extra_installs() -> None:
    program, path, *_ = shlex.split(unit(NATS / "kgserve-nats.service")["Service"]["ExecStart"])
    assert Path(unit(SYSTEMD / "kgserve.service")["Service"]["ExecStart"].split()[0]).parent == Path("/opt/kgserve/bin")
    assert path.startswith("PATH=/opt/kgserve/bin:")
    here = f"PATH={Path(sys.executable).parent}:{path.removeprefix('PATH=')}"
    found = subprocess.run([program, here, "nats-server", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("nats-server: v")


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=["="])
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - as configparser's documentation says
    parser.read(path)
    return parser


def seconds(text: str) -> float:
    number, measure = re.fullmatch(r"(\d+)(s|min|h|)", text).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return int(number) * {"s": 1, "": 1, "min": 60, "h": 3600}[measure]


def environment_file(path: Path = SYSTEMD / "kgserve.env") -> dict[str, str]:
    lines = path.read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def command_of(service: configparser.SectionProxy) -> list[str]:
    """Return the command that a service finally runs; a shell before it may add options."""
    words = shlex.split(service["ExecStart"])
    return words[4:] if words[:2] == ["/bin/sh", "-c"] else words


KGSERVE_UNITS = ("kgserve.service", "kgserve-backup.service", "kgserve-replicate.service")


@pytest.mark.parametrize("name", KGSERVE_UNITS)
def test_a_service_runs_a_command_that_exists(name: str) -> None:
    service = unit(SYSTEMD / name)["Service"]
    program, *words = command_of(service)
    assert program.startswith("/")
    assert Path(program).name == "kgserve"
    assert fault(words) is None
    given = dict(word.split("=", 1) for word in shlex.split(service["Environment"]))
    assert set(given) <= SETTINGS
    assert given["KGSERVE_DATA_DIR"] == f"%S/{service['StateDirectory']}"


@pytest.mark.parametrize("name", [*(f"systemd/{name}" for name in KGSERVE_UNITS), "nats/kgserve-nats.service"])
def test_a_service_is_confined(name: str) -> None:
    service = unit(TOP / "deploy" / name)["Service"]
    assert service["User"] != "root"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    for option in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "RestrictNamespaces"):
        assert service[option] == "yes", option
    assert service["UMask"] == "0077"


def test_the_service_waits_until_the_stores_are_closed() -> None:
    service = unit(SYSTEMD / "kgserve.service")["Service"]
    assert seconds(service["TimeoutStopSec"]) > Settings().shutdown_grace
    assert service["KillSignal"] == "SIGTERM"


def test_the_services_share_user_and_settings() -> None:
    one, *others = (unit(SYSTEMD / name)["Service"] for name in KGSERVE_UNITS)
    for other in others:
        for option in ("User", "Group", "StateDirectory"):
            assert one[option] == other[option]
        assert one["EnvironmentFile"] in (SYSTEMD / KGSERVE_UNITS[others.index(other) + 1]).read_text()
    declared = (SYSTEMD / "kgserve.sysusers.conf").read_text().splitlines()[-1].split()
    assert declared[:2] == ["u", one["User"]]


def test_backups_go_to_a_place_that_may_be_written() -> None:
    service = unit(SYSTEMD / "kgserve-backup.service")["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[words.index("--to") + 1] == service["ReadWritePaths"]


def test_full_backups_run_on_sundays() -> None:
    service = unit(SYSTEMD / "kgserve-backup.service")["Service"]
    # As systemd reads it: doubled signs are single ones.
    words = shlex.split(service["ExecStart"].replace("$$", "$").replace("%%", "%"))
    plain = command_of(service)[1:]
    for day, added in (("6", []), ("7", ["--full", "--keep", "5"])):
        script = words[2].replace("$(date +%u)", day)
        assert script != words[2]
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", "echo", *plain], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [*plain, *added]
        assert fault(done.stdout.split()) is None
    assert subprocess.run(["date", "+%u"], capture_output=True, text=True, check=True).stdout.strip() in set("1234567")


def test_the_timer_belongs_to_the_backup() -> None:
    timer = unit(SYSTEMD / "kgserve-backup.timer")
    assert re.fullmatch(r"\*-\*-\* \d\d:\d\d:\d\d", timer["Timer"]["OnCalendar"])
    assert timer["Install"]["WantedBy"] == "timers.target"
    assert (SYSTEMD / "kgserve-backup.service").exists()


def test_the_environment_file_can_be_loaded() -> None:
    given = environment_file()
    assert set(given) <= SETTINGS
    assert load_settings({}, given).port == 8080


def test_the_instructions_install_every_file() -> None:
    text = (TOP / "docs" / "install.md").read_text()
    assert [path.name for path in SYSTEMD.iterdir() if path.name not in text] == []
