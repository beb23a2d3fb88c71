"""The rules of policies: which one decides, and what is refused when a rule is set."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest

from actors.access.policies import decide, parse_policies, to_infos
from actors.wire.bodies.access import PolicyEntryInfo, PolicyInfo
from actors.wire.remoting_errors import Refused
from actors.wire.targets import EVERY, Action, Resource, Target

HERE = ipaddress.ip_address("10.1.2.3")
ORDERS = Target(Resource.TOPIC, "orders", Action.PUB)

Spec = tuple[str, str, str]


def rules(*specs: Spec, policy_type: str | None = None) -> PolicyInfo:
    """Return a policy of rules (resource, actions, decision)."""
    entries = [
        PolicyEntryInfo(resource, actions.split(","), decision=decision)
        for resource, actions, decision in specs
    ]
    return PolicyInfo(policy_type, entries)


def decision(*specs: Spec, target: Target = ORDERS) -> bool | None:
    return decide(parse_policies([rules(*specs)]), target, HERE)


@pytest.mark.parametrize(
    ("resource", "is_matched"),
    [
        ("*", True),
        ("Topic:*", True),
        ("Topic:ord*", True),
        ("Topic:orders", True),
        ("topic:orders", True),
        ("Topic:order", False),
        ("Topic:orders2*", False),
        ("Group:orders", False),
        ("Group:*", False),
        ("Cluster:*", False),
    ],
)
def test_literal_prefix_and_any_patterns_match(resource: str, is_matched: bool) -> None:
    assert decision((resource, "Pub", "Allow")) is (True if is_matched else None)


@pytest.mark.parametrize(
    ("specs", "is_allowed"),
    [
        ([("Topic:orders", "Pub", "Deny"), ("Topic:*", "Pub", "Allow")], False),
        ([("Topic:orders", "Pub", "Allow"), ("Topic:*", "Pub", "Deny")], True),
        ([("Topic:ord*", "Pub", "Allow"), ("Topic:o*", "Pub", "Deny")], True),
        ([("Topic:o*", "Pub", "Allow"), ("Topic:ord*", "Pub", "Deny")], False),
        ([("*", "All", "Allow"), ("Topic:*", "Pub", "Deny")], False),
        ([("*", "All", "Deny"), ("Topic:*", "Pub", "Allow")], True),
        ([("Topic:orders", "Pub", "Allow"), ("Topic:orders", "Pub", "Deny")], False),
        ([("Topic:orders", "Sub", "Deny"), ("Topic:*", "Pub", "Allow")], True),
    ],
)
def test_most_specific_rule_decides_and_deny_before_allow(specs: Sequence[Spec], is_allowed: bool) -> None:
    assert decision(*specs) is is_allowed
    assert decision(*reversed(specs)) is is_allowed


def test_default_policy_applies_only_if_no_custom_rule_matches() -> None:
    default = rules(("Topic:*", "Pub", "Allow"), policy_type="Default")
    denied = rules(("Topic:orders", "Pub", "Deny"))
    other = rules(("Topic:other", "Pub", "Deny"))
    assert decide(parse_policies([default, denied]), ORDERS, HERE) is False
    assert decide(parse_policies([default, other]), ORDERS, HERE) is True


@pytest.mark.parametrize(
    ("action", "granting"),
    [
        (Action.PUB, {"All", "Pub"}),
        (Action.SUB, {"All", "Sub"}),
        (Action.GET, {"All", "Get", "Sub"}),
        (Action.LIST, {"All", "List", "Get"}),
        (Action.UPDATE, {"All", "Update", "Create"}),
        (Action.DELETE, {"All", "Delete"}),
    ],
)
def test_actions_are_granted_by(action: Action, granting: set[str]) -> None:
    names = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
    target = Target(Resource.TOPIC, "orders", action)
    assert {each for each in names if decision(("Topic:orders", each, "Allow"), target=target)} == granting


def test_target_of_all_topics_needs_a_rule_for_all() -> None:
    every = Target(Resource.TOPIC, EVERY, Action.LIST)
    assert decision(("Topic:*", "List", "Allow"), target=every) is True
    assert decision(("Topic:**", "List", "Allow"), ("Topic:o*", "List", "Allow"), target=every) is None


@pytest.mark.parametrize(
    ("sources", "is_matched"),
    [
        (["10.1.2.3"], True),
        (["10.0.0.0/8"], True),
        (["10.1.2.9/24"], True),
        (["192.168.0.0/16", "10.1.2.3"], True),
        (["192.168.0.0/16"], False),
        (["::1", "fd00::/8"], False),
        ([], True),
    ],
)
def test_source_addresses_restrict_a_rule(sources: list[str], is_matched: bool) -> None:
    entry = PolicyEntryInfo("Topic:orders", ["Pub"], sources, "Allow")
    found = decide(parse_policies([PolicyInfo(None, [entry])]), ORDERS, HERE)
    assert found is (True if is_matched else None)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (PolicyEntryInfo("Topics:a", ["Pub"], None, "Allow"), "resource 'Topics:a' is not valid"),
        (PolicyEntryInfo("Topic:", ["Pub"], None, "Allow"), "resource 'Topic:' is not valid"),
        (PolicyEntryInfo(None, ["Pub"], None, "Allow"), "resource '' is not valid"),
        (PolicyEntryInfo("Topic:" + "a" * 600, ["Pub"], None, "Allow"), "is not valid"),
        (PolicyEntryInfo("Topic:a", ["Publish"], None, "Allow"), "action 'Publish' is not valid"),
        (PolicyEntryInfo("Topic:a", ["Any"], None, "Allow"), "action 'Any' is not valid"),
        (PolicyEntryInfo("Topic:a", [], None, "Allow"), "The actions is empty"),
        (PolicyEntryInfo("Topic:a", ["Pub"], ["10.0.0.0/33"], "Allow"), "source address"),
        (PolicyEntryInfo("Topic:a", ["Pub"], ["host"], "Allow"), "source address 'host' is not valid"),
        (PolicyEntryInfo("Topic:a", ["Pub"], None, "Maybe"), "decision 'Maybe' is not valid"),
        (PolicyEntryInfo("Topic:a", ["Pub"], None, None), "decision '' is not valid"),
    ],
)
def test_invalid_rule_is_refused_by_name(entry: PolicyEntryInfo, reason: str) -> None:
    with pytest.raises(Refused, match=reason) as caught:
        parse_policies([PolicyInfo(None, [entry])])
    assert caught.value.code == 16


def test_policies_without_rules_or_of_an_unknown_type_are_refused() -> None:
    with pytest.raises(Refused, match="The policies is empty"):
        parse_policies([])
    with pytest.raises(Refused, match="The policy entries is empty"):
        parse_policies([PolicyInfo(None, [])])
    with pytest.raises(Refused, match="policy type 'Other' is not valid"):
        parse_policies([rules(("*", "All", "Allow"), policy_type="Other")])


def test_policies_survive_encoding() -> None:
    found = parse_policies(
        [rules(("Topic:o*", "pub,sub", "allow"), ("*", "ALL", "Deny")), rules(("Group:*", "Sub", "Allow"))]
    )
    assert parse_policies(to_infos(found)) == found
