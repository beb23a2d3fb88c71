"""The planner: one test for each row of the table in `cluster.control.plan`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cluster.control.kinds import BROKER, KINDS, NAMESERVER, REBALANCER
from cluster.control.plan import Plan, PlannedAction, Running, Verb, make_plan, restarting
from cluster.control.specs import ActorSpec


def spec(name: str, port: int = 1, **settings: Any) -> ActorSpec:
    return ActorSpec(
        BROKER, name, "C", {"a": 1, "store": {"flush": "sync"}, **settings}, ("127.0.0.1", port),
        ("127.0.0.1", port), "node:1", f"/stores/{name}", f"t.yaml:1: {name}",
    )  # fmt: skip


def running(wanted: ActorSpec, namespace: str = "raymq", **changes: Any) -> Running:
    actor = Running(
        namespace, wanted.name, ActorSpec.from_json(wanted.to_json(), KINDS), "serving", "", "code1", 7
    )
    return replace(actor, **changes)


def plan(wanted: list[ActorSpec], found: list[Running], *, prune: bool = False) -> Plan:
    return make_plan(wanted, found, namespace="raymq", code_version="code1", prune=prune)


def verbs(result: Plan) -> list[Verb]:
    return [action.verb for action in result.actions]


def only(result: Plan) -> PlannedAction:
    assert not result.refusals
    assert len(result.actions) == 1
    return result.actions[0]


def test_plan_creates_an_actor_that_is_not_running() -> None:
    assert only(plan([spec("a")], [])).verb is Verb.CREATE


def test_plan_adopts_an_unchanged_actor() -> None:
    result = plan([spec("a")], [running(spec("a"))])
    assert only(result).verb is Verb.ADOPT
    assert result.changes == []


def test_plan_rolls_a_changed_setting_and_names_it() -> None:
    action = only(plan([spec("a", store={"flush": "async"})], [running(spec("a"))]))
    assert action == PlannedAction(Verb.ROLL, "a", "store.flush: sync → async", action.spec)


def test_plan_adjusts_live_settings_without_a_restart() -> None:
    def adjusted(found: Running, **settings: Any) -> PlannedAction:
        wanted = spec("a", **settings)
        return only(
            make_plan(
                [wanted],
                [found],
                namespace="raymq",
                code_version="code1",
                is_live=lambda kind, key: kind is BROKER and key in ("a", "store.keep_h"),
            )
        )

    found = running(spec("a"))
    action = adjusted(found, a=2, store={"flush": "sync", "keep_h": 5})
    assert (action.verb, action.reason) == (Verb.ADJUST, "a: 1 → 2; store.keep_h: unset → 5")
    assert adjusted(found, a=2, store={"flush": "async"}).verb is Verb.ROLL
    assert adjusted(replace(found, code_version="code0"), a=2).verb is Verb.ROLL
    assert adjusted(replace(found, state="not serving"), a=2).verb is Verb.ROLL
    assert adjusted(found).verb is Verb.ADOPT


def test_plan_rolls_an_actor_with_another_code_version() -> None:
    assert only(plan([spec("a")], [running(spec("a"), code_version="code0")])).reason == "code code0 → code1"


def test_plan_rolls_an_actor_that_does_not_serve_or_respond() -> None:
    failed = running(spec("a"), state="not serving", reason="locked")
    assert only(plan([spec("a")], [failed])).reason == "is not serving: locked"
    assert only(plan([spec("a")], [running(spec("a"), state="stopped")])).reason == "is stopped"
    silent = Running("raymq", "a", reason="no answer in 3 s")
    assert only(plan([spec("a")], [silent])).verb is Verb.ROLL


def test_plan_keeps_unknown_actors_unless_pruned() -> None:
    found = [running(spec("a")), running(spec("b", 2))]
    assert [action.verb for action in plan([spec("a")], found).actions] == [Verb.KEEP, Verb.ADOPT]
    assert [action.verb for action in plan([spec("a")], found, prune=True).actions] == [
        Verb.REMOVE,
        Verb.ADOPT,
    ]


def test_keep_reason_mentions_the_store_only_of_actors_with_one() -> None:
    found = [running(spec("a")), running(replace(spec("b"), store=None))]
    reasons = {action.name: action.reason for action in plan([], found).actions}
    assert reasons["a"].endswith("--prune removes it, its store is kept")
    assert reasons["b"].endswith("--prune removes it")


def test_plan_refuses_the_name_of_another_programs_actor() -> None:
    foreign = Running("raymq", "a", is_ours=False)
    assert (
        "used in namespace raymq by an actor of another program" in plan([spec("a")], [foreign]).refusals[0]
    )
    assert plan([], [foreign]).actions == []


def test_plan_refuses_the_name_of_another_clusters_actor() -> None:
    other = running(replace(spec("a"), cluster="Other"))
    assert "a of namespace raymq belongs to cluster Other, not C" in plan([spec("a")], [other]).refusals[0]


def test_plan_refuses_ports_and_stores_of_another_cluster() -> None:
    theirs = running(replace(spec("x", 1), cluster="Other", store="/stores/a"), namespace="theirs")
    port, store = plan([spec("a", 1)], [theirs]).refusals
    owner = "x of cluster Other (theirs)"
    assert port == (
        f"t.yaml:1: a.listen_port: 127.0.0.1:1 is in use by {owner}; give it another port, or stop that actor"
    )
    assert store == (
        f"t.yaml:1: a.store: /stores/a is the store of {owner}; a store has one writer: "
        "give it another store_root, or stop that actor"
    )


def test_plan_reuses_the_port_of_a_pruned_actor() -> None:
    result = plan([spec("new", 5)], [running(replace(spec("old", 5), store="/stores/old"))], prune=True)
    assert not result.refusals
    assert verbs(result) == [Verb.REMOVE, Verb.CREATE]


def test_actor_spec_round_trips_through_json() -> None:
    assert ActorSpec.from_json(spec("a").to_json(), KINDS) == replace(spec("a"), place="")


def test_restart_rolls_only_the_named_actors() -> None:
    whole = plan(
        [spec("a-0", 1), spec("b-0", 2), spec("c-0", 3)], [running(spec("a-0", 1)), running(spec("b-0", 2))]
    )
    action = only(restarting(whole, ["b"]))
    assert (action.verb, action.name, action.reason) == (Verb.ROLL, "b-0", "restart requested")
    assert [action.name for action in restarting(whole, None).actions] == ["a-0", "b-0"]


def test_restart_refuses_unknown_or_stopped_actors() -> None:
    whole = plan([spec("a-0", 1), spec("b-0", 2)], [running(spec("a-0", 1)), running(spec("z-0", 9))])
    assert restarting(whole, ["b"]).refusals == ["b-0 is not running; `raymq up` starts it"]
    assert restarting(whole, ["z"]).refusals == [
        "z-0 is not in the topology, so it could not be started again"
    ]
    assert restarting(whole, ["x"]).refusals == ["no actor 'x'; known actors: a-0, b-0, z-0"]


def test_rolling_restart_order_is_nameservers_then_brokers() -> None:
    wanted = [
        spec("a-0", 1),
        replace(spec("n-0", 2), kind=NAMESERVER),
        replace(spec("r-0", 3), kind=REBALANCER),
    ]
    whole = plan(wanted, [running(each) for each in wanted])
    assert [action.name for action in restarting(whole, None).actions] == ["n-0", "r-0", "a-0"]


def test_slaves_restart_before_masters() -> None:
    wanted = [spec("a-0", 1), spec("a-1", 2, role="slave"), spec("b-0", 3), spec("b-1", 4, role="slave")]
    whole = plan(wanted, [running(each) for each in wanted])
    assert [action.name for action in restarting(whole, None).actions] == ["a-1", "b-1", "a-0", "b-0"]
    changed = plan(wanted, [running(replace(each, settings={**each.settings, "a": 2})) for each in wanted])
    assert [action.name for action in changed.actions] == ["a-1", "b-1", "a-0", "b-0"]


def test_interrupted_promotion_stops_the_former_master_first() -> None:
    before = [spec("a-0", 1), spec("a-1", 2, role="slave"), spec("a-2", 3, role="slave"), spec("b-0", 4)]
    after = [
        spec("a-0", 1, role="slave", group_epoch=1),
        spec("a-1", 2, role="slave", group_epoch=1),
        spec("a-2", 3, group_epoch=1),
        spec("b-0", 4, a=2),
    ]
    actions = plan(after, [running(each) for each in before]).actions
    assert [action.name for action in actions] == ["a-0", "a-2", "a-1", "b-0"]
    assert [action.is_demotion for action in actions] == [True, False, False, False]
    assert [action.is_promotion for action in actions] == [False, True, False, False]
    whole = plan(after, [running(each) for each in before])
    assert [action.name for action in restarting(whole, None).actions] == ["a-0", "a-2", "a-1", "b-0"]


def test_leader_of_a_raft_group_is_restarted_last() -> None:
    wanted = [spec(name) for name in ("a-0", "a-1", "a-2")]
    states = ["leader", "follower", "follower"]
    found = [running(each, details={"raft_state": state}) for each, state in zip(wanted, states, strict=True)]
    for result in (
        restarting(plan(wanted, found), None),
        plan([spec(each.name, b=2) for each in wanted], found),
    ):
        assert [action.name for action in result.having(Verb.ROLL)] == ["a-1", "a-2", "a-0"]
