"""The distributions raymq and raymq-client: their contents, and how they work outside of the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S
from tests.ports import free_port

REPO = Path(__file__).parents[1]
SEND_AND_RECEIVE = """
import importlib.util, sys
from cluster.client import Admin, ClientError, Message, PopConsumer, Producer, PullConsumer, PushConsumer

for name in ("ray", "raydp", "pyspark", "numba", "numpy", "pyarrow", "pandas", "aiohttp"):
    assert importlib.util.find_spec(name) is None, name
address, TOPIC = sys.argv[1:]
with Admin(address) as admin:
    admin.create_topic(TOPIC, queues=2)
expected = sorted(str(number).encode() for number in range(301))
with Producer(address, group="shop") as producer:
    producer.send(TOPIC, b"300", tags="last", keys="k")
    producer.send_batch([Message(TOPIC, str(number).encode()) for number in range(300)])
    for call in (lambda: producer.send_many(TOPIC, [b"1"]), lambda: producer.send_table(TOPIC, None)):
        try:
            call()
        except ClientError as error:
            print(error, file=sys.stderr)
with PullConsumer(address, "audit") as consumer:
    consumer.subscribe(TOPIC)
    found = []
    for message in consumer:
        found.append(message.body)
        if len(found) == len(expected):
            break
    assert sorted(found) == expected
    try:
        consumer.poll_arrow()
    except ClientError as error:
        print(error, file=sys.stderr)
with PopConsumer(address, "labels") as worker:
    for message in worker.receive(TOPIC, max_messages=8, invisible_ms=60_000):
        worker.ack(message)
print("received", len(found))
"""

COMMANDS = """
import sys
from cluster.cli.main import main

for command in sys.argv[2:]:
    try:
        main(command.split())
    except SystemExit as ended:
        assert ended.code == int(sys.argv[1]), (command, ended.code)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the wheels of both distributions."""
    built = tmp_path_factory.mktemp("wheels")
    for source in (".", "client"):
        run(["uv", "build", "--wheel", "--quiet", "--out-dir", str(built), source], cwd=REPO)
    return built


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The locked versions of all packages: an installation in a test takes what `uv sync` has cached."""
    file = tmp_path_factory.mktemp("locked") / "constraints.txt"
    export = ["uv", "export", "--frozen", "--no-dev", "--no-hashes", "--no-emit-project", "--quiet"]
    run([*export, "--output-file", str(file)], cwd=REPO)
    return file


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with raymq's wheel, which finds other packages in the repository's."""
    (wheel,) = wheels.glob("raymq-*.whl")
    programs = environment_with(wheel, tmp_path_factory.mktemp("installed") / "venv", "--no-deps")
    site = Path(sysconfig.get_path("purelib", vars={"base": str(programs.parent)}))
    # .pth files in that directory, such as the one of the repository itself, are not followed
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return programs


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a standalone cluster, which runs in the environment of the repository."""
    cluster = Cluster(tmp_path_factory.mktemp("stores"), brokers=1)
    yield cluster.address
    cluster.stop()


def environment() -> dict[str, str]:
    """Return the environment variables of a process that finds nothing of this test process."""
    own = {"PYTHONPATH", "VIRTUAL_ENV", "RAY_ADDRESS", "RAYMQ_NAMESERVERS"}
    return {name: value for name, value in os.environ.items() if name not in own}


