"""Rows of `raymq status`, without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

import pytest
from rich.console import Console

from cluster.cli.operations.status import COLUMNS, as_row, formatted, lag_of, show
from cluster.cli.tables import table_of
from cluster.control.kinds import BROKER, LAKE
from cluster.control.plan import Running
from cluster.control.replica_roles import replica_roles
from cluster.control.specs import ActorSpec
from cluster.launch import ActorStatus, why_failing


def test_loop_lag_is_shown_for_brokers_only() -> None:
    row = {
        "actor": "broker-a-0", "kind": "broker", "state": "serving", "address": "127.0.0.1:10911",
        "node": "127.0.0.1", "process": 7, "code": "c", "up_s": 3,
        "details": {"epoch": 2, "loop_lag_p99_us": 1_455, "longest_lag_us": 21_180},
    }  # fmt: skip
    other = row | {"actor": "nameserver-0", "details": {}}
    out = StringIO()
    Console(file=out, width=200).print(table_of(COLUMNS, [formatted(row), formatted(other)]))
    assert "1.5 / 21 ms" in out.getvalue()
    assert lag_of({}) == ""


def printed(details: dict[str, object]) -> str:
    return table([Running("raymq", "broker-a-0", None, "serving", details=details)])


def table(actors: Sequence[Running]) -> str:
    roles = replica_roles(actors)
    out = StringIO()
    rows = [as_row(ActorStatus(actor, ""), roles.get(actor.name)) for actor in actors]
    show(Console(file=out, width=250), "shop", rows)
    return out.getvalue()


def replica(number: int, settings: dict[str, object], **details: object) -> Running:
    name, none = f"broker-a-{number}", ("", 0)
    settings = {"broker_name": "broker-a", "replica": number, **settings}
    spec = ActorSpec(BROKER, name, "shop", settings, none, none, "", f"/store/{name}")
    return Running("raymq", name, spec, "serving" if details else "silent", details=details)


def test_replicas_in_sync_and_the_lag_of_slaves_are_shown_for_masters() -> None:
    master: dict[str, object] = {"in_sync_replicas": 2, "slave_lag_bytes": 1_048_576, "slave_lag_s": 3}
    assert "1,048,576 B / 3 s" in printed({**master, "slaves": "10.0.0.2:4711"})
    assert "no slave" in printed({**master, "slaves": ""})
    assert "in sync" in printed({**master, "slaves": ""})
    assert "in sync" not in printed({})
    assert "slave lag" not in printed({})


def test_counts_of_waiting_messages_are_shown_if_a_broker_reports_them() -> None:
    reported = printed({"open_transactions": 3, "retries_pending": 4_000, "dead_letters_pending": 0})
    assert all(heading in reported for heading in ("open transactions", "retries", "dead letters"))
    assert "4,000" in reported
    assert "pending timers" not in reported
    assert "pending timers" in printed({"pending_timers": 17})
    assert "retries" not in printed({})


def test_slave_whose_log_differs_from_its_masters_is_failing_with_both_positions() -> None:
    spec = ActorSpec(BROKER, "broker-a-1", "C", {}, ("h", 1), ("h", 1), "r")
    state = "stopped: the CommitLog differs from the master's at offset 7, and this slave's ends at 9"
    running = Running("raymq", spec.name, spec, "serving", details={"replication_state": state})
    assert why_failing(running, [spec]) == f"replication has {state}"


def test_role_of_replicas_is_shown_with_the_lag_of_slaves() -> None:
    master = replica(0, {"replication": "sync"}, written=3_000)
    slaves = [
        replica(1, {"role": "slave"}, written=1_000, replication_state="following"),
        replica(2, {"role": "slave"}, written=3_001, replication_state="waiting: no master"),
        replica(3, {"role": "slave"}),
    ]
    lines = table([master, *slaves]).splitlines()
    assert "role" in lines[2]
    assert [line.split("│")[11].strip() for line in lines if "broker-a-" in line] == [
        "master", "slave, 2,000 B behind, in sync", "slave, 0 B behind, not in sync", "slave, lag unknown",
    ]  # fmt: skip


def test_lag_of_a_slave_is_unknown_without_its_master() -> None:
    slave = replica(1, {"role": "slave"}, written=1_000, replication_state="following")
    assert "slave, lag unknown" in table([replica(0, {"replication": "async"}), slave])
    former = replica(0, {"replication": "async"}, written=9_000)
    new = replica(2, {"replication": "async", "group_epoch": 1}, written=1_500)
    assert replica_roles([new, former, slave])["broker-a-1"].lag_bytes == 500


def test_role_is_not_shown_without_replication() -> None:
    single = replica(0, {}, written=3_000)
    assert "role" not in table([single])
    assert as_row(ActorStatus(single, ""))["role"] is None


def in_group(number: int, state: str, heard: int = 0, **details: object) -> Running:
    known = {"raft_state": state, "raft_term": 7, "raft_voters": 3, "raft_active_voters": heard}
    return replica(number, {"replication": "raft"}, **{**known, **details})


def test_role_of_replicas_of_a_raft_group_is_shown_with_the_lag_of_followers() -> None:
    leader = in_group(0, "leader", 3, written=3_000)
    others = [in_group(1, "follower", written=1_000), replica(2, {"replication": "raft"})]
    shown = table([leader, *others])
    assert "leader, term 7 " in shown
    assert "follower, term 7, 2,000 B behind, in sync" in shown
    assert "failed" in shown
    assert as_row(ActorStatus(leader, ""), replica_roles([leader])[leader.name])["is_bare_majority"] is False
    assert "follower, term 7, lag unknown" in table([others[0]])


@pytest.mark.parametrize(
    ("number", "voters"), [pytest.param(2, 0, id="lost its store"), pytest.param(3, 3, id="was removed")]
)
def test_replica_that_is_not_in_its_group_is_not_shown_as_a_copy(number: int, voters: int) -> None:
    leader = in_group(0, "leader", 2, written=3_000, raft_match="1: 3000, 2: 1000")
    actor = in_group(number, "follower", written=1_000, raft_voters=voters)
    shown = table([leader, in_group(1, "follower", written=3_000), actor])
    assert "follower, term 7, 0 B behind, in sync" in shown
    assert shown.count("in sync") == 1
    assert "not a member of its group" in shown
    assert f"broker-a-{number}: is not in its Raft group" in shown
    assert f"`raymq replica replace broker-a {number} " in shown


def test_other_clusters_are_named_if_the_cluster_does_not_run() -> None:
    out = StringIO()
    show(Console(file=out, width=80), "shop", [], ["Raft"])
    assert "running: Raft; give the topology file of the cluster: `raymq status FILE`" in out.getvalue()


def test_group_on_a_bare_majority_is_shown() -> None:
    assert "leader, term 7, on a bare majority" in table([in_group(0, "leader", 2, written=3_000)])
    former = in_group(1, "leader", 1, written=9_000)
    newer = replica(
        2,
        {"replication": "raft"},
        raft_state="leader",
        raft_term=8,
        raft_voters=3,
        raft_active_voters=2,
        written=1_500,
    )
    follower = in_group(0, "follower", written=1_000)
    assert replica_roles([former, newer, follower])["broker-a-0"].lag_bytes == 500


def test_replica_that_takes_no_part_in_its_group_is_failing() -> None:
    spec = ActorSpec(BROKER, "broker-a-1", "C", {}, ("h", 1), ("h", 1), "r")
    running = Running("raymq", spec.name, spec, "serving", details={"raft_state": "the log ends at 7"})
    assert why_failing(running, [spec]) == "takes no part in its Raft group: the log ends at 7"


def test_status_of_a_lake_shows_its_tables_and_what_is_unknown() -> None:
    known = {"behind_s": 12.4, "rows": 1_234_567, "files": 3, "lost": 0}
    details = {"problem": "", "tables": {"orders": known, "pay": dict.fromkeys(known)}}
    shown = printed(details)
    assert "broker-a-0: orders: 12 s behind, 1,234,567 rows in 3 files, lost: 0" in shown
    assert "broker-a-0: pay: – behind, – rows in – files, lost: –" in shown


def test_lake_whose_rounds_fail_is_failing_with_the_reason() -> None:
    spec = ActorSpec(LAKE, "lake-0", "C", {}, ("", 0), ("", 0), "r")
    for reason in ("", "the catalog of the lake cannot be used now"):
        actor = Running("raymq", "lake-0", spec, "serving", details={"problem": reason})
        assert why_failing(actor, [spec]) == reason
