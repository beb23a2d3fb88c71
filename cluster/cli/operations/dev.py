"""`raymq dev`: serves a small cluster in the foreground, without Ray."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli.console import Failed, exiting_on_errors
from cluster.cli.options import NAMESERVER, examples

if TYPE_CHECKING:
    from cluster.standalone import StandaloneCluster

EPILOG = examples(
    "raymq dev",
    "raymq dev --store-root /tmp/orders",
    "raymq dev --gateway-port 8081",
    "raymq dev --port 0 --broker-port 0 --console-port 0",
)
WAIT_MS = 1000
"""How long a port or a store that is in use is retried: it will not become free by itself."""
STORE = {
    "commit_log_file_bytes": 64 << 20,
    "index_slots": 500_000,
    "index_entries": 2_000_000,
    "lock_timeout_ms": WAIT_MS,
}
"""Smaller files than a broker's: 64 MiB of messages and 42 MB of index are allocated at the first send."""
CLUSTER = "dev"
LOG_FILE = "dev.log"
OTHER_PORTS = (
    "stop the program that uses it, or choose another --port, --broker-port, --console-port or --gateway-port"
)


def command(
    store_root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where messages are kept (default: ~/.raymq/dev/store)."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port for clients.")] = 9876,
    broker_port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the broker.")] = 10911,
    console_port: Annotated[int, typer.Option(min=0, max=65_535, help="Port of the console.")] = 8085,
    gateway_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, help="Also serve RocketMQ 5's gRPC clients on this port.", show_default=False
        ),
    ] = None,
) -> None:
    """Serve a nameserver, a broker, a rebalancer and the web console in this process, until Ctrl-C.

    For development on one machine: nothing else is started, and messages are kept for the next time. Port 0
    chooses a free port. The log is the file `dev.log` beside the stores.
    """
    with exiting_on_errors():
        import uvloop

        from cluster.console.console_settings import ConsoleSettings
        from cluster.console.service import ConsoleRefused, ConsoleService
        from cluster.paths import home_of
        from cluster.standalone import ServiceFailed, StandaloneSettings, run
        from store.common.clock import SystemClock
        from store.common.logs import log_to_file
        from store.store_errors import StoreError
        from store.store_settings import StoreSettings

        root = (store_root or home_of(CLUSTER) / "store").absolute()
        settings = StandaloneSettings(
            root, port, broker_port,
            cluster_name=CLUSTER, store=StoreSettings.model_validate(STORE), gateway_port=gateway_port,
            broker={"start_timeout_ms": str(WAIT_MS)},
        )  # fmt: skip

        async def add_console(cluster: StandaloneCluster) -> None:
            given = {"nameservers": [cluster.nameserver_address], "listen_port": console_port}
            console = ConsoleService(ConsoleSettings.model_validate(given), SystemClock())
            await cluster.add(console)
            typer.echo(next_steps(cluster, console.address, root))

        typer.echo("starting; the first start on a machine compiles for up to a minute")
        try:
            log_to_file(root / LOG_FILE)
            uvloop.run(run(settings, add_console))
        except (StoreError, ConsoleRefused, ServiceFailed) as error:
            raise Failed(str(error)) from error
        except OSError as error:
            reason = error.strerror or str(error)
            remedy = OTHER_PORTS if error.errno == errno.EADDRINUSE else "choose another --store-root"
            raise Failed(f"{f'{error.filename}: ' * bool(error.filename)}{reason}; {remedy}") from error
        typer.echo(f"stopped; messages are kept in {root}")


def next_steps(cluster: StandaloneCluster, console: str, root: Path) -> str:
    """Return the addresses, and what to type next."""
    address = cluster.nameserver_address
    raymq = "uv run raymq" if "UV_RUN_RECURSION_DEPTH" in os.environ else "raymq"
    option = "" if address == NAMESERVER else f" -n {address}"
    gateway = f"gRPC clients  {cluster.gateway_address}\n" if cluster.gateway_address else ""
    return f"""
nameserver    {address}
console       {console}
{gateway}messages      {root}
log           {root / LOG_FILE}

Next, in another terminal:

  {raymq} send orders '4 apples'{option}
  {raymq} tail orders --from earliest{option}

or in Python:

  from cluster.client import Producer, PullConsumer

  with Producer("{address}") as producer:
      producer.send("orders", b"4 apples")
  with PullConsumer("{address}", "billing") as consumer:
      consumer.subscribe("orders")
      print(consumer.poll(timeout_ms=5_000))

READY {address}   (Ctrl-C stops it)"""
