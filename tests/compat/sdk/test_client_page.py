"""The programs of docs/clients.md, run as they are there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.actors.gateway.gateways import GrpcClient, with_gateway
from tests.compat.build import BuildFailed, JavaNotFound, NodeNotFound, java_program, node_modules_of
from tests.compat.sdk.test_grpc_sdks import PROGRAMS, Command, java_jars, output_of, started

pytestmark = pytest.mark.extended

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
ENDPOINTS = "127.0.0.1:8081"
Run = Callable[[Path, str], Command]
"""Function that prepares a program in a folder, with the package that its first line names."""


def in_python(folder: Path, package: str) -> Command:
    environment = ["uv", "run", "--no-project", "--isolated", "--python", "3.11", "--with", package]
    return [*environment, "python", str(folder / "producer.py")], {}


def in_java(folder: Path, package: str) -> Command:
    pom = PROGRAMS / "java" / "pom.xml"
    group, artifact, version = package.split(":")
    assert f"<version>{version}</version>" in pom.read_text(), package
    assert (group, artifact) == ("org.apache.rocketmq", "rocketmq-client-java")
    return [str(java_program("java")), "-cp", java_jars(), str(folder / "SendFirst.java")], {}


def in_node(folder: Path, package: str) -> Command:
    manifest = PROGRAMS / "node" / "package.json"
    name, _, version = package.partition("@")
    assert f'"{name}": "{version}"' in manifest.read_text(), package
    (folder / "node_modules").symlink_to(node_modules_of(manifest))
    return [shutil.which("node") or "node", str(folder / "producer.mjs")], {}


def in_go(folder: Path, package: str) -> Command:
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not on the PATH: install Go")
    library = package.partition("@")[0]
    for arguments in (["mod", "init", "example"], ["get", package], ["build", library]):
        done = subprocess.run([go, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{package} cannot be downloaded: {done.stderr[-500:]}")
    names = ("GOPATH", "GOCACHE", "GOPROXY")  # of this user, although HOME is another one
    values = subprocess.run([go, "env", *names], capture_output=True, text=True, check=True).stdout.split()
    return [go, "run", "-C", str(folder), "."], dict(zip(names, values, strict=True))


RUNS: Mapping[str, Run] = {"python": in_python, "java": in_java, "js": in_node, "go": in_go}


@pytest.mark.parametrize("language", RUNS)
def test_program_of_the_page_sends_a_message(tmp_path: Path, language: str) -> None:
    first = r"\S+ (?P<name>\w+\.\w+)[^\n]* (?P<package>\S+)"
    found = re.search(rf"```{language}\n(?P<text>{first}\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    folder = tmp_path / "program"
    folder.mkdir()
    try:
        command = RUNS[language](folder, found["package"])
    except (BuildFailed, JavaNotFound, NodeNotFound) as missing:
        pytest.skip(str(missing))

    async def story(client: GrpcClient) -> None:
        assert ENDPOINTS in found["text"]
        text = found["text"].replace(ENDPOINTS, client.cluster.gateway_address)
        (folder / found["name"]).write_text(text)
        await client.create_topic("orders")
        process = await started(command, tmp_path)
        output = await output_of(process)
        assert process.returncode == 0, output
        assert [each.body for each in await client.stored("orders")] == [b"first"]

    with_gateway(tmp_path, story)
