"""Operations on the Ray actors of a cluster: list, create, stop, change settings, drain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

from actors.host import ray_port, store_binding
from actors.host.node_address import NODE_HOST
from actors.host.ray_port import ActorMethodFailed, ActorName, ActorNotFound, ActorUnavailable
from actors.host.service_host import STOP_TIMEOUT_S, State
from actors.raft.state import Role
from cluster.control.kinds import KINDS
from cluster.control.plan import Running
from cluster.control.specs import ActorSpec
from cluster.views.replicas import group_failure, group_role, replica_of
from cluster.waiting import SYSTEM_WAITING, Waiting

STATUS = "raymq_status"
STOP = "raymq_stop"
START = "raymq_start"
ANNOUNCE = "raymq_announce"
LEAVE = "raymq_leave"
CHANGE = "raymq_change"
CALL_TIMEOUT_S = 3.0
CHANGE_TIMEOUT_S = 10.0
DRAIN = "raymq_drain"
DRAIN_REQUEST_TIMEOUT_S = 30.0
RESTART_TIMEOUT_S = 12.0
"""How long to wait for the status of an actor. Ray restarts a killed actor within 6 s."""

PAUSE_S = 0.05


def observe(namespace: str, timeout_s: float = RESTART_TIMEOUT_S) -> list[Running]:
    """Return the RayMQ actors of all namespaces, and the actors of other programs in `namespace`.

    `timeout_s` limits the wait for an actor of `namespace` that does not respond.
    """
    found = [_observe_one(where, namespace, timeout_s) for where in ray_port.list_actors()]
    return [actor for actor in found if actor is not None and (actor.is_ours or actor.namespace == namespace)]


def _observe_one(where: ActorName, namespace: str, timeout_s: float) -> Running | None:
    is_here = where.namespace == namespace
    try:
        if not ray_port.has_method(where, STATUS):
            return Running(where.namespace, where.name, is_ours=False)
        return to_running(where, actor_status(where, timeout_s if is_here else CALL_TIMEOUT_S))
    except (ActorUnavailable, ActorMethodFailed) as error:
        return Running(where.namespace, where.name, reason=str(error))
    except ActorNotFound:
        return None


def actor_status(where: ActorName, timeout_s: float, waiting: Waiting = SYSTEM_WAITING) -> dict[str, Any]:
    """Return the status of an actor. Retry for up to `timeout_s` while it is unavailable.

    Raises ActorNotFound, ActorUnavailable, ActorMethodFailed.
    """
    deadline = waiting.deadline(timeout_s, PAUSE_S)
    while True:
        try:
            status: dict[str, Any] = ray_port.call(where, STATUS, timeout_s=CALL_TIMEOUT_S)
        except ActorUnavailable:
            if not deadline.pause():
                raise
        else:
            return status


def to_running(where: ActorName, status: dict[str, Any]) -> Running:
    """Convert the status of an actor to a Running; its `spec` is None if another code version encoded it."""
    try:
        spec: ActorSpec | None = ActorSpec.from_json(status["spec"], KINDS)
    except (KeyError, TypeError, ValueError):
        spec = None
    return Running(
        where.namespace,
        where.name,
        spec=spec,
        state=str(status.get("state", "unknown")),
        reason=str(status.get("reason", "" if spec else "its settings belong to another code version")),
        code_version=str(status.get("code_version", "")),
        pid=int(status.get("pid", 0)),
        node_ip=str(status.get("node_ip", "")),
        started_ms=int(status.get("started_ms", 0)),
        serving_ms=int(status.get("serving_ms", status.get("started_ms", 0))),
        details=status.get("details", {}),
    )


def create(namespace: str, spec: ActorSpec) -> None:
    """Create an actor without waiting until it serves.

    An elastic broker takes whole units of its resource. If the node that holds its store is alive, it is
    bound to that node.
    """
    resources: dict[str, float] = {spec.resource: spec.slots or ray_port.PIN_SHARE}
    if spec.slots and (node := _node_of_store(namespace, spec.name)):
        resources[node] = ray_port.PIN_SHARE
    where = ActorName(namespace, spec.name)
    ray_port.create(resolve_name(spec.kind.actor), where, (_argument(namespace, spec),), resources=resources)


def _argument(namespace: str, spec: ActorSpec) -> dict[str, Any]:
    """Return the spec as an actor gets it: Ray reports to it the namespace of the job that created it."""
    return {**spec.to_json(), "namespace": namespace}


def start_again(namespace: str, spec: ActorSpec) -> None:
    """Start the service of a stopped actor with other settings, without waiting until it serves.

    If its process cannot do that, or does not exist any more, a new actor is created.
    """
    where = ActorName(namespace, spec.name)
    try:
        ray_port.call(where, START, _argument(namespace, spec), timeout_s=CHANGE_TIMEOUT_S)
    except (ActorNotFound, ActorUnavailable, ActorMethodFailed):
        stop(namespace, spec.name)
        create(namespace, spec)


def _node_of_store(namespace: str, actor: str) -> str:
    """Return the resource of the live node that holds the store of an elastic broker; empty without one."""
    binding = store_binding.find(namespace, actor)
    if binding is None or not any(node.ip == binding.node_ip for node in ray_port.nodes()):
        return ""
    return f"node:{binding.node_ip}"


def located(namespace: str, specs: Sequence[ActorSpec]) -> list[ActorSpec]:
    """Return the specs with the addresses of elastic brokers, which are known once they run on a node."""
    return [_located(namespace, spec) if spec.advertised[0] == NODE_HOST else spec for spec in specs]


def _located(namespace: str, spec: ActorSpec) -> ActorSpec:
    with contextlib.suppress(ActorNotFound, ActorUnavailable, ActorMethodFailed):
        where = ActorName(namespace, spec.name)
        found = to_running(where, actor_status(where, CALL_TIMEOUT_S)).spec
        if found is not None:
            return replace(spec, listen=found.listen, advertised=found.advertised)
    return spec


def stop(namespace: str, name: str, *, keeps_process: bool = False) -> str:
    """Shut down an actor and remove it from Ray.

    With `keeps_process` it is not removed, if it was shut down cleanly: `start_again` starts its service.

    Returns why it could not be shut down cleanly, else an empty string. Then it is removed in both cases.
    """
    where = ActorName(namespace, name)
    stop_error = ""
    try:
        ray_port.call(where, STOP, timeout_s=STOP_TIMEOUT_S + CALL_TIMEOUT_S)
    except ActorNotFound:
        pass
    except (ActorUnavailable, ActorMethodFailed) as error:
        # Remove it nevertheless: its store recovers as after a kill.
        stop_error = str(error)
    if stop_error or not keeps_process:
        ray_port.kill(where)
    return stop_error


def change(namespace: str, spec: ActorSpec) -> str:
    """Change the settings of a running actor to those of `spec`. Return the error, else an empty string."""
    try:
        where, argument = ActorName(namespace, spec.name), _argument(namespace, spec)
        ray_port.call(where, CHANGE, argument, timeout_s=CHANGE_TIMEOUT_S)
    except (ActorNotFound, ActorUnavailable, ActorMethodFailed) as error:
        return str(error)
    return ""


def drain(namespace: str, name: str, step: str) -> dict[str, Any]:
    """Send a drain step to a broker and return its progress (see `actors.broker.core.drain`).

    Steps: "look" (only report), "start" (not writable), "close" (refuse sends), "cancel" (writable again).

    Raises ActorNotFound, ActorUnavailable, ActorMethodFailed.
    """
    progress: dict[str, Any] = ray_port.call(
        ActorName(namespace, name), DRAIN, step, timeout_s=DRAIN_REQUEST_TIMEOUT_S
    )
    return progress


def announce(namespace: str, name: str) -> None:
    """Make a broker register with all nameservers now.

    An error is ignored, because the broker registers periodically anyway.
    """
    with contextlib.suppress(ActorNotFound, ActorUnavailable, ActorMethodFailed):
        ray_port.call(ActorName(namespace, name), ANNOUNCE, timeout_s=CALL_TIMEOUT_S)


def hand_over(namespace: str, name: str) -> bool:
    """Make a replica hand over the leadership of its Raft group; return True if it does not lead any more.

    Returns False if it did not lead, or does not respond.
    """
    where = ActorName(namespace, name)

    def leads() -> bool:
        return group_role(to_running(where, actor_status(where, CALL_TIMEOUT_S)).details) == Role.LEADER

    with contextlib.suppress(ActorNotFound, ActorUnavailable, ActorMethodFailed):
        if ray_port.has_method(where, LEAVE) and leads():
            ray_port.call(where, LEAVE, timeout_s=CHANGE_TIMEOUT_S)
            return not leads()
    return False


@dataclass(frozen=True)
class StartResult:
    """Result of an actor's start: it serves if `reason` is empty. `progress` changes while it compiles."""

    name: str
    reason: str = ""
    code_version: str = ""
    progress: str = ""


