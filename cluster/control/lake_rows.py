"""LakeRow: the table of a topic, as the actor of its lake reports it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from actors.host import ray_port
from actors.host.ray_port import ActorMethodFailed, ActorName, ActorNotFound, ActorUnavailable
from cluster.control import fleet
from cluster.control.kinds import LAKE


@dataclass(frozen=True, slots=True)
class LakeRow:
    """The table of a topic; None is unknown.

    Attributes:
        lake: Name of the lake.
        topic: The topic; None for a lake that does not respond, or does not know its topics.
        rows: Rows of the table.
        files: Data files of the table.
        snapshot: Id of its snapshot.
        behind_s: Seconds since the table had all messages.
        lost: Messages that were deleted before the table had them.
        failures: Failed rounds since the last one that did not fail.
        problem: Why the last round failed; else empty.
    """

    lake: str
    topic: str | None = None
    rows: int | None = None
    files: int | None = None
    snapshot: int | None = None
    behind_s: float | None = None
    lost: int | None = None
    failures: int | None = None
    problem: str = ""


def lake_rows(namespace: str) -> list[LakeRow]:
    """Return the tables of all lakes in a namespace of Ray."""
    actors = (each for each in ray_port.list_actors() if each.namespace == namespace)
    return [row for each in actors if each.name.startswith(f"{LAKE.name}-") for row in _rows_of(each)]


def _rows_of(actor: ActorName) -> Iterator[LakeRow]:
    try:
        running = fleet.to_running(actor, fleet.actor_status(actor, fleet.CALL_TIMEOUT_S))
    except (ActorNotFound, ActorUnavailable, ActorMethodFailed) as error:
        yield LakeRow(actor.name, problem=str(error))
        return
    if running.spec is not None and running.spec.kind is not LAKE:
        return  # a broker of this name
    tables = running.details.get("tables", {})
    for topic, table in tables.items():
        known = {name: value for name, value in table.items() if name in LakeRow.__slots__}
        yield LakeRow(actor.name, topic, **known)
    problem = running.reason or running.details.get("problem", "")
    if problem and not any(each.get("problem") for each in tables.values()):
        yield LakeRow(actor.name, problem=problem)
