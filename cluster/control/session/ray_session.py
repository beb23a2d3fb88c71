"""Connecting a process to a Ray cluster, in one of four modes.

embedded   this process starts Ray, which stops when the process ends (`raymq demo`, tests)
started    this process starts a Ray head that keeps running (`raymq up`, see `ray_head`)
attached   a Ray cluster is running already
submitted  this process is the driver of a job that was submitted with `ray job submit`
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cluster.control.session.environment import (
    AUTH_MODE_ENV,
    TOKEN_ENV,
    UV_RUN_ENV,
    java_home,
    prepare_to_import_ray,
    ray_environment,
    token_path,
)
from cluster.control.session.ray_head import current_cluster, living_head, start_head
from cluster.control.topology.topology import Topology

ADDRESS_ENV = "RAY_ADDRESS"
JOB_ENV = "RAY_JOB_CONFIG_JSON_ENV_VAR"
AUTO, NEW = "auto", "new"


class SessionMode(StrEnum):
    """How this process reaches Ray. The module docstring describes the modes."""

    EMBEDDED = "embedded"
    STARTED = "started"
    ATTACHED = "attached"
    SUBMITTED = "submitted"


class SessionFailed(Exception):
    """The process could not connect to Ray. The message names the address and the remedy."""


@dataclass(frozen=True)
class Way:
    """The mode and address with which to connect to Ray.

    `address` is empty if Ray is started first, or if Ray itself finds the address (in a submitted job).
    """

    mode: SessionMode
    address: str = ""


def choose_way(
    topology: Topology, home: Path, environment: Mapping[str, str], *, embedded: bool = False
) -> Way:
    """Choose how to connect to Ray, without starting or connecting to it.

    The order is: the job of this process, `ray.address` of the topology, RAY_ADDRESS, the head of `home`, the
    Ray that runs on this machine, else a new head. `embedded` starts Ray in this process, unless this is a
    submitted job or the topology names an address.
    """
    if JOB_ENV in environment:
        return Way(SessionMode.SUBMITTED)
    wanted = topology.ray.address
    if wanted not in (AUTO, NEW):
        return Way(SessionMode.ATTACHED, wanted)
    if embedded:
        return Way(SessionMode.EMBEDDED)
    if wanted == AUTO and (given := environment.get(ADDRESS_ENV)):
        return Way(SessionMode.ATTACHED, given)
    if (head := living_head(home)) is not None:
        return Way(SessionMode.ATTACHED, head.address)
    if wanted == AUTO and (running := current_cluster()) is not None:
        return Way(SessionMode.ATTACHED, running)
    return Way(SessionMode.STARTED)


def is_connected() -> bool:
    """Return True if this process is connected to a Ray cluster, no matter which code connected it."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


@contextmanager
def session(topology: Topology, home: Path, way: Way) -> Iterator[None]:
    """Context manager that connects to Ray and disconnects at the end. Raises SessionFailed, HeadFailed.

    An existing connection is used and kept. An embedded Ray runs until the process ends or calls
    `leave_embedded`.
    """
    if is_connected():
        yield
        return
    connect(topology, home, way)
    try:
        yield
    finally:
        if way.mode is not SessionMode.EMBEDDED:
            disconnect()


def connect(topology: Topology, home: Path, way: Way) -> None:
    """Connect to Ray; start Ray first if `way.mode` says so. Raises SessionFailed, HeadFailed."""
    was_imported = "ray" in sys.modules
    prepare_to_import_ray(os.environ, starts=way.mode in (SessionMode.STARTED, SessionMode.EMBEDDED))
    address = start_head(topology, home).address if way.mode is SessionMode.STARTED else way.address
    if way.mode is SessionMode.EMBEDDED:
        os.environ.update(ray_environment(os.environ))
    import ray

    if was_imported:
        _read_environment_again()
    try:
        if way.mode is SessionMode.EMBEDDED:
            _start_embedded(topology)
        else:
            ray.init(
                address=address or None,
                namespace=topology.namespace,
                log_to_driver=False,
                logging_level="ERROR",
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SessionFailed(_why_not(address, error)) from error
    # Ray would mix messages about the cluster, such as a lost node, with the output of the command.
    ray._private.worker._worker_logs_enabled = False  # noqa: SLF001 - the way that Ray's debugger does it


def _read_environment_again() -> None:
    """Make Ray read the variables set by `prepare_to_import_ray` again, as it was imported before."""
    import ray
    from ray._private import ray_constants

    ray._raylet.Config.initialize("")  # noqa: SLF001 - the token mode, as Ray reads it
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = ray_constants.env_bool(UV_RUN_ENV, True)


def _start_embedded(topology: Topology) -> None:
    """Start Ray in this process. Raises SessionFailed, and the errors of `ray.init` for invalid arguments."""
    import ray

    for is_last in (False, True):
        try:
            ray.init(
                address="local", namespace=topology.namespace, num_cpus=topology.ray.num_cpus,
                object_store_memory=topology.ray.object_store_memory_bytes, include_dashboard=False,
                resources={"java": 1} if java_home(os.environ) else None,
                log_to_driver=False, logging_level="ERROR",
            )  # fmt: skip
        except Exception as error:
            # Ray waits only 30 s for its processes, which may not be enough on a busy machine. It then raises
            # a plain Exception.
            if type(error) is not Exception:
                raise
            if is_last:
                raise SessionFailed(
                    f"Ray did not start on this machine in two attempts: {' '.join(str(error).split())}\n"
                    "Try again when the machine is less busy"
                ) from error
        else:
            return


def disconnect() -> None:
    """Disconnect from Ray. An embedded Ray is stopped."""
    import ray

    ray.shutdown()
    ray._private.worker._worker_logs_enabled = True  # noqa: SLF001


def _why_not(address: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    cause = f"cannot connect to Ray at {address or 'the address of this job'}: {text}"
    if "oken" in text or os.environ.get(AUTH_MODE_ENV) != "token":
        cause += (
            f"\nIf that Ray requires a token: store it in {token_path(os.environ)} or in {TOKEN_ENV}, and "
            f"set {AUTH_MODE_ENV}=token"
        )
    return f"{cause}\nSet ray.address or {ADDRESS_ENV} to a running Ray; `--set ray.address=new` starts one"
