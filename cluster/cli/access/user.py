"""The `raymq user` commands: list, create, change and delete users, and write credentials files."""

from __future__ import annotations

import secrets
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cluster.cli.console import Failed, Output, Refusal, confirmed, exiting_on_errors, open_admin
from cluster.cli.options import NAMESERVER, AsJson, Nameserver, Yes, examples
from cluster.views import access
from store.common.text_file import read_text

app = typer.Typer(no_args_is_help=True, help="Users of access control: list, create, change, delete.")

User = Annotated[str, typer.Argument(help="User name (access key).", show_default=False)]
SecretFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File with the secret key; `-` reads standard input."),
]
INNER_USER = "inner"
SECRET_BYTES = 24


@app.command("list", epilog=examples("raymq user list", "raymq user list --json"))
def list_users(nameserver: Nameserver = NAMESERVER, as_json: AsJson = False) -> None:
    """List users with their type, status and brokers."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found = [asdict(each) for each in access.list_users(admin)]
        out.table("users", ("user", "type", "status", "brokers"), found)


@app.command(
    epilog=examples(
        "raymq user create alice",
        "raymq user create alice --secret-file alice.secret --super",
        "raymq user create alice --no-enabled",
    )
)
def create(
    name: User,
    secret_file: SecretFile = None,
    is_super: Annotated[
        bool | None, typer.Option("--super/--no-super", help="A super user may do everything.")
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--no-enabled", help="Accept or reject the requests of the user.")
    ] = None,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Create a user, or change an existing user. Options that are not given leave its values unchanged.

    Prompts for the secret key of a new user unless --secret-file is given.
    """

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        secret_key = None if secret_file is None else _read_secret(secret_file)
        if secret_key is None and not all(name in users for users in admin.users().values()):
            secret_key = typer.prompt("Secret key", hide_input=True, confirmation_prompt=True, err=True)
        admin.put_user(name, secret_key, is_super=is_super, is_enabled=enabled)
        brokers = sorted(admin.brokers())
        out.done(f"user {name} on {', '.join(brokers)}", user=name, brokers=brokers)


@app.command(epilog=examples("raymq user delete alice --yes"))
def delete(
    name: User, nameserver: Nameserver = NAMESERVER, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Delete a user and its policies on all brokers."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        if not any(name in users for users in admin.users().values()):
            raise Failed(f"user {name!r} does not exist; `raymq user list` shows all users")
        confirmed(f"Delete user {name} and its policies?", yes=yes)
        admin.delete_user(name)
        out.done(f"deleted user {name}", user=name)


@app.command(epilog=examples("raymq user credentials /etc/raymq/inner.key"))
def credentials(
    file: Annotated[Path, typer.Argument(help="File to create, mode 0600.", show_default=False)],
    access_key: Annotated[str, typer.Option(metavar="NAME", help="Name of the user.")] = INNER_USER,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Write a credentials file for the setting inner_credentials_file or the variable RAYMQ_CREDENTIALS.

    The secret key is random unless --secret-file is given.
    """

    from actors.wire.signing import Credentials, CredentialsInvalid, write_credentials

    with exiting_on_errors():
        secret_key = secrets.token_urlsafe(SECRET_BYTES) if secret_file is None else _read_secret(secret_file)
        try:
            write_credentials(file, Credentials(access_key, secret_key, access_key == INNER_USER))
        except CredentialsInvalid as error:
            raise Refusal(str(error)) from None
        except OSError as error:
            raise Failed(f"{file}: {error.strerror}") from None
        Output(as_json=as_json).done(
            f"wrote the keys of {access_key} to {file}", user=access_key, file=str(file)
        )


def _read_secret(file: str) -> str:
    """Return the secret key in a file, or from standard input if `file` is `-`.

    The key is not a command-line argument, because other users of the machine can read those.
    """
    if file == "-" and sys.stdin is None:
        raise Refusal("--secret-file -: standard input is closed")
    try:
        text = sys.stdin.readline().removeprefix("\ufeff") if file == "-" else read_text(Path(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Refusal(f"--secret-file {file}: {reason}") from None
    secret_key = text.strip()
    if not secret_key or "\n" in secret_key:
        raise Refusal(f"--secret-file {file}: the file must contain one line, the secret key")
    return secret_key
