"""The `raymq autoscale` commands: status, dry run and pause of the autoscaler, release of a lost store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.cli.console import confirmed, exiting_on_launch_errors
from cluster.cli.options import AsJson, Broker, Overrides, TopologyOption, Yes, examples
from cluster.cli.tables import escaped_text, fitted
from cluster.counted import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from cluster.autoscale.decisions import Decision

app = typer.Typer(no_args_is_help=True, help="Autoscaler of elastic brokers: status, dry run, pause.")

COLUMNS = ("name", "state", "in_per_s", "out_per_s", "lag_messages", "disk_percent", "cpu_percent")


@app.command("status", epilog=examples("raymq autoscale status", "raymq autoscale status --json"))
def show_status(
    topology: TopologyOption = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show the target number of brokers, the last decision with its figures, and recent changes.

    With `autoscale: {dry_run: true}` in the topology the autoscaler only decides; this command shows what it
    would do.
    """
    from rich.console import Console

    from cluster.autoscale.commands import autoscaler_status
    from cluster.control.topology.topology_file import load_topology

    console = Console()
    with exiting_on_launch_errors(reads_only=True):
        found = autoscaler_status(load_topology(topology, overrides or []))
        if as_json or not console.is_terminal:
            typer.echo(json.dumps(found))
        else:
            show(console, found)


def show(console: Console, found: Mapping[str, Any]) -> None:
    """Print the status of the autoscaler as text."""
    decision = found["decision"]
    mode = " (paused)" if found["is_paused"] else " (dry run)" if found["dry_run"] else ""
    lines = [f"target {found['target']}{mode}, decided {decision['target']}: {decision['reason']}"]
    lines += [f"{each['name']}: {each['reason']}" for each in found["brokers"] if each["reason"]]
    rows = [{key: _rounded(each[key]) for key in COLUMNS} for each in found["brokers"]]
    console.print(fitted(COLUMNS, rows, console.width))
    for line in lines:
        console.print(escaped_text(line))
    for event in found["events"]:
        rest = {key: value for key, value in event.items() if key not in ("time_s", "event")}
        text = " ".join(f"{key}={_rounded(value)}" for key, value in rest.items())
        console.print(escaped_text(f"{event['event']} {text}"), style="dim")


def _rounded(value: Any) -> Any:
    return f"{value:.1f}" if isinstance(value, float) else value


@app.command(
    "dry-run",
    epilog=examples(
        "raymq autoscale dry-run -t cluster.yaml",
        "raymq autoscale dry-run -t cluster.yaml --decisions 1",
        "raymq autoscale dry-run -t cluster.yaml --set autoscale.rules.throughput_per_broker=2000",
    ),
)
def run_dry(
    topology: TopologyOption = None,
    overrides: Overrides = None,
    decisions: Annotated[
        int, typer.Option(min=0, help="Stop after this number of decisions; 0: with Ctrl-C.")
    ] = 0,
) -> None:
    """Print what the autoscaler would do with the rules of the topology, and change nothing.

    The cluster must be running. It needs no autoscaler, so that rules can be tried before it gets one.
    """
    from cluster.autoscale.commands import dry_run

    def show_decision(decision: Decision, brokers: int) -> None:
        typer.echo(f"{counted(brokers, 'broker')}, would be {decision.target}: {decision.reason}")

    with exiting_on_launch_errors(reads_only=True):
        dry_run(topology, overrides or [], show_decision, decisions)


@app.command("pause", epilog=examples("raymq autoscale pause"))
def pause(topology: TopologyOption = None, overrides: Overrides = None) -> None:
    """Stop adding and removing brokers until `raymq autoscale resume`; unfinished drains are cancelled."""
    from cluster.autoscale.commands import set_paused
    from cluster.control.topology.topology_file import load_topology

    with exiting_on_launch_errors():
        set_paused(load_topology(topology, overrides or []), paused=True)
        typer.echo("the autoscaler is paused")


@app.command("resume", epilog=examples("raymq autoscale resume"))
def resume(topology: TopologyOption = None, overrides: Overrides = None) -> None:
    """Add and remove brokers again after `raymq autoscale pause`."""
    from cluster.autoscale.commands import set_paused
    from cluster.control.topology.topology_file import load_topology

    with exiting_on_launch_errors():
        set_paused(load_topology(topology, overrides or []), paused=False)
        typer.echo("the autoscaler is running")


@app.command("release", epilog=examples("raymq autoscale release broker-3"))
def release(
    broker: Broker, topology: TopologyOption = None, overrides: Overrides = None, yes: Yes = False
) -> None:
    """Permit an elastic broker to start with an empty store, because the node of its store is lost.

    The messages in that store cannot be read unless the node returns. Repeat `raymq up` after this command.
    """
    from cluster.autoscale.commands import release_store
    from cluster.control.topology.topology_file import load_topology

    with exiting_on_launch_errors():
        given = load_topology(topology, overrides or [])
        confirmed(f"Give up the messages of {broker}?", yes=yes)
        typer.echo(release_store(given, broker))
