"""The actors of a cluster as Ray has them: seen, made, ended, waited for, through `ray_port`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from actors.host import ray_port
from actors.host.ray_port import ActorMethodFailed, ActorName, ActorNotFound, ActorUnavailable
from actors.host.service_host import STOP_TIMEOUT_S, State
from cluster.driver.plan import ActorSpec, Kind, Running

CLASSES = {
    Kind.NAMESERVER: ("actors.nameserver.actor", "Nameserver"),
    Kind.BROKER: ("actors.broker.actor", "Broker"),
    Kind.REBALANCER: ("actors.rebalancer.actor", "Rebalancer"),
}
STATUS = "raymq_status"
STOP = "raymq_stop"
ANNOUNCE = "raymq_announce"
CHANGE = "raymq_change"
CALL_TIMEOUT_S = 3.0
CHANGE_TIMEOUT_S = 10.0
DRAIN = "raymq_drain"
DRAIN_REQUEST_TIMEOUT_S = 30.0
RESTART_TIMEOUT_S = 12.0
"""How long an actor of our namespace may be silent: Ray has a killed one back within 6 s."""

PAUSE_S = 0.05


def observe(namespace: str, patience_s: float = RESTART_TIMEOUT_S) -> list[Running]:
    """All actors of ours on this Ray cluster, and those of other programs in `namespace`."""
    seen = [_observe_one(where, namespace, patience_s) for where in ray_port.list_actors()]
    return [actor for actor in seen if actor is not None and (actor.is_ours or actor.namespace == namespace)]


def _observe_one(where: ActorName, namespace: str, patience_s: float) -> Running | None:
    is_here = where.namespace == namespace
    try:
        if not ray_port.has_method(where, STATUS):
            return Running(where.namespace, where.name, is_ours=False)
        return to_running(where, status_of(where, patience_s if is_here else CALL_TIMEOUT_S))
    except (ActorUnavailable, ActorMethodFailed) as error:
        return Running(where.namespace, where.name, reason=str(error))
    except ActorNotFound:
        return None


def status_of(where: ActorName, patience_s: float) -> dict[str, Any]:
    """Return an actor's status; retry while it is unavailable, up to `patience_s`.

    Raises ActorNotFound, ActorUnavailable, ActorMethodFailed.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            status: dict[str, Any] = ray_port.call(where, STATUS, timeout_s=CALL_TIMEOUT_S)
        except ActorUnavailable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(PAUSE_S)
        else:
            return status


def to_running(where: ActorName, status: dict[str, Any]) -> Running:
    """What an actor told; one of an older code may tell it in other words, and then has no known spec."""
    try:
        spec: ActorSpec | None = ActorSpec.from_json(status["spec"])
    except (KeyError, TypeError, ValueError):
        spec = None
    return Running(
        where.namespace,
        where.name,
        spec=spec,
        state=str(status.get("state", "unknown")),
        reason=str(status.get("reason", "" if spec else "its settings are those of another version")),
        code_version=str(status.get("code_version", "")),
        pid=int(status.get("pid", 0)),
        node_ip=str(status.get("node_ip", "")),
        started_ms=int(status.get("started_ms", 0)),
        serving_ms=int(status.get("serving_ms", status.get("started_ms", 0))),
        details=status.get("details", {}),
    )


def create(namespace: str, spec: ActorSpec) -> None:
    """Make an actor; does not wait for it."""
    module, name = CLASSES[spec.kind]
    actor_class = getattr(import_module(module), name)
    # Inside the actor Ray knows only the namespace of the job that made it.
    told = {**spec.to_json(), "namespace": namespace}
    ray_port.create(actor_class, ActorName(namespace, spec.name), (told,), resource=spec.resource)


def stop(namespace: str, name: str) -> str:
    """Let an actor finish, then end it for good; gives why it could not finish, or an empty string."""
    where = ActorName(namespace, name)
    stop_error = ""
    try:
        ray_port.call(where, STOP, timeout_s=STOP_TIMEOUT_S + CALL_TIMEOUT_S)
    except ActorNotFound:
        pass
    except (ActorUnavailable, ActorMethodFailed) as error:
        # It is ended all the same: its store recovers as after a kill.
        stop_error = str(error)
    ray_port.kill(where)
    return stop_error


def change(namespace: str, spec: ActorSpec) -> str:
    """Have an actor that serves take over its spec's settings; gives why it could not, or an empty string."""
    try:
        ray_port.call(ActorName(namespace, spec.name), CHANGE, spec.to_json(), timeout_s=CHANGE_TIMEOUT_S)
    except (ActorNotFound, ActorUnavailable, ActorMethodFailed) as error:
        return str(error)
    return ""


def drain(namespace: str, name: str, step: str) -> dict[str, Any]:
    """Tell a broker to leave the routes, close to senders or stay; gives who still needs it.

    Raises ActorNotFound, ActorUnavailable, ActorMethodFailed.
    """
    progress: dict[str, Any] = ray_port.call(
        ActorName(namespace, name), DRAIN, step, timeout_s=DRAIN_REQUEST_TIMEOUT_S
    )
    return progress


def announce(namespace: str, name: str) -> None:
    """Have a broker register with all nameservers now; one that cannot does so within its interval anyway."""
    with contextlib.suppress(ActorNotFound, ActorUnavailable, ActorMethodFailed):
        ray_port.call(ActorName(namespace, name), ANNOUNCE, timeout_s=CALL_TIMEOUT_S)


@dataclass(frozen=True)
class Arrival:
    """An actor that serves now, or, with a `reason`, does not."""

    name: str
    reason: str = ""
    code_version: str = ""


def wait_serving(namespace: str, specs: Sequence[ActorSpec], timeout_s: float) -> Iterator[Arrival]:
    """Yield each actor as it comes up, those that do not at the latest at the end of the time."""
    deadline_s = time.monotonic() + timeout_s
    waiting = [spec.name for spec in specs]
    while waiting:
        is_over = time.monotonic() > deadline_s
        for name in list(waiting):
            state, arrival = _look_at(ActorName(namespace, name))
            if state is State.STARTING and not is_over:
                continue
            waiting.remove(name)
            if state is State.STARTING:
                yield Arrival(
                    name, f"not serving after {timeout_s:g} s: {arrival.reason or 'it is starting'}"
                )
            else:
                yield arrival
        time.sleep(PAUSE_S)


def _look_at(where: ActorName) -> tuple[State, Arrival]:
    """The state of an actor that is coming up; "starting" where it may yet answer."""
    try:
        status = ray_port.call(where, STATUS, timeout_s=CALL_TIMEOUT_S)
    except ActorUnavailable as error:
        return State.STARTING, Arrival(where.name, str(error))
    except (ActorNotFound, ActorMethodFailed) as error:
        return State.STOPPED, Arrival(where.name, str(error))
    state, reason = State(status["state"]), str(status["reason"])
    if state is State.SERVING:
        return state, Arrival(where.name, code_version=status["code_version"])
    return state, Arrival(where.name, f"{state}: {reason}" if state is not State.STARTING else reason)
