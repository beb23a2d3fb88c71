"""Coming to a Ray cluster in one of four ways, and leaving it.

embedded   this process starts Ray, and Ray ends with it (`raymq demo`, tests)
started    `raymq up` starts a head that stays (`ray_head`)
attached   a Ray cluster runs already
submitted  this is the driver of a `ray job submit`
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cluster.session.environment import (
    AUTH_MODE_ENV,
    TOKEN_ENV,
    UV_RUN_ENV,
    java_home,
    prepare_to_import_ray,
    ray_environment,
    token_path,
)
from cluster.session.ray_head import current_cluster, living_head, start_head
from cluster.topology.topology import Topology

ADDRESS_ENV = "RAY_ADDRESS"
JOB_ENV = "RAY_JOB_CONFIG_JSON_ENV_VAR"
AUTO, NEW = "auto", "new"


class Mode(StrEnum):
    """How this process came to Ray."""

    EMBEDDED = "embedded"
    STARTED = "started"
    ATTACHED = "attached"
    SUBMITTED = "submitted"


class SessionFailed(Exception):
    """No Ray cluster could be reached; the message says which was tried and what to do."""


@dataclass(frozen=True)
class Way:
    """How to come to Ray: `address` is empty where Ray is yet to be started, or finds it by itself."""

    mode: Mode
    address: str = ""


def choose_way(
    topology: Topology, home: Path, environment: Mapping[str, str], *, embedded: bool = False
) -> Way:
    """Decide how to come to Ray, and start nothing."""
    if JOB_ENV in environment:
        return Way(Mode.SUBMITTED)
    wanted = topology.ray.address
    if wanted not in (AUTO, NEW):
        return Way(Mode.ATTACHED, wanted)
    if embedded:
        return Way(Mode.EMBEDDED)
    if wanted == AUTO and (given := environment.get(ADDRESS_ENV)):
        return Way(Mode.ATTACHED, given)
    if (head := living_head(home)) is not None:
        return Way(Mode.ATTACHED, head.address)
    if wanted == AUTO and (running := current_cluster()) is not None:
        return Way(Mode.ATTACHED, running)
    return Way(Mode.STARTED)


def is_connected() -> bool:
    """Whether this process is connected to a Ray cluster, by us or by its own doing."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


@contextmanager
def session(topology: Topology, home: Path, way: Way) -> Iterator[None]:
    """Be connected to Ray; a connection that was there before is used, and kept. Raises SessionFailed.

    Leaving disconnects; an embedded Ray goes on until the process ends or calls `leave_embedded`.
    """
    if is_connected():
        yield
        return
    connect(topology, home, way)
    try:
        yield
    finally:
        if way.mode is not Mode.EMBEDDED:
            disconnect()


def connect(topology: Topology, home: Path, way: Way) -> None:
    """Start Ray where the way says so, and connect this process; raises SessionFailed, HeadFailed."""
    was_imported = "ray" in sys.modules
    prepare_to_import_ray(os.environ, starts=way.mode in (Mode.STARTED, Mode.EMBEDDED))
    address = start_head(topology, home).address if way.mode is Mode.STARTED else way.address
    if way.mode is Mode.EMBEDDED:
        os.environ.update(ray_environment(os.environ))
    import ray

    if was_imported:
        _read_environment_again()
    try:
        if way.mode is Mode.EMBEDDED:
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
    # Ray would print the cluster's troubles, such as a lost node, among what a command prints.
    ray._private.worker._worker_logs_enabled = False  # noqa: SLF001 - as its own debugger silences it


def _read_environment_again() -> None:
    """Have Ray, which the program imported before us, read again what `prepare_to_import_ray` sets."""
    import ray
    from ray._private import ray_constants

    ray._raylet.Config.initialize("")  # noqa: SLF001 - the token mode, as Ray reads it
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = ray_constants.env_bool(UV_RUN_ENV, True)


def _start_embedded(topology: Topology) -> None:
    """Start Ray in this process. Raises SessionFailed, and what `ray.init` raises for what it is given."""
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
            # Ray gives its own processes 30 s to come up, which a machine with other work may miss once; it
            # then raises a bare Exception.
            if type(error) is not Exception:
                raise
            if is_last:
                raise SessionFailed(
                    f"Ray could not be started here: {' '.join(str(error).split())}\n"
                    "It has been tried twice; try again when this machine has less other work"
                ) from error
        else:
            return


def disconnect() -> None:
    """Leave Ray; an embedded Ray ends with this."""
    import ray

    ray.shutdown()
    ray._private.worker._worker_logs_enabled = True  # noqa: SLF001


def _why_not(address: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    cause = f"Ray at {address or 'the address of this job'} cannot be reached: {text}"
    if "oken" in text or os.environ.get(AUTH_MODE_ENV) != "token":
        cause += (
            f"\nIf that Ray demands a token: have it here in {token_path(os.environ)} or {TOKEN_ENV}, "
            f"and set {AUTH_MODE_ENV}=token"
        )
    return f"{cause}\nGive ray.address or {ADDRESS_ENV} of a running Ray; `--set ray.address=new` makes one"
