"""Helpers for tests of a running cluster: start it, call its brokers, kill its actors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack

from actors.host import ray_port
from actors.host.ray_port import ActorName
from cluster.control.session.ray_head import read_record
from cluster.control.session.ray_session import choose_way, connect, disconnect, is_connected
from cluster.control.topology.topology_file import load_topology
from cluster.paths import home_of
from tests.cluster.conftest import RayMQ
from tests.eventually import LIMIT_S, TIME_SCALE, eventually

TOPIC = "kept"
NAMESPACE = "raymq"


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def ensure_up(raymq: RayMQ) -> None:
    """Run `raymq up` unless the topology is running, and connect this process to its Ray."""
    if read_record(raymq.home) is None:
        # A lost node fails each health check immediately: five short periods suffice. A slow node still has
        # 10 s per check.
        raymq.environment["RAY_health_check_period_ms"] = "500"
        done = raymq.run("up")
        assert done.returncode == 0, done.stderr + done.stdout
        assert last_line(done.stdout) == f"READY {';'.join(raymq.nameservers)}"
    topology = load_topology(overrides=raymq.overrides)
    if not is_connected():
        connect(topology, home_of(topology.cluster), choose_way(topology, raymq.home, os.environ))


def stop_if_unhealthy(raymq: RayMQ) -> None:
    """Run `raymq down` if an actor of the topology is not serving."""
    status = raymq.run("status")
    actors = json.loads(status.stdout)["actors"] if status.returncode == 0 else []
    if not actors or any(actor["state"] != "serving" for actor in actors):
        disconnect()
        raymq.run("down")


def call(namespace: str, broker: str, method: str, **fields: object) -> dict[str, Any]:
    request = msgpack.packb({"v": 1, **fields})
    reply: dict[str, Any] = msgpack.unpackb(
        ray_port.call(ActorName(namespace, f"{broker}-0"), method, request, timeout_s=LIMIT_S)
    )
    return reply


def batch(*bodies: bytes) -> bytes:
    from store.message.batch import encode_batch
    from store.message.message import Message

    return encode_batch([Message(TOPIC, body) for body in bodies])


def append(broker: str, *bodies: bytes, namespace: str = NAMESPACE) -> dict[str, Any]:
    return call(namespace, broker, "append", topic=TOPIC, queue=0, batch=batch(*bodies))


def read_all(broker: str, namespace: str = NAMESPACE) -> list[bytes]:
    from store.message.record import decode_records

    found = call(namespace, broker, "read", topic=TOPIC, queue=0, offset=0, max_messages=1000)
    assert found["code"] == 0, found["remark"]
    return [message.body for message in decode_records(found["records"])]


def append_and_read(broker: str) -> list[bytes]:
    """Append one message to the topic of the broker and return all its bodies."""
    assert append(broker, b"one more")["code"] == 0
    return read_all(broker)


def status_of(actor: str, namespace: str = NAMESPACE, timeout_s: float = LIMIT_S) -> dict[str, Any]:
    status: dict[str, Any] = ray_port.call(ActorName(namespace, actor), "raymq_status", timeout_s=timeout_s)
    return status


def kill_process(actor: str) -> int:
    """Kill the process of an actor with SIGKILL and return its PID."""
    pid: int = status_of(actor)["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_for_restart(actor: str, pid: int) -> dict[str, Any]:
    """Wait until the actor serves in another process than `pid`, and return its status."""

    def restarted() -> dict[str, Any] | None:
        try:
            status = status_of(actor, timeout_s=10 * TIME_SCALE)
        except ray_port.ActorUnavailable:
            return None
        return status if status["state"] == "serving" and status["pid"] != pid else None

    status = eventually(restarted, f"restart of {actor} in another process than {pid}", within_s=120)
    assert status is not None
    return status


def submit_job(raymq: RayMQ, working_dir: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Submit a Ray job, as `ray job submit` does, and wait until it has finished."""
    record = read_record(raymq.home)
    assert record is not None
    submit = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", record.dashboard]
    environment = {key: value for key, value in raymq.environment.items() if key != "PYTHONPATH"}

    def submitted() -> subprocess.CompletedProcess[str] | None:
        done = subprocess.run(
            [*submit, "--working-dir", ".", "--", *command],
            env=environment,
            cwd=working_dir,
            capture_output=True,
            text=True,
            timeout=8 * LIMIT_S,
            check=False,
        )
        # Ray's agent may start later than the head, which already reports that it is running.
        return None if "No available agent" in done.stderr else done

    done = eventually(submitted, "the job agent of Ray", within_s=120)
    assert done is not None
    return done
