"""Arguments and options shared by commands, their check, and the format of the examples in their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
import typer.core

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
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute", metavar="NAME=VALUE", help="Such as message.type=PRIORITY; repeat for several."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, without doing it.")]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Do not ask for confirmation; needed if standard input is not a terminal."
    ),
]

Broker = Annotated[str, typer.Argument(help="Broker name, for example broker-a.", show_default=False)]
Group = Annotated[str, typer.Argument(help="Consumer group.", show_default=False)]
Topic = Annotated[str, typer.Argument(help="Topic.", show_default=False)]
Store = Annotated[Path, typer.Argument(help="Store directory, the parent of `commitlog`.")]

_TOPOLOGY_HELP = "Topology file (default: configs/local.yaml)."
Topology = Annotated[str | None, typer.Argument(help=_TOPOLOGY_HELP, show_default=False)]
TopologyOption = Annotated[
    str | None, typer.Option("--topology", "-t", help=_TOPOLOGY_HELP, show_default=False)
]


def topology_file(file: str | None, option: str | None) -> str | None:
    """Return the topology file of a command that accepts it as FILE and with `-t`. Raises BadParameter."""
    if file is not None and option is not None:
        raise typer.BadParameter(f"two topology files are given, {file} and -t {option}: omit one")
    return file or option


Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the topology: flush=async, brokers.broker-a.listen_port=0, store_root=DIR.",
    ),
]


def examples(*lines: str) -> str:
    """Return the epilog of a command's help page with one example per line."""
    return "Examples:\n\n" + "\n\n".join(lines)


INTEGER_MAX = 2**63 - 1
"""Largest number of an option without a maximum of its own."""


class Command(typer.core.TyperCommand):
    """A command that refuses numbers outside of their bounds and arguments that are not UTF-8, by name.

    Python decodes bytes that are not UTF-8 as lone surrogates, which clients would send as `?`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises BadParameter."""
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            parameter: Any = error.param
            if type(error) is not typer.BadParameter or getattr(parameter, "min", None) is None:
                raise  # its subclass reports a missing parameter
            raise _outside(ctx, parameter) from None
        for parameter in cast("list[Any]", self.params):
            value = ctx.params.get(parameter.name or "")
            if parameter.name not in BODIES and not _is_text(value):
                raise typer.BadParameter("it is not valid UTF-8", ctx, parameter)
            if isinstance(value, int) and parameter.max is None and value > INTEGER_MAX:
                raise _outside(ctx, parameter)
        return rest


def _outside(ctx: Any, parameter: Any) -> typer.BadParameter:
    most = INTEGER_MAX if parameter.max is None else parameter.max
    return typer.BadParameter(f"give a number from {parameter.min:,} to {most:,}", ctx, parameter)


BODIES = frozenset({"body"})
"""Parameters that are bytes, whatever their encoding."""


def _is_text(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_text, value))
    return not isinstance(value, str) or not any("\ud800" <= letter <= "\udfff" for letter in value)


def argument_bytes(text: str) -> bytes:
    """Return the bytes of a command-line argument, as the shell passed them."""
    return text.encode("utf-8", "surrogateescape")
