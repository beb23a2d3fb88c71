"""`raymq bench`: runs benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli.console import EXIT_FAILED, EXIT_INTERRUPTED, Output
from cluster.cli.options import NAMESERVER, Nameserver, examples

if TYPE_CHECKING:
    from cluster.lab.bench.options import BenchOptions

EPILOG = examples(
    "raymq bench list",
    "raymq bench send-table --json",
    "raymq bench send-one --flush sync --seconds 10 --runs 1",
    "raymq bench send-one --tls /etc/raymq",
    "raymq bench all",
    "raymq bench omb workloads/1-topic-1-partition-1kb.yaml --nameserver 127.0.0.1:9876 --json",
    "raymq bench omb workloads/1-topic-1-partition-1kb.yaml --driver java --client-jars rocketmq/lib",
)
OMB = "omb"
OMB_LINE = "A workload file of the OpenMessaging Benchmark against a running cluster (`--nameserver`)."
OMB_ONLY = {"workload", "nameserver", "driver", "client_jars"}
OMB_TAKES = {"name", "as_json", *OMB_ONLY}

TlsFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Connect by TLS, with server.crt (for 127.0.0.1), server.key and ca.pem in FOLDER.",
        show_default=False,
    ),
]

WorkloadFile = Annotated[
    Path | None, typer.Argument(metavar="WORKLOAD.yaml", help="Workload of `omb`.", show_default=False)
]

Driver = Annotated[str, typer.Option(help="Client of `omb`: raymq (Python) or java (RocketMQ's).")]
Directory = Annotated[
    Path | None,
    typer.Option(help="Directory for stores (default: a temporary directory).", show_default=False),
]
ClientJars = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Folder `lib` of a RocketMQ release, for `--driver java`.", show_default=False
    ),
]


def command(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help="Name of a benchmark, `all`, or `list` to print the names.", show_default=False),
    ],
    workload: WorkloadFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per benchmark.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, max=86_400.0, help="Duration of each run.")] = 20.0,
    warm_up: Annotated[
        float, typer.Option(min=0.0, max=86_400.0, metavar="SECONDS", help="Warm-up before the first run.")
    ] = 3.0,
    runs: Annotated[int, typer.Option(min=1, help="Number of runs; the median is reported.")] = 3,
    flush: Annotated[str, typer.Option(help="The broker's flush mode: async or sync.")] = "async",
    body_bytes: Annotated[int, typer.Option(min=8, help="Body size, a multiple of 8.")] = 128,
    messages: Annotated[
        int, typer.Option(min=1000, help="Messages in the backlog of read benchmarks.")
    ] = 4_000_000,
    tls: TlsFolder = None,
    nameserver: Nameserver = NAMESERVER,
    driver: Driver = "raymq",
    client_jars: ClientJars = None,
    directory: Directory = None,
) -> None:
    """Run benchmarks on this machine.

    Each benchmark starts its broker in a separate process on free ports, and deletes its files at the end.
    Only `omb` runs against a running cluster, of RayMQ or RocketMQ, and deletes its topics at the end.
    """
    from cluster.lab.bench.options import BenchOptions
    from cluster.lab.bench.registry import BENCHES

    if name == "list":
        rows = [{"name": each, "measures": line} for each, line in {**BENCHES, OMB: OMB_LINE}.items()]
        Output(as_json=as_json).table("benchmarks", ("name", "measures"), rows)
        return
    _check(name, tls, flush, body_bytes)
    _check_omb(context, name)
    if name == OMB:
        raise typer.Exit(_run_omb(workload, nameserver, as_json, _checked_jars(driver, client_jars)))
    certificates = tls and tls.absolute()
    options = BenchOptions(seconds, warm_up, runs, flush, body_bytes, messages, directory, certificates)
    raise typer.Exit(_run(name, options, as_json))


def _check(name: str, tls: Path | None, flush: str, body_bytes: int) -> None:
    from cluster.lab.bench.registry import ALL, BENCHES, WITH_TLS

    if name not in (*BENCHES, ALL, OMB):
        raise typer.BadParameter(
            f"{name!r} is not a benchmark: use one of {', '.join(BENCHES)}, {ALL}, {OMB}", param_hint="NAME"
        )
    if tls is not None and name not in WITH_TLS:
        raise typer.BadParameter(f"only {', '.join(WITH_TLS)} can connect by TLS", param_hint="--tls")
    if flush not in ("async", "sync"):
        raise typer.BadParameter(f"{flush!r} is invalid: use async or sync", param_hint="--flush")
    if body_bytes % 8:
        raise typer.BadParameter(f"{body_bytes} is not a multiple of 8", param_hint="--body-bytes")


def _check_omb(context: typer.Context, name: str) -> None:
    """Refuse options of the command line that `name` would ignore."""
    for parameter in context.command.params:
        key = parameter.name or ""
        source = context.get_parameter_source(key)
        if source is None or source.name != "COMMANDLINE":
            continue
        if key in OMB_ONLY if name != OMB else key not in OMB_TAKES:
            problem = "omb does not take this option" if name == OMB else "only omb takes it"
            raise typer.BadParameter(problem, param_hint=parameter.opts[0])


def _checked_jars(driver: str, client_jars: Path | None) -> Path | None:
    """Return the folder with the jars of the driver; None for the Python client."""
    if driver not in ("raymq", "java"):
        raise typer.BadParameter(f"{driver!r} is invalid: use raymq or java", param_hint="--driver")
    if driver == "raymq" and client_jars is not None:
        raise typer.BadParameter("only --driver java takes it", param_hint="--client-jars")
    if driver == "java" and client_jars is None:
        problem = "--driver java needs the folder `lib` of a RocketMQ release"
        raise typer.BadParameter(problem, param_hint="--client-jars")
    return client_jars


def _run_omb(workload: Path | None, nameservers: str, as_json: bool, client_jars: Path | None) -> int:
    """Run a workload, print its result as JSON, and return the exit code."""
    import json

    from rich.console import Console

    from cluster.client.errors import ClientError
    from cluster.interrupts import interrupt_once
    from cluster.lab.bench.omb.load import run_omb
    from cluster.lab.bench.omb.workload import read_workload
    from cluster.lab.bench.options import BenchFailed

    if workload is None:
        raise typer.BadParameter("omb needs a workload file", param_hint="WORKLOAD.yaml")
    errors = Console(stderr=True)
    try:
        given, payloads = read_workload(workload)
        interrupt_once()
        with errors.status("starting") as status:
            found = run_omb(given, payloads, nameservers, status.update, client_jars)
    except (BenchFailed, ClientError) as error:
        errors.print(str(error), style="red", highlight=False, markup=False, soft_wrap=True)
        return EXIT_FAILED
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        return EXIT_INTERRUPTED
    typer.echo(json.dumps(found, indent=None if as_json or not Console().is_terminal else 2))
    return 0


def _run(name: str, options: BenchOptions, as_json: bool) -> int:
    """Run benchmarks, print their results, also those before a failure, and return the exit code.

    Progress is printed on standard error.
    """
    import logging
    import sys
    from dataclasses import replace

    from rich.console import Console

    from cluster.client.errors import ClientError
    from cluster.interrupts import interrupt_once
    from cluster.lab.bench.bench_report import flush_ratios, results_table
    from cluster.lab.bench.options import BenchFailed
    from cluster.lab.bench.registry import run_named
    from cluster.lab.bench.result import as_json as json_line
    from store.common.logs import log_to_handler

    log_to_handler(logging.StreamHandler(sys.stderr), logging.WARNING)
    console, errors = Console(), Console(stderr=True)
    as_json = as_json or not console.is_terminal
    everything, code = [], 0
    interrupt_once()  # SIGTERM (`timeout`) must also stop the broker, which runs in another session
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
        errors.print("interrupted; all processes are stopped", style="yellow")
        code = EXIT_INTERRUPTED
    if everything and not as_json:
        console.print(results_table(everything))
        for line in flush_ratios(everything):
            console.print(line)
    return code