def run(
    command: list[str], *, cwd: Path, code: int = 0, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command with the variables of `environment` and `more`, and return its output."""
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=environment() | (more or {}),
        capture_output=True,
        text=True,
        timeout=20 * LIMIT_S,
        check=False,
    )
    assert ended.returncode == code, (command, ended.stdout[-3000:], ended.stderr[-3000:])
    return ended


def python_of(version: str) -> str:
    """Return the interpreter of a Python version that this machine has; skip the test without one."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*versions.glob(f"{version}.*/bin/python"), *Path("/usr/bin").glob(f"python{version}")]
    if not found:
        pytest.skip(f"this machine has no Python {version}")
    return str(found[0])


def environment_with(wheel: Path, root: Path, *options: str, python: str = sys.executable) -> Path:
    """Create a virtual environment with a wheel, and return the directory of its programs."""
    run(["uv", "venv", "--quiet", "--python", python, str(root)], cwd=root.parent)
    install = ["uv", "pip", "install", "--quiet", "--python", str(root / "bin" / "python"), *options]
    run([*install, str(wheel)], cwd=root.parent)
    return root / "bin"


def test_wheels_contain_the_files_that_commands_need_and_no_tests(wheels: Path) -> None:
    (full,), (light,) = wheels.glob("raymq-*.whl"), wheels.glob("raymq_client-*.whl")
    files = set(ZipFile(full).namelist())
    needed = [
        "configs/local.yaml",
        "configs/grafana/alerts.yaml",
        "configs/grafana/raymq.json",
        "cluster/lab/bench/omb/OmbClients.java",
        *(f"{package}/py.typed" for package in ("actors", "cluster", "jobs", "store")),
        *(str(each.relative_to(REPO)) for each in (REPO / "cluster/console/static").rglob("*.*")),
    ]
    assert [each for each in needed if each not in files] == []
    tops = {each.split("/")[0] for each in files if ".dist-info/" not in each}
    assert tops == {"actors", "cluster", "configs", "jobs", "store"}
    assert [each for each in files if "__pycache__" in each or "/test" in each] == []
    assert {each for each in ZipFile(light).namelist() if ".dist-info/" not in each} == {
        each for each in files if ".dist-info/" not in each
    }


def test_client_has_dependencies_and_the_version_of_raymq(wheels: Path) -> None:
    full = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    light = tomllib.loads((REPO / "client/pyproject.toml").read_text())["project"]
    extras = light["optional-dependencies"]
    assert set(light["dependencies"]) | set(extras["tables"]) < set(full["dependencies"])
    assert extras["otel"] == full["optional-dependencies"]["otel"]
    assert [*wheels.glob(f"raymq_client-{full['version']}-*.whl")] != []


def test_installed_raymq_starts_outside_of_the_repository(installed: Path, tmp_path: Path) -> None:
    assert "Start a cluster" in run([str(installed / "raymq"), "--help"], cwd=tmp_path).stdout
    shown = json.loads(run([str(installed / "raymq"), "version"], cwd=tmp_path).stdout)
    assert shown["raymq"] == tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["version"]
    shown = run([str(installed / "raymq"), "metrics", "config"], cwd=tmp_path).stdout
    assert str(installed.parent) in shown
    assert "configs/grafana/alerts.yaml" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["raymq dev --port 0 --broker-port 0 --console-port 0", "python -m cluster.standalone"],
    ids=["dev", "standalone"],
)
def test_installed_raymq_serves_without_ray(command: str, installed: Path, tmp_path: Path) -> None:
    program, *words = command.split()
    started = [str(installed / program), *words, "--store-root", str(tmp_path / "store")]
    with subprocess.Popen(
        started, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            shown = next((line for line in process.stdout if line.startswith("READY ")), "")
            address = shown.split()[1]
            sent = run([str(installed / "raymq"), "send", "orders", "4 apples", "-n", address], cwd=tmp_path)
            assert json.loads(sent.stdout)["status"] == "SEND_OK"
        finally:
            process.terminate()
    assert process.wait(LIMIT_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "version",
    ["3.11", *(pytest.param(each, marks=pytest.mark.extended) for each in ("3.12", "3.13"))],
)
def test_client_sends_and_receives_without_ray_spark_and_numba(
    version: str, wheels: Path, locked: Path, nameserver: str, tmp_path: Path
) -> None:
    (wheel,) = wheels.glob("raymq_client-*.whl")
    programs = environment_with(wheel, tmp_path / "v", "-c", str(locked), python=python_of(version))
    python, topic = str(programs / "python"), f"light-{version.replace('.', '-')}"
    ended = run([python, "-c", SEND_AND_RECEIVE, nameserver, topic], cwd=tmp_path)
    assert ended.stdout == "received 301\n"
    errors = ended.stderr.splitlines()
    assert [each.split()[0] for each in errors] == ["send_many", "send_table", "poll_arrow"]
    assert all("pip install 'raymq-client[tables]'" in each for each in errors)

    light = ["topic list", "group list", "broker list", f"send {topic} hello", "top --once", "version"]
    reached = {"RAYMQ_NAMESERVERS": nameserver}
    run([python, "-c", COMMANDS, "0", *light], cwd=tmp_path, more=reached)
    heavy = ["up", "down", "status", "demo", "bench list", f"store info {tmp_path}", "console"]
    heavy += ["metrics config", f"export {topic} out"]
    refused = run([python, "-c", COMMANDS, "2", *heavy], cwd=tmp_path, more=reached)
    lines = refused.stderr.splitlines()
    assert len(lines) == len(heavy), lines
    assert all("pip install raymq" in line for line in lines), lines
    shutil.rmtree(tmp_path)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.spark
def test_installed_raymq_runs_demo_cluster_and_spark(wheels: Path, locked: Path, tmp_path: Path) -> None:
    (wheel,) = wheels.glob("raymq-*.whl")
    programs = environment_with(wheel, tmp_path / "venv", "-c", str(locked))
    raymq, python = str(programs / "raymq"), str(programs / "python")
    shown = run([raymq, "demo", "--flights", "2000"], cwd=tmp_path).stdout
    assert "All counts agree" in shown

    home = {"RAYMQ_HOME": str(tmp_path / "home"), "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    address = f"127.0.0.1:{free_port()}"
    settings = ["ray.address=new", "ray.port=0", "ray.dashboard_port=0"]
    settings += [f"nameservers.0.listen_port={address.partition(':')[2]}"]
    settings += [f"brokers.{broker}.listen_port={free_port(-2)}" for broker in ("broker-a", "broker-b")]
    sets = [part for each in settings for part in ("--set", each)]
    try:
        shown = run([raymq, "up", *sets], cwd=tmp_path, more=home).stdout
        assert f"READY {address}" in shown
        run([raymq, "send", "orders", "4 apples", "-n", address], cwd=tmp_path, more=home)
        count = (
            "import sys; from jobs import local_session, read_queue\n"
            "with local_session('orders') as spark:\n"
            "    frame = read_queue(spark, 'orders', nameservers=sys.argv[1], startingOffsets='earliest')\n"
            "    print('rows', frame.count(), [bytes(row.body) for row in frame.select('body').collect()])\n"
        )
        ended = run([python, "-c", count, address], cwd=tmp_path, more=home)
        assert "rows 1 [b'4 apples']" in ended.stdout
    finally:
        run([raymq, "down"], cwd=tmp_path, more=home)
    shutil.rmtree(tmp_path)
