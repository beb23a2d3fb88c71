"""Preflight checks: ports and stores must be free before an actor is started.

They run on the node of the actor, as a Ray task if that is another node; arguments and results are pickled.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from actors.host.node_address import NODE_HOST
from store.ownership.identity import LOCK_FILE, StoreIdentity, read_name
from store.store_errors import StoreError

PAIR_ATTEMPTS = 100
FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid."""


def check_port(host: str, port: int) -> str:
    """Return why this machine cannot listen on `host:port`, else an empty string."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            # Detects a socket that is bound but does not listen, or listens with SO_REUSEADDR.
            probe.listen(1)
        except OverflowError as error:
            return f"cannot listen on {host}:{port} ({error})"
        except OSError as error:
            owner = port_owner(port)
            belongs = f": in use by {owner}" if owner else ""
            return f"cannot listen on {host}:{port} ({error.strerror}){belongs}"
    return ""


def port_owner(port: int) -> str:
    """Return a text that names the process listening on `port`; empty if this user may not see it."""
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
    """Return why broker `identity` cannot open the store at `root`, else an empty string."""
    folder = Path(root)
    if folder.exists() and not folder.is_dir():
        return f"{root} is not a directory"
    if reason := _not_writable(folder):
        return reason
    try:
        name = read_name(folder)
    except (StoreError, OSError) as error:
        return str(error)
    if name is not None and name.identity != identity:
        return (
            f"{root} is the store of {describe(name.identity)}, not of {describe(identity)}; "
            "correct the store_root or the broker name"
        )
    if owner := lock_owner(folder / LOCK_FILE):
        whose = f"the store of {describe(name.identity)} and " if name else ""
        return f"{root} is {whose}in use by process {owner} ({_command(owner)}); a store has one writer"
    return ""


def describe(identity: StoreIdentity) -> str:
    """Return the owner of a store as text."""
    return f"broker {identity.broker} (replica {identity.replica}) of cluster {identity.cluster}"


def _not_writable(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"no write permission on {existing}"
    return ""


def lock_owner(lock: Path) -> int:
    """Return the process that holds RocketMQ's lock (POSIX, on the first byte of the file `lock`), else 0."""
    try:
        with lock.open("rb+") as file:
            query = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            result = fcntl.fcntl(file, fcntl.F_GETLK, query)
    except OSError:
        return 0
    kind, _, _, _, pid = FLOCK.unpack(result)
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def free_ports(hosts: Sequence[str]) -> list[int]:
    """Return a free port on each of `hosts`; all ports differ.

    The port after it, which is the HA port of a broker, is free too. Raises OSError if no such port is found.
    """
    with contextlib.ExitStack() as held:
        return [_free_pair(bind_host(host), held) for host in hosts]


def _free_pair(host: str, held: contextlib.ExitStack) -> int:
    """Return a port that is free together with the next one; `held` keeps both bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(PAIR_ATTEMPTS):
        first = held.enter_context(socket.socket(family))
        first.bind((host, 0))
        port = int(first.getsockname()[1])
        with contextlib.suppress(OSError, OverflowError):
            held.enter_context(socket.socket(family)).bind((host, port + 1))
            return port
    text = f"no two free ports in a row on {host} after {PAIR_ATTEMPTS} attempts; set listen_port"
    raise OSError(errno.EADDRINUSE, text)


def bind_host(host: str) -> str:
    """Return the host to bind to for a check: NODE_HOST is not resolved before the actor runs."""
    return "0.0.0.0" if host == NODE_HOST else host


@dataclass(frozen=True)
class PortAndStore:
    """Port and store that must be free before one actor starts.

    Attributes:
        place: Key path of the actor in the topology, for error messages.
        host: Host on which it listens.
        port: Port on which it listens; 0 is not checked.
        store: Directory of its store.
        identity: Owner that the store must have; None: the store is not checked.
        ha_port: Port for slaves on the same host; 0 is not checked.
    """

    place: str
    host: str
    port: int
    store: str = ""
    identity: StoreIdentity | None = None
    ha_port: int = 0


def check_all(demands: Sequence[PortAndStore]) -> list[str]:
    """Return one line for each port or store that is not free, beginning with the key path."""
    found = []
    for demand in demands:
        for setting, port in (("listen_port", demand.port), ("settings.ha_listen_port", demand.ha_port)):
            if port and (reason := check_port(bind_host(demand.host), port)):
                found.append(
                    f"{demand.place}.{setting}: {reason}; give it another port, or stop that process"
                )
        if demand.identity and (reason := check_store(demand.store, demand.identity)):
            found.append(f"{demand.place}.store: {reason}")
    return found
