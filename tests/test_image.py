"""The container image and compose.yaml, as far as they can be checked without building and starting them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.control.scrape_targets import FILE_NAME
from tests.eventually import LIMIT_S

REPO = Path(__file__).parents[1]


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with its arguments on one line."""
    text = re.sub(r"^#.*\n|\\\n", "", (REPO / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [(line.split()[0], line.partition(" ")[2]) for line in text.splitlines() if line]


def arguments(name: str) -> list[str]:
    return [given for instruction, given in instructions() if instruction == name]


def composed() -> dict[str, Any]:
    return yaml.safe_load((REPO / "compose.yaml").read_text())


def test_image_follows_the_rules_of_hadolint() -> None:
    bases = [each.split()[0] for each in arguments("FROM")]
    assert all(re.fullmatch(r"[\w./-]+:(?!latest)[\w.-]+", each) for each in bases), bases  # DL3006, DL3007
    assert len(set(bases)) == 1  # the interpreter of the virtual environment is that of the base
    assert arguments("USER")[-1] == "raymq"  # DL3002
    assert all(each.startswith("/") for each in arguments("WORKDIR"))  # DL3000
    assert arguments("ADD") == []  # DL3020
    for run in arguments("RUN"):
        assert not re.search("sudo|apt", run), run  # DL3004, DL3008, DL3009
        assert "pip install" not in run or ("--no-cache-dir" in run and "==" in run), run  # DL3013, DL3042
        assert "uv sync" not in run or "--locked" in run
    for commands in (arguments("CMD"), [each.partition("CMD ")[2] for each in arguments("HEALTHCHECK")]):
        assert len(commands) == 1  # DL3012, DL4003
        assert json.loads(commands[0])  # DL3025


def test_image_copies_only_what_the_build_needs_and_sends_no_more() -> None:
    copied = [name for each in arguments("COPY") if "--from" not in each for name in each.split()[:-1]]
    assert [each for each in copied if not (REPO / each).exists()] == []
    ignored, *sent = (REPO / ".dockerignore").read_text().splitlines()
    assert ignored == "*"
    assert {each[1:] for each in sent if each.startswith("!")} == set(copied)


def test_compose_mounts_our_alerts_board_and_targets() -> None:
    services = composed()["services"]
    mounted = [each for service in services.values() for each in service.get("volumes", [])]
    files = [each.split(":")[0] for each in mounted if each.startswith("./")]
    assert sorted(files) == ["./configs/grafana/alerts.yaml", "./configs/grafana/raymq.json"]
    assert [each for each in files if not (REPO / each).is_file()] == []
    contents = {name: yaml.safe_load(each["content"]) for name, each in composed()["configs"].items()}
    for service in services.values():
        assert {each["source"] for each in service.get("configs", [])} <= contents.keys()
    scraped = contents["prometheus"]
    home = re.search(r"RAYMQ_HOME=(\S+)", "\n".join(arguments("ENV")))
    assert home is not None
    assert scraped["scrape_configs"][0]["file_sd_configs"] == [{"files": [f"{home[1]}/{FILE_NAME}"]}]
    assert f"raymq:{home[1]}" in services["raymq"]["volumes"]
    assert scraped["rule_files"][0] in "\n".join(services["prometheus"]["volumes"])


def test_compose_publishes_nothing_beyond_the_machine() -> None:
    services = composed()["services"]
    assert all(each["network_mode"] == "host" and "ports" not in each for each in services.values())
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    images = [each["image"] for each in services.values() if each["image"] != "raymq"]
    assert all(re.fullmatch(r"[\w/]+:v?\d[\w.]+", each) for each in images), images


def test_compose_is_valid_for_docker_compose() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("this machine has no docker compose")
    checked = subprocess.run(
        [docker, "compose", "config", "--quiet"], cwd=REPO, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert checked.returncode == 0, checked.stderr
