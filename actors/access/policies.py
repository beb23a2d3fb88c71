"""Policies: rules that decide if a user may perform an action on a resource, as in RocketMQ 5's ACL 2.0.

A rule consists of a resource, actions, optional source addresses and a decision, Allow or Deny:

    resource   `*` (everything), `Topic:*` (all topics), `Topic:order*` (topics with this prefix) or
               `Topic:orders` (one topic); likewise for `Group:` and `Cluster:`
    actions    All, Pub, Sub, Create, Update, Delete, Get, List
    sources    addresses or networks such as 10.0.0.0/8; without sources the rule applies to every address

The most specific rule that matches a request decides. From most to least specific: one name, a longer prefix,
a shorter prefix, all names of a type, `*`. Of two equally specific rules, Deny wins. Rules of policy type
Default apply only if no rule of type Custom matches. If no rule matches, the request is denied.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from actors.wire.bodies.access import PolicyEntryInfo, PolicyInfo
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from actors.wire.targets import EVERY, Action, Resource, Target

ALL: Final = "All"
CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"

_ACTIONS: Final = {name.lower(): name for name in (ALL, *(str(action).title() for action in Action))}
_RESOURCES: Final = {str(resource): str(resource).title() for resource in Resource}
_POLICY_TYPES: Final = {"custom": CUSTOM, "default": DEFAULT}
_DECISIONS: Final = {"allow": ALLOW, "deny": DENY}
_NAME_CHARS_MAX: Final = 512

# Maps an action of a request to the actions of a rule that permit it. All other actions are permitted only by
# themselves and by All. As in RocketMQ, Sub permits Get because consumers read offsets and query messages,
# and Create permits Update because the same request creates and updates a topic.
_GRANTED_BY: Final[Mapping[Action, frozenset[str]]] = {
    Action.GET: frozenset({ALL, "Get", "Sub"}),
    Action.LIST: frozenset({ALL, "List", "Get"}),
    Action.UPDATE: frozenset({ALL, "Update", "Create"}),
}

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Pattern(IntEnum):
    """How a rule's resource name is compared with that of a request; the most specific way comes first."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class ResourcePattern:
    """The resources that a rule applies to. `type_name` is empty if it applies to all resource types."""

    type_name: str
    pattern: Pattern
    name: str = ""

    @classmethod
    def parse(cls, text: str | None) -> ResourcePattern:
        """Parse a resource pattern such as `Topic:order*`. Raises Refused if it is invalid."""
        if text == EVERY:
            return cls("", Pattern.ANY)
        type_text, colon, name = (text or "").partition(":")
        type_name = _RESOURCES.get(type_text.lower())
        if type_name is None or not colon or not name or len(name) > _NAME_CHARS_MAX:
            raise _invalid(
                f"resource {(text or '')[:100]!r} is not valid: use `*`, or Topic:, Group: or Cluster: and "
                "a name, a prefix ending in `*`, or `*`"
            )
        if name == EVERY:
            return cls(type_name, Pattern.ANY)
        if name.endswith(EVERY):
            return cls(type_name, Pattern.PREFIXED, name[:-1])
        return cls(type_name, Pattern.LITERAL, name)

    @property
    def key(self) -> str:
        """The pattern in the form that `parse` accepts."""
        if not self.type_name:
            return EVERY
        return f"{self.type_name}:{self.name}{'' if self.pattern is Pattern.LITERAL else EVERY}"

    def matches(self, type_name: str, name: str) -> bool:
        """Return True if the pattern matches the resource with this type and name.

        A request for all resources has the name EVERY, which only a pattern for all names matches.
        """
        if self.type_name and self.type_name != type_name:
            return False
        if self.pattern is Pattern.ANY or name == EVERY:
            return self.pattern is Pattern.ANY
        return name == self.name if self.pattern is Pattern.LITERAL else name.startswith(self.name)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Sort key that orders patterns from the most to the least specific."""
        return not self.type_name, int(self.pattern), -len(self.name)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy: allows or denies actions on some resources, optionally only from `networks`."""

    resource: ResourcePattern
    actions: tuple[str, ...]
    is_allowed: bool
    sources: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, info: PolicyEntryInfo) -> Rule:
        """Parse a rule from a request or the file. Raises Refused if a value is invalid."""
        actions = []
        for text in info.actions:
            action = _ACTIONS.get(text.strip().lower())
            if action is None:
                names = ", ".join(_ACTIONS.values())
                raise _invalid(f"action {text[:100]!r} is not valid: use {names}")
            actions.append(action)
        if not actions:
            raise _invalid("The actions is empty.")
        decision = _DECISIONS.get((info.decision or "").lower())
        if decision is None:
            raise _invalid(f"decision {(info.decision or '')[:100]!r} is not valid: use Allow or Deny")
        sources = tuple(text.strip() for text in info.source_ips or ())
        networks = tuple(map(_network, sources))
        resource = ResourcePattern.parse(info.resource)
        return cls(resource, tuple(dict.fromkeys(actions)), decision == ALLOW, sources, networks)

    def matches(self, target: Target, type_name: str, source: Address) -> bool:
        """Return True if the rule applies to a request from address `source` for the action in `target`.

        A request for all resources is also denied by a rule that denies some of them.
        """
        granting = _GRANTED_BY.get(target.action)
        if granting is None:
            granting = frozenset({ALL, str(target.action).title()})
        return (
            (
                self.resource.matches(type_name, target.name)
                or (target.name == EVERY and not self.is_allowed and self.resource.type_name == type_name)
            )
            and not granting.isdisjoint(self.actions)
            and (not self.networks or any(source in network for network in self.networks))
        )

    def to_info(self) -> PolicyEntryInfo:
        """Return the JSON form of the rule, for responses and for the file."""
        decision = ALLOW if self.is_allowed else DENY
        return PolicyEntryInfo(self.resource.key, list(self.actions), list(self.sources) or None, decision)


