"""All uses of Ray by actors and the driver: create, find, call and kill actors.

This module has only calls of Ray, with deadlines, and makes no decisions. Functions import Ray when they are
called, because Ray reads environment variables at its import, which must be set before
(`cluster.control.session.environment`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])

PIN_SHARE = 0.001
"""The amount of the node's resource that an actor requests; it only binds the actor to the node."""

KILL_TIMEOUT_S = 30.0
KILL_POLL_S = 0.01

CONCURRENCY_GROUPS = {"control": 2, "append": 4, "read": 16}
"""Number of threads per kind of method, so that a waiting read does not block appends or control calls."""


def control(method: Method) -> Method:
    """Decorate an actor's method that must not wait for reads and appends."""
    import ray

    return ray.method(concurrency_group="control")(method)


def append(method: Method) -> Method:
    """Decorate an actor's method that appends messages."""
    import ray

    return ray.method(concurrency_group="append")(method)


def read(method: Method) -> Method:
    """Decorate an actor's method that may wait for messages."""
    import ray

    return ray.method(concurrency_group="read")(method)


class ActorNotFound(Exception):
    """There is no actor of this name, or it has terminated and Ray does not restart it."""


class ActorUnavailable(Exception):
    """The actor exists but does not respond: it is starting or restarting, or its node is unreachable."""


class ActorMethodFailed(Exception):
    """The actor's method raised an exception; the message has its type and text."""


@dataclass(frozen=True, order=True)
class ActorName:
    """The name and namespace of an actor."""

    namespace: str
    name: str


def list_actors() -> list[ActorName]:
    """Return all named actors of the Ray cluster, including those of other programs."""
    import ray

    found = ray.util.list_named_actors(all_namespaces=True)
    return sorted(ActorName(entry["namespace"], entry["name"]) for entry in found)


def create(
    actor_class: type, actor: ActorName, arguments: tuple[object, ...], *, resources: Mapping[str, float]
) -> None:
    """Create a detached actor that Ray always restarts, on a node that has these amounts of `resources`.

    Ray never retries its calls (docs/design.md#invariant-13). Raises ValueError if the name is in use.
    """
    import ray

    remote = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(actor_class)
    remote.options(
        name=actor.name,
        namespace=actor.namespace,
        lifetime="detached",
        num_cpus=0,
        resources=dict(resources),
        max_restarts=-1,
        max_task_retries=0,
    ).remote(*arguments)


def has_method(actor: ActorName, method: str) -> bool:
    """Return True if an actor's class has a method; a Java actor, such as RayDP's, has none of ours.

    Raises ActorNotFound.
    """
    found = _find(actor)
    is_java = found._ray_is_cross_language  # noqa: SLF001 - Ray has no public way to know it
    return not is_java and hasattr(found, method)


def _find(actor: ActorName) -> Any:
    import ray

    try:
        return ray.get_actor(actor.name, namespace=actor.namespace)
    except ValueError as error:
        raise ActorNotFound(f"there is no actor {actor.name} in namespace {actor.namespace}") from error


def call(actor: ActorName, method: str, *arguments: object, timeout_s: float) -> Any:
    """Call an actor's method and return its result.

    Raises:
        ActorNotFound: there is no such actor, or it has terminated.
        ActorUnavailable: the actor does not respond within `timeout_s`.
        ActorMethodFailed: the method raised an exception.
    """
    import ray

    reference = getattr(_find(actor), method).remote(*arguments)
    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        raise ActorUnavailable(
            f"actor {actor.name} did not respond to {method} within {timeout_s:g} s"
        ) from error
    # While Ray restarts an actor it is "unavailable"; after its last death it is "died".
    except ray.exceptions.ActorUnavailableError as error:
        raise ActorUnavailable(f"actor {actor.name} is unavailable: {error}") from error
    except ray.exceptions.ActorUnschedulableError as error:
        raise ActorNotFound(f"actor {actor.name} cannot be placed on any node: {error}") from error
    except ray.exceptions.ActorDiedError as error:
        raise ActorNotFound(f"actor {actor.name} has terminated: {error}") from error
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if error.cause is not None else error
        raise ActorMethodFailed(
            f"actor method {actor.name}.{method} failed: {type(cause).__name__}: {cause}"
        ) from error


