"""The `raymq` application; imports only the module of the requested command, so that `--help` is fast."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from cluster.cli.console import EXIT_REFUSED, print_error, writing_output
from cluster.cli.options import Command

COMMANDS = {
    "dev": ("cluster.cli.operations.dev", "Serve a small cluster with its console here, without Ray."),
    "up": ("cluster.cli.operations.up", "Start a cluster, or update the running one to match its topology."),
    "down": ("cluster.cli.operations.down", "Stop the cluster; stores are kept."),
    "restart": (
        "cluster.cli.operations.restart",
        "Restart actors one at a time, without interrupting clients.",
    ),
    "promote": ("cluster.cli.operations.promote", "Make a slave the master of its broker group."),
    "transfer": ("cluster.cli.operations.transfer", "Make another replica the leader of its Raft group."),
    "migrate": ("cluster.cli.operations.migrate", "Make a broker a Raft group, or a group a single broker."),
    "drain": ("cluster.cli.operations.drain", "Drain a broker and stop it; its store is kept."),
    "status": ("cluster.cli.operations.status", "Show the cluster's actors and their state."),
    "autoscale": (
        "cluster.cli.operations.autoscale",
        "Autoscaler of elastic brokers: status, dry run, pause.",
    ),
    "logs": ("cluster.cli.operations.logs", "Show or follow the logs of all actors on all nodes."),
    "topic": ("cluster.cli.topics.topic", "Topics: list, create, describe, change, delete."),
    "lite": ("cluster.cli.topics.lite", "Lite topics: list, describe, lag of groups, subscriptions."),
    "group": ("cluster.cli.groups.group", "Consumer groups: list, describe with lag, create, delete."),
    "user": ("cluster.cli.access.user", "Users of access control: list, create, change, delete."),
    "acl": ("cluster.cli.access.acl", "Policies of users: list, set, delete, import."),
    "message": ("cluster.cli.topics.message", "Messages: send, get, query, tail."),
    "broker": ("cluster.cli.operations.broker", "Brokers: list, describe, statistics, settings."),
    "offset": ("cluster.cli.groups.offset", "Offsets of consumer groups: show, reset, skip, clone."),
    "dlq": ("cluster.cli.groups.dlq", "Dead letters of consumer groups: list, show, resend, purge."),
    "send": ("cluster.cli.topics.send", "Send a message, a file, or lines from standard input."),
    "tail": ("cluster.cli.topics.tail", "Print a topic's messages as they arrive."),
    "metrics": ("cluster.cli.operations.metrics", "Metrics: print a configuration for Prometheus."),
    "top": ("cluster.cli.operations.top", "Show live rates of brokers, topics and groups."),
    "console": ("cluster.cli.operations.console", "Serve the web console."),
    "store": ("cluster.cli.stores.store", "Inspect, verify and rebuild a broker's store on disk."),
    "replica": (
        "cluster.cli.stores.replica",
        "Replicas: members of Raft groups; copy the master's log again.",
    ),
    "reindex": (
        "jobs.reindex.command",
        "Re-index with Spark: a stopped store, a topic by any field, a new sharding.",
    ),
    "export": ("jobs.archive.export_command", "Copy a topic to Parquet files, by date and queue."),
    "import": ("jobs.archive.import_command", "Send the messages of an exported topic to a topic."),
    "lake": ("jobs.lake_service.lake_command", "Iceberg tables of topics: status, backfill, upkeep, drop."),
    "demo": ("cluster.cli.demo", "Run the demo: real flights, a broker killed, results checked by Spark."),
    "bench": ("cluster.cli.bench", "Benchmark RayMQ and the machine's own limits."),
    "version": ("cluster.cli.version", "Show the versions of RayMQ and its dependencies."),
}
"""Command name → module, which defines `app` (a group) or `command` (a function), and help text."""

OWN_PACKAGES = ("actors", "cluster", "jobs", "store")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and run the command."""
    # Must be set before Ray is imported; otherwise Ray uploads the working directory and starts workers
    # with `uv run`.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    given = list(sys.argv[1:] if arguments is None else arguments)
    with writing_output():
        try:
            build(given)(args=given, prog_name="raymq")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] in OWN_PACKAGES:
                raise  # a mistake of RayMQ
            print_error(
                f"this command needs {error.name}, which is not installed: it belongs to raymq, "
                "not to raymq-client (pip uninstall raymq-client; pip install raymq)"
            )
            raise SystemExit(EXIT_REFUSED) from error


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the application; only the module of the requested command is imported."""
    requested = next((argument for argument in arguments if not argument.startswith("-")), "")
    app = typer.Typer(
        name="raymq",
        no_args_is_help=True,
        help="RocketMQ on Ray: run clusters, send and consume messages, inspect stores.",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)
    for name, (module, line) in COMMANDS.items():
        if name == requested:
            mount(app, name, module, line)
        else:
            app.command(name, help=line)(_nothing)
    return app


def mount(app: typer.Typer, name: str, module: str, line: str) -> None:
    """Import the module of a command and add it to the application."""
    loaded = import_module(module)
    if hasattr(loaded, "app"):
        for command in loaded.app.registered_commands:
            command.help = paragraphs(command.callback)
            command.cls = Command
        app.add_typer(loaded.app, name=name, help=line)
    else:
        epilog = getattr(loaded, "EPILOG", None)
        app.command(name, cls=Command, help=paragraphs(loaded.command), epilog=epilog)(loaded.command)


def paragraphs(command: object) -> str:
    """Return a command's docstring with its lines joined; line breaks before `name: …` are kept."""
    text = inspect.getdoc(command) or ""
    return "\n\n".join(re.sub(r"\n(?![\w-]+: )", " ", part) for part in text.split("\n\n"))


def _nothing() -> None:
    """Serve as a placeholder for commands that were not requested."""


if __name__ == "__main__":
    main()
