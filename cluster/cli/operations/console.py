"""`raymq console`: serves the web console."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cluster.cli.console import Failed, Refusal, exiting_on_errors
from cluster.cli.options import NAMESERVER, Nameserver, examples

EPILOG = examples(
    "raymq console",
    "raymq console --port 8090 --read-only",
    "raymq console --host 0.0.0.0 --login --tls-certificate console.pem --tls-key console.key",
)


def command(
    nameserver: Nameserver = NAMESERVER,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 chooses a free port.")] = 8085,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")] = False,
    login: Annotated[
        bool, typer.Option("--login", help="Always require a login as a user of the cluster.")
    ] = False,
    bodies: Annotated[
        str, typer.Option(help="What to show of message bodies: shown, masked or hidden.")
    ] = "shown",
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM certificate, for HTTPS.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM private key, for HTTPS.", show_default=False)
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Permit a public address without login and TLS.")
    ] = False,
) -> None:
    """Serve the web console until Ctrl-C. It shows and changes what the commands of `raymq` do.

    Brokers with access control require a login; requests then have the rights of that user.
    """
    with exiting_on_errors():
        import uvloop
        from pydantic import ValidationError

        from cluster.client.config import parse_addresses
        from cluster.console.console_settings import ConsoleSettings
        from cluster.console.service import ConsoleRefused, run

        given = {
            "nameservers": parse_addresses(nameserver),
            "listen_host": host,
            "listen_port": port,
            "read_only": read_only,
            "login": login,
            "bodies": bodies,
            "tls_certificate": tls_certificate,
            "tls_key": tls_key,
            "insecure": insecure,
        }
        try:
            settings = ConsoleSettings.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            name = "".join(f"--{part} " for part in first["loc"])
            raise Refusal(f"{name}{first['msg'].removeprefix('Value error, ')}") from None
        try:
            uvloop.run(run(settings, lambda address: typer.echo(f"console: {address}")))
        except ConsoleRefused as error:
            raise Failed(str(error)) from None
