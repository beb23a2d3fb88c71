"""`raymq bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli.console import EXIT_FAILED, EXIT_INTERRUPTED
from cluster.cli.options import examples

if TYPE_CHECKING:
    from cluster.bench.options import BenchOptions

EPILOG = examples(
    "raymq bench list",
    "raymq bench send-table --json",
    "raymq bench send-one --flush sync --seconds 10 --runs 1",
    "raymq bench all",
)


def command(
    name: Annotated[
        str, typer.Argument(help="A bench, `all`, or `list` for their names.", show_default=False)
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON a bench instead of a table.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each run is measured.")] = 20.0,
    warm_up: Annotated[float, typer.Option(min=0.0, metavar="SECONDS", help="How long to warm up.")] = 3.0,
    runs: Annotated[int, typer.Option(min=1, help="How many runs; the median is reported.")] = 3,
    flush: Annotated[str, typer.Option(help="The broker's flush mode: async or sync.")] = "async",
    body_bytes: Annotated[int, typer.Option(min=8, help="The size of a body; a multiple of 8.")] = 128,
    messages: Annotated[
        int, typer.Option(min=1000, help="How long a backlog is where one is read.")
    ] = 4_000_000,
    log_bytes: Annotated[int, typer.Option(min=1, help="How long a log is where one is recovered.")] = 2
    * 1024**3,
    queues: Annotated[
        int, typer.Option(min=8, max=60_000, help="How many queues a broker has where it has many.")
    ] = 20_000,
    backlog: Annotated[
        int, typer.Option(min=1000, help="How many messages lie in a log that is worked on top of.")
    ] = 50_000_000,
    cold_bytes: Annotated[int, typer.Option(min=1, help="How much lies cold where such is read.")] = 4
    * 1024**3,
    connections: Annotated[int, typer.Option(min=1, help="How many are open where many are.")] = 5_000,
    directory: Annotated[
        Path | None,
        typer.Option(help="Where to lay stores; by default with temporary files.", show_default=False),
    ] = None,
) -> None:
    """Measure RayMQ on this machine.

    Each bench starts the broker that it needs in a process of its own on free ports, and leaves nothing.
    """
    from cluster.bench.options import BenchOptions
    from cluster.bench.registry import ALL, BENCHES

    if name == "list":
        width = max(map(len, BENCHES))
        typer.echo("\n".join(f"{each:{width}}  {line}" for each, line in BENCHES.items()))
        return
    if name not in (*BENCHES, ALL):
        raise typer.BadParameter(f"{name!r} is none of {', '.join(BENCHES)}, {ALL}", param_hint="NAME")
    if flush not in ("async", "sync"):
        raise typer.BadParameter(f"{flush!r} is neither async nor sync", param_hint="--flush")
    if body_bytes % 8:
        raise typer.BadParameter(f"{body_bytes} is no multiple of 8", param_hint="--body-bytes")
    options = BenchOptions(
        seconds, warm_up, runs, flush, body_bytes, messages, log_bytes, queues, backlog, cold_bytes,
        connections, directory,
    )  # fmt: skip
    raise typer.Exit(_run(name, options, as_json))


def _run(name: str, options: BenchOptions, as_json: bool) -> int:
    """Run and print, what was measured before a failure too; progress goes to standard error, so that
    standard output is the result alone.
    """
    import logging
    import sys
    from dataclasses import replace

    from rich.console import Console

    from cluster.bench.bench_report import flush_ratios, results_table
    from cluster.bench.options import BenchFailed
    from cluster.bench.registry import run_named
    from cluster.bench.result import as_json as json_line
    from cluster.client.errors import ClientError
    from cluster.interrupts import interrupt_once
    from store.logs import log_to_handler

    log_to_handler(logging.StreamHandler(sys.stderr), logging.WARNING)
    console, errors = Console(), Console(stderr=True)
    everything, code = [], 0
    interrupt_once()  # else a broker in a session of its own would outlive a bench that `timeout` ends
    try:
        with errors.status("starting") as status:
            for each, results in run_named(name, replace(options, progress=status.update)):
                everything += results
                if as_json:
                    typer.echo(json_line(each, results))
    except (BenchFailed, ClientError) as error:
        errors.print(str(error), style="red", highlight=False, markup=False)
        code = EXIT_FAILED
    except KeyboardInterrupt:
        errors.print("interrupted; nothing is left running", style="yellow")
        code = EXIT_INTERRUPTED
    if everything and not as_json:
        console.print(results_table(everything))
        for line in flush_ratios(everything):
            console.print(line)
    return code
