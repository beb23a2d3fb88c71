"""`raymq demo`: runs the demo."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import EXIT_FAILED, EXIT_INTERRUPTED
from cluster.cli.options import examples

EPILOG = examples("raymq demo", "raymq demo --flights 10000", "raymq demo --console")


def command(
    flights: Annotated[int, typer.Option(min=100, max=336_776, help="Number of flights to send.")] = 336_776,
    web_console: Annotated[
        bool, typer.Option("--console", help="Also start the web console; then run until Ctrl-C.")
    ] = False,
) -> None:
    """Send real flights through a cluster, kill a broker meanwhile, and compare three counts.

    Starts configs/local.yaml on free ports with a separate Ray. Two consumers read the topic, Spark (RayDP)
    aggregates it, and both results are compared with the source data. All processes and files are removed.
    """
    raise typer.Exit(_run(flights, web_console))


def _run(flights: int, web_console: bool) -> int:
    import signal
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from rich.console import Console

    from cluster.lab.demo.flights import data_file

    data_file()  # raises before anything is started

    from cluster.lab.demo.cluster_up import DemoFailed
    from cluster.lab.demo.run import run_demo
    from cluster.lab.demo.stage import console_alone
    from cluster.launch import Failures, Refusals

    # Also if a shell started this process in the background with SIGINT ignored: always clean up.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    errors = Console(stderr=True)
    log_tail: list[str] = []
    with TemporaryDirectory(prefix="raymq-demo-", ignore_cleanup_errors=True) as home:
        log_file = Path(home, "demo.log")
        try:
            with console_alone(log_file) as console:
                return run_demo(flights, console, Path(home), web_console=web_console)
        except KeyboardInterrupt:
            errors.print("interrupted; all processes are stopped", style="yellow")
            return EXIT_INTERRUPTED
        except (DemoFailed, *Failures, *Refusals) as error:
            log_tail = log_file.read_text(errors="replace").splitlines()[-15:]
            errors.print("\n".join(log_tail), style="dim", highlight=False, markup=False)
            errors.print(str(error), style="red", highlight=False, markup=False)
            return EXIT_FAILED