Policies = dict[str, list[Rule]]
"""The rules of one user by policy type, the most specific rule first."""


def parse_policies(infos: Iterable[PolicyInfo]) -> Policies:
    """Parse the policies of a request or the file. Raises Refused if a rule is invalid or missing."""
    found: Policies = {}
    for info in infos:
        rules = [Rule.parse(entry) for entry in info.entries]
        if not rules:
            raise _invalid("The policy entries is empty.")
        found[policy_type(info.policy_type)] = merged(found.get(policy_type(info.policy_type), []), rules)
    if not found:
        raise _invalid("The policies is empty.")
    return found


def policy_type(text: str | None) -> str:
    """Parse a policy type, by default Custom. Raises Refused unless it is Custom or Default."""
    found = _POLICY_TYPES.get((text or CUSTOM).lower())
    if found is None:
        raise _invalid(f"policy type {(text or '')[:100]!r} is not valid: use Custom or Default")
    return found


def merged(rules: Sequence[Rule], added: Sequence[Rule]) -> list[Rule]:
    """Return the rules of both lists, the most specific first.

    A rule of `added` replaces a rule of `rules` with the same resource.
    """
    replaced = {rule.resource for rule in added}
    kept = [rule for rule in rules if rule.resource not in replaced]
    return sorted([*kept, *added], key=lambda rule: (rule.resource.rank, rule.is_allowed))


def to_infos(policies: Policies) -> list[PolicyInfo]:
    """Return the JSON form of policies, for responses and for the file."""
    return [
        PolicyInfo(type_name, [rule.to_info() for rule in rules])
        for type_name, rules in sorted(policies.items())
    ]


def decide(policies: Policies, target: Target, source: Address, *, by_name: bool = False) -> bool | None:
    """Return True if the rules allow the action, False if they deny it, None if no rule matches.

    With `by_name`, only rules with the name of the resource can allow the action: a rule for a prefix or for
    all names was not meant for it.
    """
    type_name = _RESOURCES[target.resource]
    for name in (CUSTOM, DEFAULT):
        for rule in policies.get(name, ()):
            if rule.is_allowed and by_name and rule.resource.pattern is not Pattern.LITERAL:
                continue
            if rule.matches(target, type_name, source):
                return rule.is_allowed
    return None


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise _invalid(
            f"source address {text[:100]!r} is not valid: use an address or a network such as 10.0.0.0/8"
        ) from None


def _invalid(remark: str) -> Refused:
    return Refused(ResponseCode.NO_PERMISSION, remark)
