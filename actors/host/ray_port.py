"""The one place where our actors meet Ray: how they are made, found, asked and ended.

All that is decided is decided elsewhere, in plain Python; here are only Ray's calls, with deadlines. Ray is
imported by the first of them: what it reads at its import must be set before (`cluster.session.environment`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])

PIN_SHARE = 0.001
"""How much of its node's resource an actor takes: enough to be bound to the node, nothing that is missed."""

END_TIMEOUT_S = 30.0
END_PAUSE_S = 0.01

CONCURRENCY_GROUPS = {"control": 2, "append": 4, "read": 16}
"""Threads by kind of call: a read that waits for messages keeps neither `describe` nor an append waiting."""


def control(method: Method) -> Method:
    """Mark an actor's method as one that must answer whatever else runs."""
    import ray

    return ray.method(concurrency_group="control")(method)


def append(method: Method) -> Method:
    """Mark an actor's method as one that writes."""
    import ray

    return ray.method(concurrency_group="append")(method)


def read(method: Method) -> Method:
    """Mark an actor's method as one that may wait for data."""
    import ray

    return ray.method(concurrency_group="read")(method)


class ActorNotFound(Exception):
    """No actor of this name, or it has ended for good."""


class ActorUnavailable(Exception):
    """The actor exists but does not answer now: it is starting, restarting, or its node is away."""


class ActorMethodFailed(Exception):
    """The actor's method raised; the message says what."""


@dataclass(frozen=True, order=True)
class ActorName:
    """Where an actor is found."""

    namespace: str
    name: str


def list_actors() -> list[ActorName]:
    """All named actors of the Ray cluster, those of other programs among them."""
    import ray

    found = ray.util.list_named_actors(all_namespaces=True)
    return sorted(ActorName(entry["namespace"], entry["name"]) for entry in found)


def create(actor_class: type, where: ActorName, arguments: tuple[object, ...], *, resource: str) -> None:
    """Make a detached actor that Ray restarts for ever, bound to the node that has `resource`.

    Appends are never retried by Ray (design law 13). Raises ValueError when the name is taken.
    """
    import ray

    remote = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(actor_class)
    remote.options(
        name=where.name,
        namespace=where.namespace,
        lifetime="detached",
        num_cpus=0,
        resources={resource: PIN_SHARE},
        max_restarts=-1,
        max_task_retries=0,
    ).remote(*arguments)


def has_method(where: ActorName, method: str) -> bool:
    """Whether an actor's class has a method; raises ActorNotFound where there is no such actor."""
    return hasattr(_find(where), method)


def _find(where: ActorName) -> Any:
    import ray

    try:
        return ray.get_actor(where.name, namespace=where.namespace)
    except ValueError as error:
        raise ActorNotFound(f"no actor {where.name} in namespace {where.namespace}") from error


def ask(where: ActorName, method: str, *arguments: object, timeout_s: float) -> Any:
    """Call an actor's method and wait; raises ActorNotFound, ActorUnavailable, ActorMethodFailed."""
    import ray

    reference = getattr(_find(where), method).remote(*arguments)
    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        raise ActorUnavailable(f"{where.name} gave no answer in {timeout_s:g} s") from error
    # An actor that died is gone even so while Ray restarts it is "unavailable".
    except ray.exceptions.ActorUnavailableError as error:
        raise ActorUnavailable(f"{where.name} is not available: {error}") from error
    except ray.exceptions.ActorUnschedulableError as error:
        raise ActorNotFound(f"{where.name} can be placed nowhere: {error}") from error
    except ray.exceptions.ActorDiedError as error:
        raise ActorNotFound(f"{where.name} has ended: {error}") from error
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if error.cause is not None else error
        raise ActorMethodFailed(f"{where.name}.{method}: {type(cause).__name__}: {cause}") from error


def end(where: ActorName, timeout_s: float = END_TIMEOUT_S) -> None:
    """End an actor for good, as kill -9 would: ask it to stop before. Its name is free afterwards.

    Raises ActorUnavailable when Ray still has it after `timeout_s`.
    """
    import ray

    try:
        ray.kill(_find(where), no_restart=True)
        # Ray only begins to end it: until this process is told, `_find` and a new actor meet the old name.
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            time.sleep(END_PAUSE_S)
            _find(where)
    except ActorNotFound:
        return
    raise ActorUnavailable(f"Ray has not ended {where.name} within {timeout_s:g} s")


@dataclass(frozen=True)
class Node:
    """A living node: its address, its resources and, where it is told, the actors' own names for it."""

    ip: str
    resources: Mapping[str, float]
    is_head: bool


def own_actor_id() -> str:
    """The id of the actor that this process is; it stays the same when Ray restarts it."""
    import ray

    return str(ray.get_runtime_context().get_actor_id())


def own_node_ip() -> str:
    """The address of the node that this process runs on."""
    import ray

    return str(ray.util.get_node_ip_address())


def logs_folder() -> Path:
    """Where Ray keeps the logs of its session on this machine; its dashboard and `ray logs` look there."""
    import ray

    return Path(ray._private.worker._global_node.get_logs_dir_path())  # noqa: SLF001 - as Ray Serve finds it


def nodes() -> list[Node]:
    """The living nodes of the Ray cluster."""
    import ray

    return [
        Node(node["NodeManagerAddress"], node["Resources"], "node:__internal_head__" in node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def run_on(resource: str, function: Callable[..., Any], *arguments: object, timeout_s: float) -> Any:
    """Run a function on the node that has `resource`. Raises ActorUnavailable if none runs it in time."""
    import ray

    task = ray.remote(num_cpus=0, resources={resource: PIN_SHARE}, max_retries=0)(function)
    reference = task.remote(*arguments)
    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        ray.cancel(reference, force=True)
        raise ActorUnavailable(
            f"no node with resource {resource!r} ran a check in {timeout_s:g} s"
        ) from error
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from error
