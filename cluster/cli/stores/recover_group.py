"""`raymq replica recover-group`: makes one store the only member of a Raft group that lost its majority."""

from __future__ import annotations

from datetime import UTC, datetime

from cluster.cli.console import Output, confirmed, exiting_on_errors
from cluster.cli.options import AsJson, DryRun, Store, Yes, examples
from cluster.cli.stores.store_tools import exiting_on_store_errors
from cluster.counted import counted

RECOVER_GROUP = examples(
    "raymq replica recover-group ~/.raymq/DefaultCluster/store/broker-a-1 --dry-run",
    "raymq replica recover-group ~/.raymq/DefaultCluster/store/broker-a-1",
)


def recover_group(path: Store, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Let a Raft group continue with this store alone, after a majority of its stores is lost for good.

    Messages that the lost replicas have acknowledged, and this store lacks, are lost. Run it with --dry-run
    on each store that is left, and recover the one with the greatest last term, among those the one with the
    longest log. Stop all replicas first, and never start the other stores again: give new brokers empty
    stores, and add them with `raymq replica add`.
    """
    from cluster.group_recovery import recovering_group
    from store.common.clock import SystemClock

    out = Output(as_json=as_json)
    with (
        exiting_on_store_errors("raymq replica"),
        exiting_on_errors(),
        recovering_group(path, SystemClock()) as recovery,
    ):
        plan = recovery.plan()
        if not out.is_json:
            voters = ", ".join(str(each.replica) for each in plan.members.voters)
            out.line(f"{plan.store}: replica {plan.replica} of group {plan.group}, whose voters are {voters}")
            out.line(
                f"its log ends at {plan.log_end:,} with term {plan.last_term}; its last message was stored "
                f"{_time(plan.last_stored_ms)}; it is known to be confirmed up to {plan.confirmed:,}"
            )
            out.line("lost for good: every message that was acknowledged, and is not in this log")
            if plan.missing_bytes:
                out.line(f"this store itself has lost {plan.missing_bytes:,} confirmed bytes")
            if plan.unconfirmed:
                out.line(f"kept, though perhaps not acknowledged: {counted(plan.unconfirmed, 'message')}")
        if not dry_run:
            confirmed(f"Make replica {plan.replica} the only member of {plan.group}?", yes=yes)
            recovery.run()
        out.done(
            "nothing was changed"
            if dry_run
            else f"replica {plan.replica} is the only member: start it, never start the other stores again, "
            "and add brokers with empty stores by `raymq replica add`",
            **plan.as_json(),
            done=not dry_run,
        )


def _time(wall_ms: int) -> str:
    if not wall_ms:
        return "at an unknown time"
    return f"at {datetime.fromtimestamp(wall_ms / 1000, tz=UTC):%Y-%m-%d %H:%M:%S} UTC"
