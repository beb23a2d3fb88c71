"""Views of access control: users, and the rules of their policies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.wire.bodies.access import AclInfo
    from cluster.client import Admin


@dataclass(frozen=True, slots=True)
class UserView:
    """A user, and the brokers that know it with these values."""

    user: str
    type: str
    status: str
    brokers: Sequence[str]


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule of a user's policy, and the brokers that have it."""

    user: str
    policy: str | None
    resource: str | None
    actions: Sequence[str]
    sources: Sequence[str]
    decision: str | None
    brokers: Sequence[str]


def list_users(admin: Admin) -> list[UserView]:
    """Return the users of all brokers, by name. Raises `ClientError`."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for broker, users in admin.users().items():
        for name, user in users.items():
            found.setdefault((name, user.user_type or "", user.user_status or ""), []).append(broker)
    return [UserView(*key, brokers) for key, brokers in sorted(found.items())]


def list_rules(admin: Admin, name: str = "") -> list[RuleRow]:
    """Return the rules of the users whose names contain `name`. Raises `ClientError`."""
    found: dict[str, RuleRow] = {}
    for broker, acls in admin.acls(name).items():
        for rule in _rules(acls):
            known = found.setdefault(str(rule), rule)
            found[str(rule)] = replace(known, brokers=[*known.brokers, broker])
    return [found[key] for key in sorted(found)]


def _rules(acls: list[AclInfo]) -> Iterator[RuleRow]:
    for acl in acls:
        user = (acl.subject or "").removeprefix("User:")
        for policy in acl.policies:
            for entry in policy.entries:
                yield RuleRow(
                    user,
                    policy.policy_type,
                    entry.resource,
                    entry.actions,
                    entry.source_ips or [],
                    entry.decision,
                    [],
                )
