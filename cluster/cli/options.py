"""The arguments and options that several commands take, and the form of their examples in the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

NAMESERVER = "127.0.0.1:9876"

Nameserver = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar="RAYMQ_NAMESERVERS",
        metavar="HOST:PORT[;…]",
        help="The cluster's nameservers.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, also where a terminal reads.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

Broker = Annotated[str, typer.Argument(help="The broker's name: broker-a.", show_default=False)]
Group = Annotated[str, typer.Argument(help="The consumer group.", show_default=False)]
Topic = Annotated[str, typer.Argument(help="The topic.", show_default=False)]
Store = Annotated[Path, typer.Argument(help="The store's directory: the one that holds commitlog.")]

_TOPOLOGY_HELP = "A topology file; without it configs/local.yaml."
Topology = Annotated[str | None, typer.Argument(help=_TOPOLOGY_HELP, show_default=False)]
TopologyOption = Annotated[
    str | None, typer.Option("--topology", "-t", help=_TOPOLOGY_HELP, show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Put a value over the file's: flush=async, brokers.broker-a.listen_port=0, store_root=DIR.",
    ),
]


def examples(*lines: str) -> str:
    """Return the epilog of a command's help page: how the command is called."""
    return "Examples:\n\n" + "\n\n".join(lines)
