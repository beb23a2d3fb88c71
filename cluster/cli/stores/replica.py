"""`raymq replica`: members of Raft groups, and the store of a replica on this machine's disk."""

from __future__ import annotations

import typer

from cluster.cli.console import Output, confirmed, exiting_on_errors
from cluster.cli.options import AsJson, DryRun, Store, Yes, examples
from cluster.cli.stores.recover_group import RECOVER_GROUP, recover_group
from cluster.cli.stores.replica_members import ADD, REMOVE, REPLACE, add, remove, replace
from cluster.cli.stores.store_tools import exiting_on_store_errors

app = typer.Typer(no_args_is_help=True, help="Replicas: members of Raft groups; copy the master's log again.")

EXAMPLES = examples(
    "raymq replica resync ~/.raymq/DefaultCluster/store/broker-a-1 --dry-run",
    "raymq replica resync ~/.raymq/DefaultCluster/store/broker-a-1",
)


app.command(epilog=ADD)(add)
app.command(epilog=REMOVE)(remove)
app.command(epilog=REPLACE)(replace)
app.command("recover-group", epilog=RECOVER_GROUP)(recover_group)


@app.command(epilog=EXAMPLES)
def resync(path: Store, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Set the log of a stopped slave aside, because it differs from its master's.

    Its next start copies the master's log from the oldest file on. The log, and all that is derived from it,
    is moved to a directory beside the store, where `raymq store` can read it; nothing is deleted. After an
    interruption, run the command again to resume.
    """
    import dataclasses

    from store.tools.resync import resyncing

    output = Output(as_json=as_json)
    with exiting_on_store_errors("raymq replica"), exiting_on_errors(), resyncing(path) as work:
        plan = work.plan()
        divergence = plan.divergence
        if not output.is_json:
            output.line(f"{plan.store}: {divergence.reason}; its master was {divergence.master}")
            output.line(
                f"the log from {plan.log_begin:,} to {plan.log_end:,} is set aside in {plan.directory}; "
                f"{plan.messages:,} of its messages are at {divergence.position:,} or later"
            )
        if not dry_run:
            confirmed("Set the log aside?", yes=yes)
            work.run()
            plan = dataclasses.replace(plan, is_done=True)
        output.done(
            f"set aside; `raymq store messages {plan.directory} --from-position {divergence.position}` "
            "prints these messages. Start the broker as a slave: it copies the master's log"
            if plan.is_done
            else "nothing was changed",
            **plan.as_json(),
        )
