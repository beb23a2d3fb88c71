"""What must be free before anything is started: ports and stores, looked at on the machine where they are.

Runs on other nodes as a Ray task, so it takes and gives plain values.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid."""

IDENTITY_FILE = "raymq.json"
LOCK_FILE = "lock"


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
            return f"{host}:{port} cannot be bound ({error.strerror}){f': it belongs to {owner}' if owner else ''}"
    return ""


def port_owner(port: int) -> str:
    """The process that listens on a port, as far as this user may know."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"process {connection.pid} ({_command(connection.pid)})"
    return ""


def _command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())[:80].strip() or "its command is hidden"
    return "its command is hidden"


def check_store(root: str, identity: Mapping[str, Any]) -> str:
    """Why the store at `root` cannot be this broker's, or an empty string.

    `identity`: keys of the store's own `raymq.json` and the values they must have.
    """
    folder = Path(root)
    if folder.exists() and not folder.is_dir():
        return f"{root} is no directory"
    if reason := _not_writable(folder):
        return reason
    try:
        known = json.loads((folder / IDENTITY_FILE).read_bytes())
    except FileNotFoundError:
        known = {}
    except ValueError as error:
        return f"{folder / IDENTITY_FILE} is damaged: {error}"
    wrong = [
        f"{key} {known[key]!r}, not {value!r}"
        for key, value in identity.items()
        if known.get(key, value) != value
    ]
    if wrong:
        return f"{root} is the store of {', '.join(wrong)}; name the right store, or the right cluster and broker"
    if owner := lock_owner(folder / LOCK_FILE):
        return f"{root} is in use by process {owner} ({_command(owner)}); a store has one writer"
    return ""


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


Demand = tuple[str, str, int, str, Mapping[str, Any]]
"""What one actor wants: key path, host, port (0: nothing to check), store ("": none), identity of the store."""


def check_all(demands: Sequence[Demand]) -> list[str]:
    """All that hinders, a line each that begins with the key path."""
    found = []
    for place, host, port, store, identity in demands:
        if port and (reason := check_port(host, port)):
            found.append(f"{place}.listen_port: {reason}; give it another port, or end that process")
        if store and (reason := check_store(store, identity)):
            found.append(f"{place}.store: {reason}")
    return found
