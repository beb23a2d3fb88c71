"""`raymq status`: shows the state of a cluster's actors."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.cli.console import exiting_on_launch_errors
from cluster.cli.options import Overrides, Topology, TopologyOption, examples, topology_file
from cluster.cli.tables import STYLE, escaped_text, fitted, shown

if TYPE_CHECKING:
    from rich.console import Console

    from cluster.launch import ActorStatus
    from cluster.views.replicas import ReplicaRole

EPILOG = examples("raymq status", "raymq status --json")
EXIT_NOT_SERVING = 1
COLUMNS = ("actor", "kind", "state", "address", "node", "process", "code", "epoch", "loop_lag", "up_s")
PENDING = {
    "open_transactions": "open_transactions",
    "pending_timers": "pending_timers",
    "retries": "retries_pending",
    "dead_letters": "dead_letters_pending",
}
"""Counts of messages that wait in a broker, by column. A column is shown if a broker reports its count."""
REPLICATION = ("role", "in_sync", "slave_lag")
"""Columns of replicated brokers: the role; of masters also the replicas in sync and the lag of slaves."""
SPARED = ("code", "epoch", "process", "node", "loop_lag", "kind", *PENDING, "up_s", "slave_lag", "in_sync")
"""Columns that are omitted on a narrow terminal, in this order."""


def command(
    topology: Topology = None,
    option: TopologyOption = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the cluster's actors and their state: a table on a terminal, JSON in a pipe.

    The exit code is 1 if no actor is running or one of them is not serving.
    """
    from rich.console import Console

    from cluster.control.replica_roles import replica_roles
    from cluster.control.topology.topology_file import load_topology
    from cluster.launch import other_clusters, status

    console = Console()
    file = topology_file(topology, option)

    with exiting_on_launch_errors(reads_only=True):
        given = load_topology(file, overrides or [])
        found = status(given)
        roles = replica_roles(entry.actor for entry in found)
        rows = [as_row(entry, roles.get(entry.actor.name)) for entry in found]
        if as_json or not console.is_terminal:
            typer.echo(json.dumps({"cluster": given.cluster, "actors": rows}))
        else:
            show(console, given.cluster, rows, () if found else other_clusters(given))
        if not found or any(actor.failing for actor in found):
            raise typer.Exit(EXIT_NOT_SERVING)


def as_row(entry: ActorStatus, role: ReplicaRole | None = None) -> dict[str, Any]:
    """Return one actor as a row of the JSON output."""
    actor, spec = entry.actor, entry.actor.spec
    return {
        "actor": actor.name,
        "kind": spec.kind.name if spec else None,
        "state": "serving" if not entry.failing else actor.state if actor.state != "serving" else "failing",
        "reason": entry.failing,
        "address": spec.address if spec and spec.listen[1] else None,
        "node": actor.node_ip,
        "process": actor.pid,
        "code": actor.code_version,
        "up_s": max(0, int(time.time()) - actor.started_ms // 1000) if actor.started_ms else 0,
        "store": spec.store if spec else None,
        "role": role.name if role else None,
        "role_text": role.text if role else None,
        "lag_bytes": role.lag_bytes if role else None,
        "is_in_sync": role.is_in_sync if role else None,
        "is_member": role.is_member if role else None,
        "term": role.term if role else None,
        "is_bare_majority": role.is_bare_majority if role and role.voters else None,
        "details": dict(actor.details),
    }


def show(
    console: Console, cluster: str, rows: Sequence[Mapping[str, Any]], others: Sequence[str] = ()
) -> None:
    """Print a table of the actors, followed by the reason for each that is not serving.

    `others`: names of clusters that run, to be shown if this one does not.
    """
    if not rows:
        console.print(f"cluster {cluster} is not running; start it with `raymq up`", soft_wrap=True)
        if others:
            console.print(
                f"running: {', '.join(others)}; give the topology file of the cluster: `raymq status FILE`",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        return
    console.print(f"cluster {cluster}", style="bold", highlight=False, markup=False)
    cells = [formatted(row) for row in rows]
    optional = (*REPLICATION, *PENDING)
    columns = (*COLUMNS, *(column for column in optional if any(row[column] is not None for row in cells)))
    console.print(fitted(columns, cells, console.width, SPARED))
    for row in rows:
        if row["reason"]:
            console.print(escaped_text(f"{row['actor']}: {row['reason']}"), style="red")
        for topic, table in row["details"].get("tables", {}).items():
            console.print(escaped_text(f"{row['actor']}: {topic}: {_table(table)}"))
        if hidden := row["details"].get("hidden_because"):
            console.print(escaped_text(f"{row['actor']}: {hidden}"), style="yellow", soft_wrap=True)
        if row["is_member"] is False:
            console.print(
                escaped_text(f"{row['actor']}: {_how_to_join(row)}"), style="yellow", soft_wrap=True
            )


def formatted(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `as_row` with the cells of the table."""
    details = row["details"]
    return {
        **row,
        "process": str(row["process"] or ""),
        "epoch": details.get("epoch"),
        "loop_lag": lag_of(details),
        "role": row.get("role_text"),
        "in_sync": details.get("in_sync_replicas"),
        "slave_lag": slave_lag_of(details),
        **{column: details.get(field) for column, field in PENDING.items()},
        STYLE: _style(row),
    }


def _table(table: Mapping[str, Any]) -> str:
    """Return what a lake knows about the table of a topic; – is unknown."""
    rows, files, lost = (shown(key, table[key]) or "–" for key in ("rows", "files", "lost"))
    behind = "–" if table["behind_s"] is None else f"{table['behind_s']:.0f} s"
    return f"{behind} behind, {rows} rows in {files} files, lost: {lost}"


def _how_to_join(row: Mapping[str, Any]) -> str:
    group, _, number = row["actor"].rpartition("-")
    return (
        f"is not in its Raft group, and has no copy that counts: `raymq replica replace {group} {number} "
        f"{row['address']}` if its store was lost, `raymq replica add {group} {row['address']}` if it is new "
        "or was removed"
    )


def _style(row: Mapping[str, Any]) -> str | None:
    if row["state"] != "serving":
        return "red"
    is_warned = row.get("is_bare_majority") or row.get("is_member") is False
    return "yellow" if is_warned or row["details"].get("hidden_because") else None


def slave_lag_of(details: Mapping[str, Any]) -> str | None:
    """Return how far the slowest slave of a master is behind; None without an HA port."""
    if "slave_lag_bytes" not in details:
        return None
    if not details.get("slaves"):
        return "no slave"
    return f"{details['slave_lag_bytes']:,} B / {details['slave_lag_s']} s"


def lag_of(details: Mapping[str, Any]) -> str:
    """Return the lag of an actor's event loop: p99 of the last minutes and maximum since the start."""
    if "loop_lag_p99_us" not in details:
        return ""
    return f"{details['loop_lag_p99_us'] / 1000:.1f} / {details['longest_lag_us'] / 1000:.0f} ms"
