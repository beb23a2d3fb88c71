"""AccessTable: limits of users and of the rules of one user."""

from __future__ import annotations

import pytest

from actors.access.users import RULES, USERS, AccessTable
from actors.wire.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from actors.wire.remoting_errors import Refused


def acl(first: int, last: int) -> AclInfo:
    entries = [PolicyEntryInfo(f"Topic:t{n}", ["Pub"], decision="Allow") for n in range(first, last)]
    return AclInfo("User:alice", [PolicyInfo("Custom", entries)])


def test_rules_of_one_user_are_bounded() -> None:
    table = AccessTable()
    table.add_user(UserInfo("alice", "secret"))
    table.set_policies(acl(0, RULES.limit))
    table.set_policies(acl(0, RULES.limit))  # the same resources
    with pytest.raises(Refused, match=r"1,001 rules, the limit is 1,000"):
        table.set_policies(acl(RULES.limit, RULES.limit + 1))
    assert sum(map(len, table.policies["alice"].values())) == RULES.limit


def test_users_are_bounded() -> None:
    table = AccessTable()
    for number in range(USERS.limit):
        table.add_user(UserInfo(f"u{number}", "secret"))
    with pytest.raises(Refused, match=r"10,000 users, which is the limit"):
        table.add_user(UserInfo("one-more", "secret"))
