"""A cluster on Ray: start, stop, restart, submit as a job, kill actors, fence a second writer.

The tests share one Ray cluster and run in the order of the file; each leaves the cluster serving.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import msgpack
import pytest

from actors.broker.handle_api import MAX_WAIT_MS
from actors.host import ray_port
from actors.transport.client import RemotingClient
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.properties_text import parse_properties
from cluster import launch
from cluster.control import driver
from cluster.control.launch_errors import LaunchFailed, LaunchRefused
from cluster.control.plan import Verb
from cluster.control.preflight import free_ports
from cluster.control.session.ray_head import marked_processes, read_record
from cluster.control.session.ray_session import disconnect
from cluster.control.topology.topology_file import TopologyError, load_topology
from store.common.clock import SystemClock
from store.ownership.identity import StoreIdentity, StoreName, write_name
from tests.cluster.conftest import REPO, RayMQ
from tests.cluster.ray_helpers import (
    TOPIC,
    append,
    append_and_read,
    ensure_up,
    kill_process,
    last_line,
    read_all,
    status_of,
    wait_for_restart,
)
from tests.eventually import LIMIT_S, eventually
from tests.ports import free_port

pytestmark = [pytest.mark.ray, pytest.mark.slow]

BROKERS = ("broker-a", "broker-b")
PACKAGE_BYTES_MAX = 7 * 1024 * 1024  # the source folders have 6.1 MiB


def failing(raymq: RayMQ) -> dict[str, str]:
    """Return the reason why each actor does not serve, by name, or an empty text.

    A slow actor may be reported for a moment.
    """
    topology = load_topology(overrides=raymq.overrides)
    return {entry.actor.name: entry.failing for entry in launch.status(topology)}


def test_restart_of_the_cluster_keeps_every_message(raymq: RayMQ) -> None:
    ensure_up(raymq)
    for broker in BROKERS:
        assert append(broker, b"first", b"second")["code"] == 0
    disconnect()
    record = read_record(raymq.home)
    assert record is not None

    down = raymq.run("down")
    assert down.returncode == 0, down.stderr
    assert "stopped Ray" in last_line(down.stdout)
    assert list(marked_processes(record.mark)) == []
    assert raymq.run("status").returncode == 1
    assert not (raymq.store("broker-a") / "abort").exists()

    ensure_up(raymq)
    for broker in BROKERS:
        assert read_all(broker) == [b"first", b"second"]


def test_status_lists_all_actors(running: RayMQ) -> None:
    eventually(lambda: not any(failing(running).values()), "all actors serving")
    done = running.run("status")
    assert done.returncode == 0, done.stderr
    actors = {actor["actor"]: actor for actor in json.loads(done.stdout)["actors"]}
    assert list(actors) == [
        "nameserver-0",
        "nameserver-1",
        "rebalancer-0",
        *(f"{name}-0" for name in BROKERS),
    ]
    assert {actor["state"] for actor in actors.values()} == {"serving"}
    assert actors["nameserver-0"]["address"] == running.nameserver


def test_second_up_adopts_running_actors(running: RayMQ) -> None:
    before = status_of("broker-a-0")["pid"]
    result = launch.up(overrides=running.overrides)
    assert {action.verb for action in result.plan.actions} == {Verb.ADOPT}
    assert result.nameservers == launch.find_nameservers() == running.nameservers
    assert status_of("broker-a-0")["pid"] == before


def test_second_cluster_on_the_same_ports_and_stores_is_refused(running: RayMQ) -> None:
    second = [*running.overrides, "namespace=second", f"store_root={running.home}/store"]
    with pytest.raises(LaunchRefused) as caught:
        launch.up(overrides=second)
    text = str(caught.value)
    for broker in BROKERS:
        assert f"is in use by {broker}-0 of cluster DefaultCluster (raymq)" in text
        assert f"{running.store(broker)} is the store of {broker}-0 of cluster DefaultCluster (raymq)" in text
    assert "in use by nameserver-0 of cluster DefaultCluster (raymq)" in text
    assert [where for where in ray_port.list_actors() if where.namespace == "second"] == []


def test_other_cluster_in_the_same_namespace_is_refused(running: RayMQ) -> None:
    with pytest.raises(LaunchRefused, match="belongs to cluster DefaultCluster, not Other"):
        launch.up(overrides=[*running.overrides, "cluster=Other"])


def test_missing_node_resource_is_refused_after_timeout(
    running: RayMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "PLACEMENT_TIMEOUT_S", 0.1)
    with pytest.raises(
        TopologyError, match=r"brokers\[0\]\.resource: no running node has the resource 'disk-x'"
    ):
        launch.up(overrides=[*running.overrides, "brokers.broker-a.resource=disk-x"])
    assert status_of("broker-a-0")["state"] == "serving"


def test_actor_handles_example_runs(running: RayMQ, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(REPO / "docs" / "examples" / "actor_handles.py"))
    example["main"]()
    shown = capsys.readouterr().out
    assert "stored 2 messages" in shown
    assert "read 4 apples\nread 2 pears\n" in shown


def test_long_polling_read_does_not_block_describe(running: RayMQ) -> None:
    import ray

    broker = ray.get_actor("broker-a-0", namespace="raymq")
    end = len(append_and_read("broker-a"))
    request = msgpack.packb({"v": 1, "topic": TOPIC, "queue": 0, "offset": end, "wait_ms": MAX_WAIT_MS})
    waiting = [broker.read.remote(request) for _ in range(8)]
    assert msgpack.unpackb(ray.get(broker.describe.remote(), timeout=LIMIT_S))["code"] == 0
    finished, _ = ray.wait(waiting, num_returns=1, timeout=0)
    assert finished == []
    assert append("broker-a", b"wakes them")["code"] == 0
    replies = [msgpack.unpackb(reply) for reply in ray.get(waiting, timeout=LIMIT_S)]
    assert {reply["count"] for reply in replies} == {1}


def test_killed_broker_restarts_with_all_acknowledged_messages(running: RayMQ) -> None:
    before = status_of("broker-b-0")
    acknowledged = append_and_read("broker-b")
    assert append("broker-b", b"just before the kill")["code"] == 0
    after = wait_for_restart("broker-b-0", kill_process("broker-b-0"))
    assert read_all("broker-b") == [*acknowledged, b"just before the kill"]
    assert after["details"]["epoch"] == before["details"]["epoch"] + 1
    eventually(lambda: not any(failing(running).values()), "all actors serving")


@pytest.mark.extended
def test_broker_that_is_asked_to_restart_serves_again_in_a_new_process(running: RayMQ) -> None:
    before = status_of("broker-b-0")
    acknowledged = append_and_read("broker-b")
    call_broker("broker-b", RayMQRequestCode.RESTART_BROKER)
    after = wait_for_restart("broker-b-0", before["pid"])
    assert read_all("broker-b") == acknowledged
    assert after["spec"] == before["spec"]
    eventually(lambda: not any(failing(running).values()), "all actors serving")


def test_fenced_writer_acknowledges_nothing(running: RayMQ) -> None:
    epoch = running.store("broker-a") / "raymq.epoch"
    successor = epoch.with_suffix(".tmp")
    successor.write_text(f"{int(epoch.read_text()) + 1}\n")
    successor.replace(epoch)
    reply = append("broker-a", b"of an old epoch")
    assert reply["code"] != 0
    assert "another writer has opened this store" in reply["remark"]
    eventually(
        lambda: failing(running)["broker-a-0"].startswith("refuses writes: "), "the broker's own report"
    )

    wait_for_restart("broker-a-0", kill_process("broker-a-0"))
    assert append("broker-a", b"of a new epoch")["code"] == 0


def test_live_settings_change_in_place_and_survive_a_kill(running: RayMQ) -> None:
    before = status_of("broker-a-0")["pid"]
    live = [*running.overrides, "broker_settings.fileReservedTime=48"]
    adjusted = launch.up(overrides=live).plan.having(Verb.ADJUST)
    assert [(action.name, action.reason) for action in adjusted] == [
        (f"{broker}-0", "store.file_reserved_time_h: unset → 48") for broker in BROKERS
    ]
    assert status_of("broker-a-0")["pid"] == before
    assert broker_config("broker-a")["fileReservedTime"] == "48"

    wait_for_restart("broker-a-0", kill_process("broker-a-0"))
    assert broker_config("broker-a")["fileReservedTime"] == "48"
    change_broker_config("broker-a", b"brokerPermission=4")
    assert append("broker-a", b"from a producer with an old route")["code"] == 0
    assert broker_config("broker-a")["brokerPermission"] == "4"
    assert {action.verb for action in launch.up(overrides=live, dry_run=True).plan.actions} == {
        Verb.ADOPT,
        Verb.ADJUST,
    }
    launch.up(overrides=running.overrides)
    assert append("broker-a", b"as the topology says")["code"] == 0
    settings = broker_config("broker-a")
    assert (settings["fileReservedTime"], settings["brokerPermission"]) == ("72", "6")


def call_broker(broker: str, code: int, body: bytes = b"") -> RemotingCommand:
    host, port = status_of(f"{broker}-0")["spec"]["advertised"]

    async def call() -> RemotingCommand:
        client = RemotingClient(SystemClock())
        try:
            return await client.invoke(f"{host}:{port}", RemotingCommand(code, {}, body), int(LIMIT_S * 1000))
        finally:
            await client.close()

    response = asyncio.run(call())
    assert response.code == 0, response.remark
    return response


def broker_config(broker: str) -> dict[str, str]:
    return parse_properties(bytes(call_broker(broker, RequestCode.GET_BROKER_CONFIG).body).decode())


def change_broker_config(broker: str, text: bytes) -> None:
    call_broker(broker, RequestCode.UPDATE_BROKER_CONFIG, text)


def with_third_broker(raymq: RayMQ, port: int) -> list[str]:
    names = [*BROKERS, "broker-c"]
    ports = [*raymq.ports[1:3], port]
    entries = ", ".join(
        f"{{name: {name}, listen_port: {port}}}" for name, port in zip(names, ports, strict=True)
    )
    return [*raymq.overrides, f"brokers=[{entries}]"]


def test_broker_that_cannot_serve_gives_reason_and_prune_removes_it(running: RayMQ) -> None:
    three = with_third_broker(running, free_port(-2))
    store = running.store("broker-c")
    store.mkdir(parents=True)
    write_name(store, StoreName(StoreIdentity("DefaultCluster", "broker-c"), "id", 1 << 20, 6_000_000, 1, 2))
    with pytest.raises(LaunchFailed, match=r"broker-c-0: not serving: .*commit_log_file_bytes"):
        launch.up(overrides=three)
    (store / "raymq.json").unlink()
    result = launch.up(overrides=three)
    assert [action.name for action in result.plan.having(Verb.ROLL)] == ["broker-c-0"]

    dry = launch.up(overrides=running.overrides, dry_run=True, prune=True)
    assert [action.name for action in dry.plan.having(Verb.REMOVE)] == ["broker-c-0"]
    kept = launch.up(overrides=running.overrides)
    assert [action.name for action in kept.plan.having(Verb.KEEP)] == ["broker-c-0"]
    assert status_of("broker-c-0")["state"] == "serving"
    launch.up(overrides=running.overrides, prune=True)
    with pytest.raises(ray_port.ActorNotFound):
        status_of("broker-c-0")
    assert (store / "raymq.json").exists()


def test_check_runs_on_the_node_with_the_resource(running: RayMQ) -> None:
    resource = status_of("broker-a-0")["spec"]["resource"]
    assert len(ray_port.run_on(resource, free_ports, ["127.0.0.1"], timeout_s=LIMIT_S)) == 1


def test_actor_kill_waits_until_its_name_is_free(running: RayMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    class Idle:
        pass

    where = ray_port.ActorName("raymq", "idle")
    resource = status_of("broker-a-0")["spec"]["resource"]
    ray_port.create(Idle, where, (), resources={resource: ray_port.PIN_SHARE})
    kill, requests = ray.kill, []
    monkeypatch.setattr(ray, "kill", lambda actor, **options: requests.append(lambda: kill(actor, **options)))
    with pytest.raises(ray_port.ActorUnavailable, match="has not terminated actor idle"):
        ray_port.kill(where, timeout_s=0.1)
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(ray_port.kill, where, LIMIT_S)
        eventually(lambda: len(requests) == 2 or ended.done(), "the second kill request")
        assert not ended.done()
        requests[0]()
        ended.result(timeout=LIMIT_S)
    ray_port.create(Idle, where, (), resources={resource: ray_port.PIN_SHARE})
    monkeypatch.undo()
    ray_port.kill(where)


def test_job_upload_contains_only_source_folders(tmp_path: Path) -> None:
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    package = tmp_path / "package.zip"
    create_package(str(REPO), package, include_gitignore=True, excludes=get_runtime_env_default_excludes())
    assert package.stat().st_size < PACKAGE_BYTES_MAX
    with ZipFile(package) as packed:
        folders = {name.partition("/")[0] for name in packed.namelist() if "/" in name}
    assert folders == {"actors", "cluster", "configs", "jobs", "store"}


def submit(raymq: RayMQ, tree: Path, overrides: list[str]) -> str:
    record = read_record(raymq.home)
    assert record is not None
    sets = [part for override in overrides for part in ("--set", override)]
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", record.dashboard]
    command += ["--working-dir", ".", "--", "python", "-m", "cluster.launch", "configs/local.yaml", *sets]
    environment = {key: value for key, value in raymq.environment.items() if key != "PYTHONPATH"}

    def submitted() -> subprocess.CompletedProcess[str] | None:
        done = subprocess.run(
            command,
            env=environment,
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=4 * LIMIT_S,
            check=False,
        )
        # Ray's agent may start later than the head, which already reports that it is running.
        return None if "No available agent" in done.stderr else done

    done = eventually(submitted, "the job agent of Ray", within_s=120)
    assert done is not None
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_job_resubmitted_with_edited_code_keeps_every_message(running: RayMQ, tmp_path: Path) -> None:
    """Use a separate cluster with as few actors as possible: each submission restarts all of them."""
    nameserver, namespace, broker = free_port(), "submitted", "broker-s"
    overrides = [
        *running.overrides,
        "cluster=Submitted",
        f"namespace={namespace}",
        f"nameservers=[{{listen_port: {nameserver}}}]",
        f"brokers=[{{name: {broker}, listen_port: {free_port(-2)}}}]",
    ]
    launch.up(overrides=overrides)
    tree = tmp_path / "tree"
    shutil.copytree(
        REPO, tree, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "tests")
    )
    assert append(broker, b"first", b"second", namespace=namespace)["code"] == 0
    first = status_of(f"{broker}-0", namespace)["code_version"]
    (tree / "actors" / "host" / "shell.py").open("a").write("# edited\n")

    shown = submit(running, tree, overrides)
    assert f"READY 127.0.0.1:{nameserver}" in shown
    second = status_of(f"{broker}-0", namespace)["code_version"]
    assert f"code {first} → {second}" in shown
    assert first != second
    assert read_all(broker, namespace) == [b"first", b"second"]
    launch.down(load_topology(overrides=overrides))


def test_interrupted_up_leaves_no_process(raymq: RayMQ, tmp_path: Path) -> None:
    sets = [part for override in raymq.overrides for part in ("--set", override)]
    ports = [f"{key}.listen_port=0" for key in ("nameservers.0", "nameservers.1", "brokers.0", "brokers.1")]
    sets += [part for port in ports for part in ("--set", port)]
    started = subprocess.Popen(
        [sys.executable, "-m", "cluster.cli.main", "up", *sets],
        env=raymq.environment | {"RAYMQ_HOME": str(tmp_path)},
        cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def is_starting() -> bool:
        assert started.poll() is None
        record = read_record(tmp_path)
        return record is not None and any(True for _ in marked_processes(record.mark))

    eventually(is_starting, "the first process of Ray")
    record = read_record(tmp_path)
    assert record is not None
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate(timeout=4 * LIMIT_S)
    assert stderr == "interrupted; Ray was stopped again, nothing is left running\n"
    assert started.returncode == launch.EXIT_INTERRUPTED
    assert list(marked_processes(record.mark)) == []
    assert read_record(tmp_path) is None
