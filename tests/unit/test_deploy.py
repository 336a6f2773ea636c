"""The files of deploy/ and docker-compose.yml as far as they can be read without Docker: what they mount exists, the
commands they run take those flags, and no image names a registry."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from joulegate import app

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def check_command(words: list[str]) -> None:
    """`words` after `joulegate`: a command that exists, with options that it has, and a configuration that is there."""
    commands: Any = get_command(app)
    command = commands.commands[words[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    given = {word for word in words[1:] if word.startswith("--")}
    assert given <= known, given - known
    for word in words[1:]:
        if word.startswith("/etc/joulegate/") and word != "/etc/joulegate/gateway.yaml":
            assert (ROOT / "configs" / Path(word).name).exists(), word


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_of_the_compose_file(name: str) -> None:
    service = SERVICES[name]
    assert set(service["profiles"]) <= {"gpu", "emulated"}
    image = service["image"].partition("$")[0]
    assert "." not in image.partition("/")[0].partition(":")[0], "no registry in an image's name"
    for mount in service.get("volumes", []):
        source = mount.partition(":")[0]
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], mount
    for other in service.get("depends_on", {}):
        assert set(service["profiles"]) <= set(SERVICES[other]["profiles"])
    if service["image"] == "joulegate":
        agent = service.get("entrypoint") == ["joulegate-agent"]
        check_command((["agent"] if agent else []) + service["command"])
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        assert service.get("cap_add", []) == (["SYS_ADMIN"] if name == "agent" else [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_the_commands_of_a_unit(unit: Path) -> None:
    lines = re.findall(r"^Exec\w+=(.*)$", unit.read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "/opt/joulegate/bin/joulegate"
        check_command(words)


def test_the_image_copies_what_is_there_and_runs_as_nobody_in_particular() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    for source in re.findall(r"^COPY (?:--chmod=\S+ )?(\S+) ", text, re.MULTILINE):
        assert source.startswith("--from=") or (ROOT / source).exists(), source
    assert re.search(r"^USER 10001", text, re.MULTILINE) and "HEALTHCHECK" in text


def test_what_the_image_installs_is_what_was_locked() -> None:
    def pins(name: str) -> dict[str, str]:
        return dict(re.findall(r"^([\w.\-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))

    assert pins("requirements-serve.lock").items() <= pins("requirements.lock").items()