def wait_in_sync(
    namespace: str, replica: ActorSpec, timeout_s: float, waiting: Waiting = SYSTEM_WAITING
) -> str:
    """Wait until a replica has the log that its master has now, or what its group has confirmed by now.

    Return why it has not, else an empty text.
    """
    name = str(replica.settings["broker_name"])
    others = [actor.replica for actor in observe(namespace) if actor.spec is not None]
    end = max((each.needed_end for each in others if each.broker == name), default=0)
    where, deadline = ActorName(namespace, replica.name), waiting.deadline(timeout_s, PAUSE_S)
    while True:
        details = to_running(where, actor_status(where, CALL_TIMEOUT_S)).details
        lack, is_final = replica_of(name, replica.settings, details).lack(end)
        if not lack or is_final or not deadline.pause():
            return lack


def wait_leading(
    namespace: str, replica: ActorSpec, timeout_s: float, waiting: Waiting = SYSTEM_WAITING
) -> str:
    """Wait until a replica leads its Raft group and accepts sends; return why not, else an empty text."""
    where, deadline = ActorName(namespace, replica.name), waiting.deadline(timeout_s, PAUSE_S)
    while True:
        found = to_running(where, actor_status(where, CALL_TIMEOUT_S)).details
        role, failure = group_role(found), group_failure(found)
        if role == Role.LEADER and found.get("role") == "master":
            return ""
        if failure or not deadline.pause():
            state = role or failure
            return f"{state}, it may lack records that it once had, or they are damaged: see its log"


