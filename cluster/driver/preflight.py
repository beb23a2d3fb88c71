"""What must be free before anything is started: ports and stores, looked at on the machine where they are.

Runs on other nodes as a Ray task, so it takes and gives values that can be pickled.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from store.ownership.identity import LOCK_FILE, StoreIdentity, read_name
from store.store_errors import StoreError

FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid."""


def check_port(host: str, port: int) -> str:
    """Why `host:port` cannot be bound here, or an empty string. Port 0 always can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # Another that has only bound, or listens with the same option, shows itself here.
            probe.listen(1)
        except OSError as error:
            owner = port_owner(port)
            belongs = f": it belongs to {owner}" if owner else ""
            return f"{host}:{port} cannot be bound ({error.strerror}){belongs}"
    return ""


def port_owner(port: int) -> str:
    """The process that listens on a port, as far as this user may know."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,) and connection.pid:
                return f"process {connection.pid} ({_command(connection.pid)})"
    return ""


def _command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())[:80].strip() or "its command is hidden"
    return "its command is hidden"


def check_store(root: str, identity: StoreIdentity) -> str:
    """Why the store at `root` cannot be opened by the broker `identity`, or an empty string."""
    folder = Path(root)
    if folder.exists() and not folder.is_dir():
        return f"{root} is no directory"
    if reason := _not_writable(folder):
        return reason
    try:
        name = read_name(folder)
    except (StoreError, OSError) as error:
        return str(error)
    if name is not None and name.identity != identity:
        return (
            f"{root} belongs to {spell(name.identity)}, not to {spell(identity)}; "
            "name the right store or broker"
        )
    if owner := lock_owner(folder / LOCK_FILE):
        whose = f"the store of {spell(name.identity)} and " if name else ""
        return f"{root} is {whose}in use by process {owner} ({_command(owner)}); a store has one writer"
    return ""


def spell(identity: StoreIdentity) -> str:
    """A store's owner in words."""
    return f"broker {identity.broker} (replica {identity.replica}) of cluster {identity.cluster}"


def _not_writable(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} cannot be written by this user"
    return ""


def lock_owner(lock: Path) -> int:
    """The process that holds RocketMQ's lock (a POSIX record lock on the first byte), or 0."""
    try:
        with lock.open("rb+") as file:
            question = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, question)
    except OSError:
        return 0
    kind, _, _, _, pid = FLOCK.unpack(answer)
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def free_ports(hosts: Sequence[str]) -> list[int]:
    """A free port of each host, all different."""
    with contextlib.ExitStack() as held:
        ports = []
        for host in hosts:
            probe = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            probe.bind((host, 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


@dataclass(frozen=True)
class Demand:
    """What must be free for one actor. `place` is its key path; port 0 and no store need no check."""

    place: str
    host: str
    port: int
    store: str = ""
    identity: StoreIdentity | None = None


def check_all(demands: Sequence[Demand]) -> list[str]:
    """All that hinders, a line each that begins with the key path."""
    found = []
    for demand in demands:
        if demand.port and (reason := check_port(demand.host, demand.port)):
            found.append(f"{demand.place}.listen_port: {reason}; give it another port, or end that process")
        if demand.identity and (reason := check_store(demand.store, demand.identity)):
            found.append(f"{demand.place}.store: {reason}")
    return found
