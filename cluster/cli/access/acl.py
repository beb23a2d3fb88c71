"""The `raymq acl` commands: list, set, delete and import the access rules of users."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli.access.user import User
from cluster.cli.console import confirmed, open_admin, print_error
from cluster.cli.options import NAMESERVER, AsJson, DryRun, Nameserver, Yes, examples
from cluster.views import access

if TYPE_CHECKING:
    from cluster.client.admin.plain_acl import PlainAcl

app = typer.Typer(no_args_is_help=True, help="Policies of users: list, set, delete, import.")

COLUMNS = ("user", "policy", "resource", "actions", "sources", "decision", "brokers")


@app.command("list", epilog=examples("raymq acl list", "raymq acl list alice --json"))
def list_rules(
    name: Annotated[str, typer.Argument(help="Only users whose names contain this.")] = "",
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """List the rules of users' policies."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        out.table("rules", COLUMNS, [asdict(each) for each in access.list_rules(admin, name)])


@app.command(
    "set",
    epilog=examples(
        "raymq acl set alice -r Topic:orders -a Pub",
        "raymq acl set billing -r Topic:orders -r Group:billing* -a Sub",
        "raymq acl set alice -r 'Topic:pay*' -a All --deny --source 10.0.0.0/8",
    ),
)
def set_rule(
    name: User,
    resources: Annotated[
        list[str],
        typer.Option(
            "--resource", "-r", help="`*`, or Topic:, Group: or Cluster: and a name, PREFIX* or `*`."
        ),
    ],
    actions: Annotated[
        list[str],
        typer.Option("--action", "-a", help="All, Pub, Sub, Create, Update, Delete, Get or List."),
    ],
    sources: Annotated[
        list[str] | None, typer.Option("--source", help="Address or network to which the rule applies.")
    ] = None,
    deny: Annotated[bool, typer.Option("--deny", help="Deny instead of allow.")] = False,
    nameserver: Nameserver = NAMESERVER,
    as_json: AsJson = False,
) -> None:
    """Allow or deny a user actions on resources. This replaces the user's earlier rules for the resources."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        admin.permit(name, resources, actions, sources=sources or (), is_denied=deny)
        decision = "Deny" if deny else "Allow"
        what = f"{decision} {name} {', '.join(actions)} on {', '.join(resources)}"
        out.done(what, user=name, resources=resources, actions=actions, decision=decision)


@app.command(epilog=examples("raymq acl delete alice -r Topic:orders", "raymq acl delete alice --yes"))
def delete(
    name: User,
    resource: Annotated[
        str | None, typer.Option("--resource", "-r", help="Only the rule of this resource.")
    ] = None,
    nameserver: Nameserver = NAMESERVER,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the rule of a user for one resource, or all rules of the user."""

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        what = f"the rule of {name} for {resource}" if resource else f"all rules of {name}"
        confirmed(f"Delete {what}?", yes=yes)
        admin.delete_policies(name, resource)
        out.done(f"deleted {what}", user=name, resource=resource)


@app.command("import", epilog=examples("raymq acl import conf/plain_acl.yml --dry-run"))
def import_plain_acl(
    file: Annotated[Path, typer.Argument(help="RocketMQ 4.x plain_acl.yml.", show_default=False)],
    nameserver: Nameserver = NAMESERVER,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Create the users and rules of a plain_acl.yml of RocketMQ 4.x on the brokers.

    Users that all brokers have are not changed, so that it can be repeated after a broker was added.
    """

    from cluster.client.admin.plain_acl import read_plain_acl

    with open_admin(nameserver, as_json=as_json) as (admin, out):
        found: PlainAcl = read_plain_acl(file)
        users = admin.users().values()
        present = set.intersection(*map(set, users)) if users else set()
        added = [account for account in found.accounts if account.name not in present]
        for warning in found.warnings:
            print_error(f"warning: {warning}")
        for account in () if dry_run else added:
            admin.put_user(account.name, account.secret_key, is_super=account.is_super)
            if account.policies:
                admin.put_policies(account.name, account.policies)
        names = [account.name for account in added]
        kept = [account.name for account in found.accounts if account.name in present]
        what = "would import" if dry_run else "imported"
        text = f"{what} {', '.join(names) or 'no user'}; kept {', '.join(kept) or 'no user'}"
        out.done(text, imported=names, kept=kept, dry_run=dry_run)