def wait_serving(
    namespace: str,
    specs: Sequence[ActorSpec],
    timeout_s: float,
    waiting: Waiting = SYSTEM_WAITING,
    report: Callable[[str], None] = lambda progress: None,
) -> Iterator[StartResult]:
    """Yield the result of each actor as soon as it is known, at the latest `timeout_s` after progress."""
    deadline, is_over = waiting.deadline(timeout_s, PAUSE_S), False
    unready, progress = [spec.name for spec in specs], ""
    while unready:
        for name in list(unready):
            state, result = _start_state(ActorName(namespace, name))
            if result.progress not in ("", progress):
                progress = result.progress
                report(progress)
                deadline, is_over = waiting.deadline(timeout_s, PAUSE_S), False
            if state is State.STARTING and not is_over:
                continue
            unready.remove(name)
            if state is State.STARTING:
                yield StartResult(
                    name, f"not serving after {timeout_s:g} s: {result.reason or 'it is starting'}"
                )
            else:
                yield result
        is_over = not deadline.pause()


def _start_state(where: ActorName) -> tuple[State, StartResult]:
    """Return the state of a starting actor; STARTING if it is not available yet."""
    try:
        status = ray_port.call(where, STATUS, timeout_s=CALL_TIMEOUT_S)
    except ActorUnavailable as error:
        return State.STARTING, StartResult(where.name, str(error))
    except (ActorNotFound, ActorMethodFailed) as error:
        return State.STOPPED, StartResult(where.name, str(error))
    state, reason = State(status["state"]), str(status["reason"])
    if state is State.SERVING:
        return state, StartResult(where.name, code_version=status["code_version"])
    if state is State.STARTING:
        return state, StartResult(where.name, reason, progress=str(status.get("progress", "")))
    return state, StartResult(where.name, f"{state}: {reason}")