def kill(actor: ActorName, timeout_s: float = KILL_TIMEOUT_S) -> None:
    """Kill an actor (SIGKILL) without a restart, and wait until its name can be used again.

    The caller stops its service first. Raises ActorUnavailable if the name is still in use after `timeout_s`.
    """
    import ray

    try:
        ray.kill(_find(actor), no_restart=True)
        # ray.kill returns early: for a while `_find` still finds the actor, and its name cannot be used.
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            time.sleep(KILL_POLL_S)
            _find(actor)
    except ActorNotFound:
        return
    raise ActorUnavailable(f"Ray has not terminated actor {actor.name} within {timeout_s:g} s")


def remember(namespace: str, key: str, value: bytes) -> None:
    """Store a value in Ray's key-value store, which all processes of the Ray cluster share."""
    import ray

    ray.experimental.internal_kv._internal_kv_put(  # noqa: SLF001 - Ray has no public key-value store
        key.encode(), value, overwrite=True, namespace=_kv_namespace(namespace)
    )


def recall(namespace: str, key: str) -> bytes | None:
    """Return the value that `remember` stored under a key; None if the key is unknown."""
    import ray

    found: bytes | None = ray.experimental.internal_kv._internal_kv_get(  # noqa: SLF001
        key.encode(), namespace=_kv_namespace(namespace)
    )
    return found


def forget(namespace: str, key: str) -> None:
    """Remove the value that `remember` stored under a key, if there is one."""
    import ray

    ray.experimental.internal_kv._internal_kv_del(  # noqa: SLF001
        key.encode(), namespace=_kv_namespace(namespace)
    )


def recalled_keys(namespace: str, prefix: str) -> list[str]:
    """Return the keys with this prefix under which `remember` stored values, sorted."""
    import ray

    found = ray.experimental.internal_kv._internal_kv_list(  # noqa: SLF001
        prefix.encode(), namespace=_kv_namespace(namespace)
    )
    return sorted(key.decode() for key in found)


def _kv_namespace(namespace: str) -> bytes:
    return f"raymq_{namespace}".encode()  # Ray ends a namespace at its first colon


@dataclass(frozen=True)
class Node:
    """A live node: its address, its resources, and whether it is the head node."""

    ip: str
    resources: Mapping[str, float]
    is_head: bool


def available_resources() -> dict[str, float]:
    """Return the unused amounts of the resources of all live nodes together."""
    import ray

    found: dict[str, float] = ray.available_resources()
    return found


def own_actor_id() -> str:
    """Return the id of the actor that runs in this process; it stays the same after a restart."""
    import ray

    return str(ray.get_runtime_context().get_actor_id())


def own_node_ip() -> str:
    """Return the address of the node that this process runs on."""
    import ray

    return str(ray.util.get_node_ip_address())


def logs_folder() -> Path:
    """Return the directory of Ray's logs on this machine, which Ray's dashboard and `ray logs` read."""
    import ray

    return Path(ray._private.worker._global_node.get_logs_dir_path())  # noqa: SLF001 - as Ray Serve finds it


class Gauges:
    """Gauges in the metrics of Ray, which adds the prefix `ray_` to their names."""

    def __init__(self, texts: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Create gauges with a help text each; all have the same labels."""
        from ray.util.metrics import Gauge

        self._gauges = {name: Gauge(name, text, tag_keys=tuple(labels)) for name, text in texts.items()}
        for gauge in self._gauges.values():
            gauge.set_default_tags(dict(labels))

    def set(self, values: Mapping[str, float]) -> None:
        """Set the gauges with these names."""
        for name, value in values.items():
            self._gauges[name].set(value)


def nodes() -> list[Node]:
    """Return the live nodes of the Ray cluster."""
    import ray

    return [
        Node(node["NodeManagerAddress"], node["Resources"], "node:__internal_head__" in node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def run_on(resource: str, function: Callable[..., Any], *arguments: object, timeout_s: float) -> Any:
    """Run a function on the node that has `resource`, and return its result.

    Raises ActorUnavailable if no node runs it within `timeout_s`. An exception of the function propagates.
    """
    import ray

    task = ray.remote(num_cpus=0, resources={resource: PIN_SHARE}, max_retries=0)(function)
    reference = task.remote(*arguments)
    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        ray.cancel(reference, force=True)
        raise ActorUnavailable(
            f"no node with resource {resource!r} ran the function within {timeout_s:g} s"
        ) from error
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from error
