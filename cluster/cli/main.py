"""`raymq`: a command's module is imported only when it is meant, so that `--help` answers at once."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module

import typer

COMMANDS = {
    "up": ("cluster.cli.up", "Start a cluster, or make the running one be as its topology says."),
    "down": ("cluster.cli.down", "Stop a cluster's actors in order; their stores stay."),
    "restart": ("cluster.cli.restart", "Restart actors one after the other; clients go on."),
    "drain": ("cluster.cli.drain", "Take a broker down when nobody needs it any more; its store stays."),
    "status": ("cluster.cli.status", "Show what runs and whether it serves."),
    "logs": ("cluster.cli.logs", "Show what the actors have logged, on all nodes; follow it."),
    "topic": ("cluster.cli.topic", "Topics: list, create, describe, change, delete."),
    "group": ("cluster.cli.group", "Consumer groups: list, describe with lag, create, delete."),
    "message": ("cluster.cli.message", "Messages: send, get, query, tail."),
    "broker": ("cluster.cli.broker", "Brokers: list, describe, statistics, settings."),
    "offset": ("cluster.cli.offset", "Offsets of consumer groups: show, reset, skip, clone."),
    "send": ("cluster.cli.send", "Send a message, a file, or the lines of the input."),
    "tail": ("cluster.cli.tail", "Print a topic's messages as they come."),
    "top": ("cluster.cli.top", "Show live what brokers, topics and groups do a second."),
    "store": ("cluster.cli.store", "Look into a broker's store on the disk."),
    "demo": ("cluster.cli.demo", "The whole on real flights: brokers, consumers, a kill, Spark."),
    "bench": ("cluster.cli.bench", "Measure RayMQ on this machine, beside the machine's own limits."),
    "version": ("cluster.cli.version", "Show the versions of RayMQ and of what it stands on."),
}
"""Command → its module, which has `app` (a group) or `command` (a function), and its line in the help."""


def main(arguments: Sequence[str] | None = None) -> None:
    """What the `raymq` script runs."""
    # Before anything imports Ray: under `uv run` it would upload the working directory, and start workers
    # by uv.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    given = list(sys.argv[1:] if arguments is None else arguments)
    build(given)(args=given, prog_name="raymq")


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application, with the command that the arguments mean imported, and the others by name only."""
    meant = next((argument for argument in arguments if not argument.startswith("-")), "")
    app = typer.Typer(
        name="raymq",
        no_args_is_help=True,
        help="RocketMQ rebuilt on Ray: nameservers, brokers, rebalancers as actors, Spark over stores.",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)
    for name, (module, line) in COMMANDS.items():
        if name == meant:
            mount(app, name, module, line)
        else:
            app.command(name, help=line)(_nothing)
    return app


def mount(app: typer.Typer, name: str, module: str, line: str) -> None:
    """Import a command and put it in its place."""
    loaded = import_module(module)
    if hasattr(loaded, "app"):
        for command in loaded.app.registered_commands:
            command.help = paragraphs(command.callback)
        app.add_typer(loaded.app, name=name, help=line)
    else:
        app.command(name, help=paragraphs(loaded.command), epilog=getattr(loaded, "EPILOG", None))(
            loaded.command
        )


def paragraphs(command: object) -> str:
    """A command's docstring without the line breaks of its source, which are none of the terminal's; those
    before `name: …` stay.
    """
    text = inspect.getdoc(command) or ""
    return "\n\n".join(re.sub(r"\n(?![\w-]+: )", " ", part) for part in text.split("\n\n"))


def _nothing() -> None:
    """Stand for a command that is not the one that is meant."""


if __name__ == "__main__":
    main()
