"""The Ray head that `raymq up` starts and `raymq down` stops.

`ray stop` would stop every Ray on the machine. To stop only this head, all its processes inherit a mark in
their environment, by which they are found. The mark is recorded in RAYMQ_HOME before the start, so that an
interrupted start can be cleaned up too.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from cluster.control.session.environment import java_home, ray_environment
from cluster.control.topology.topology import Topology

MARK_ENV = "RAYMQ_RAY_HEAD"
RECORD_FILE = "ray.json"
START_LOG = "ray-start.log"
START_TIMEOUT_S = 180.0
RAYLET_GRACE_S = 8.0
OTHERS_GRACE_S = 2.5
"""Seconds from SIGTERM to SIGKILL for Ray's processes other than the raylet, which is stopped first.

The limit is short, because they have nothing to save without a raylet, and Ray's monitor ignores SIGTERM.
"""


def temporary_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory below which Ray keeps its sessions: RAY_TMPDIR, else TMPDIR, else /tmp.

    These are the rules of ``ray._common.utils.get_default_system_temp_dir`` on Linux.
    """
    return Path(environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp")


CURRENT_CLUSTER = temporary_directory(os.environ) / "ray" / "ray_current_cluster"
"""File in which `ray start` records the address that `address="auto"` uses."""

WORKER_PORTS = ((20000, 29999), (12000, 19999), (61000, 65535))
"""Port ranges for Ray's workers, in order of preference.

Ray's default range, 10002 to 19999, is not used, because a worker could take RocketMQ's port 10911. No range
contains Linux's ephemeral ports (32768 to 60999), of which the head and Ray's agent may get one: `ray start`
refuses a head whose own ports are in the range of the workers.
"""

CLIENT_SERVER_PORT = 10001
ANY_PORT = 0
"""Port of Ray's dashboard agent: any free one. On its default port it would not accept jobs if another Ray on
this machine uses that port.
"""


class HeadFailed(Exception):
    """The Ray head could not be started, or its record is damaged. The message contains the cause."""


@dataclass(frozen=True)
class HeadRecord:
    """Record of a head that `up` started.

    Attributes:
        mark: Value of MARK_ENV in the environment of its processes.
        address: Address of Ray, as `host:port`; empty during the start.
        dashboard: URL of the dashboard and the job server.
    """

    mark: str
    address: str = ""
    dashboard: str = ""


def read_record(home: Path) -> HeadRecord | None:
    """Return the record of the head that `up` started for this home, running or not. None without a record.

    Raises HeadFailed if the record file is damaged.
    """
    try:
        return HeadRecord(**json.loads((home / RECORD_FILE).read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise HeadFailed(
            f"{home / RECORD_FILE} is damaged ({error}); delete it, and stop Ray with `ray stop`"
        ) from error


def write_record(home: Path, record: HeadRecord) -> None:
    """Write the record of a head atomically."""
    home.mkdir(parents=True, exist_ok=True)
    partial = home / f"{RECORD_FILE}.tmp"
    partial.write_text(json.dumps(asdict(record)))
    partial.replace(home / RECORD_FILE)


def living_head(home: Path) -> HeadRecord | None:
    """Return the record of this home's head if it is running, else None."""
    record = read_record(home)
    if record is None or not record.address or not is_listening(record.address):
        return None
    return record if any(True for _ in marked_processes(record.mark)) else None


def current_cluster() -> str | None:
    """Return the address of the Ray that was last started on this machine if it is running, else None."""
    try:
        address = CURRENT_CLUSTER.read_text().strip()
    except OSError:
        return None
    return address if address and is_listening(address) else None


def is_listening(address: str) -> bool:
    """Return True if a process accepts connections at `address` (`host:port`)."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2.0):
            return True
    except (OSError, ValueError):
        return False


def start_head(topology: Topology, home: Path) -> HeadRecord:
    """Start a Ray head on this machine, with Java on its PATH. Raises HeadFailed if two attempts fail."""
    with suppress(HeadFailed):  # Ray waits only 30 s for its processes: not enough on a busy machine
        return _start_once(topology, home)
    return _start_once(topology, home)


def _start_once(topology: Topology, home: Path) -> HeadRecord:
    mark = secrets.token_hex(8)
    write_record(home, HeadRecord(mark))
    port = free_port(topology.ray.port)
    dashboard_port = free_port(topology.ray.dashboard_port)
    log_file = home / START_LOG
    try:
        with log_file.open("wb") as output:
            # A new process session: Ctrl-C must stop this command, but not some of Ray's processes.
            subprocess.run(
                start_command(topology, port, dashboard_port),
                env=ray_environment(os.environ) | {MARK_ENV: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                check=True,
                timeout=START_TIMEOUT_S,
            )
        address = CURRENT_CLUSTER.read_text().strip()
    except BaseException as error:
        stop_head(home)
        if isinstance(error, subprocess.SubprocessError | OSError):
            raise HeadFailed(
                f"`ray start` failed: {last_line(log_file)}\n(complete output: {log_file})"
            ) from error
        raise
    if not address.endswith(f":{port}"):
        stop_head(home)
        raise HeadFailed(
            f"Ray started on port {port}, but {CURRENT_CLUSTER} contains {address}: another Ray was started "
            "at the same time; try again"
        )
    record = HeadRecord(mark, address, f"http://127.0.0.1:{dashboard_port}")
    write_record(home, record)
    return record


def start_command(topology: Topology, port: int, dashboard_port: int) -> list[str]:
    """Return the `ray start` command of the head. Raises HeadFailed if no ports are free."""
    client_port = free_port(CLIENT_SERVER_PORT)
    listeners = [entry.listen_port for _, _, entry in topology.listeners()]
    first, last = worker_ports([*listeners, port, dashboard_port, client_port])
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--disable-usage-stats",
        f"--port={port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}",
        f"--ray-client-server-port={client_port}", f"--dashboard-agent-listen-port={ANY_PORT}",
        f"--min-worker-port={first}", f"--max-worker-port={last}",
    ]  # fmt: skip
    if java_home(os.environ) is not None:
        command.append('--resources={"java": 1}')
    if topology.ray.num_cpus is not None:
        command.append(f"--num-cpus={topology.ray.num_cpus}")
    if topology.ray.object_store_memory_bytes is not None:
        command.append(f"--object-store-memory={topology.ray.object_store_memory_bytes}")
    return command


def worker_ports(taken: Sequence[int]) -> tuple[int, int]:
    """Return the first of WORKER_PORTS that contains none of the ports `taken`.

    Raises HeadFailed if there is no such range.
    """
    for first, last in WORKER_PORTS:
        if not any(first <= port <= last for port in taken):
            return first, last
    ranges = ", ".join(f"{first} to {last}" for first, last in WORKER_PORTS)
    raise HeadFailed(
        f"Ray's workers need one of the port ranges {ranges}, but each contains one of the ports "
        f"{', '.join(map(str, sorted(set(taken) - {0})))}: leave one range free of listen_port and ray.port"
    )


def free_port(preferred: int) -> int:
    """Return `preferred` if this port is free, else any free port. Raises HeadFailed if no port is free."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise HeadFailed("this machine has no free TCP port")


def marked_processes(mark: str) -> Iterable[psutil.Process]:
    """Yield the processes of the head with this mark, except the calling process and its parents."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter(["environ", "name"]):
        environment = process.info["environ"] or {}  # None if it may not be read
        if process.pid not in own and environment.get(MARK_ENV) == mark:
            yield process


def stop_head(home: Path) -> int:
    """Stop the head that `up` started for this home and delete its record. Return the number of processes."""
    record = read_record(home)
    if record is None:
        return 0
    found = list(marked_processes(record.mark))
    raylets = [process for process in found if process.info["name"] == "raylet"]
    # The raylet first: it stops its workers and unregisters from the GCS, which must still be running.
    end_processes(raylets, RAYLET_GRACE_S)
    # Repeat, because a process may have started another one before it was stopped.
    while remaining := list(marked_processes(record.mark)):
        end_processes(remaining, OTHERS_GRACE_S)
    if record.address and CURRENT_CLUSTER.exists() and CURRENT_CLUSTER.read_text().strip() == record.address:
        CURRENT_CLUSTER.unlink(missing_ok=True)
    (home / RECORD_FILE).unlink(missing_ok=True)
    return len(found)


def end_processes(processes: Sequence[psutil.Process], grace_s: float) -> None:
    """Send SIGTERM to `processes`, then SIGKILL to those that still run after `grace_s` seconds."""
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, grace_s)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, OTHERS_GRACE_S)


def last_line(file: Path) -> str:
    """Return the last line of the output of `ray start`."""
    lines = file.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
