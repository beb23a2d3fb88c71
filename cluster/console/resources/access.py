"""Resources of access control: users and the rules of their policies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec

from cluster.client import Admin
from cluster.console.routes import Name, Prepared, Short, plan, route
from cluster.counted import counted
from cluster.views.access import RuleRow, UserView, list_rules, list_users

Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=50)]
SomeNames = Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=50)]


class AccessResources:
    """Users and rules."""

    @route("GET", "/users", "user list")
    def users(self, admin: Admin) -> Sequence[UserView]:
        """Return the users. Raises ClientError."""
        return list_users(admin)

    @route("GET", "/rules", "acl list {match}")
    def rules(self, admin: Admin, match: Short = "") -> Sequence[RuleRow]:
        """Return the rules of the users whose names contain `match`. Raises ClientError."""
        return list_rules(admin, match)

    @route(
        "POST", "/users", "user create {user} {is_super?--super:--no-super} {enabled?--enabled:--no-enabled}"
    )
    def put_user(
        self, admin: Admin, user: Name, secret: Name | None = None, is_super: bool | None = None,
        enabled: bool | None = None,
    ) -> Prepared:  # fmt: skip
        """Create or change a user; a new one needs a secret key. Raises ClientError."""
        before = [each for each in list_users(admin) if each.user == user]
        rows = [
            {"setting": "super user", "before": [each.type for each in before], "after": is_super},
            {"setting": "enabled", "before": [each.status for each in before], "after": enabled},
            {"setting": "secret key", "before": None, "after": "new" if secret else "unchanged"},
        ]
        put = partial(admin.put_user, user, secret, is_super=is_super, is_enabled=enabled)
        return plan("change" if before else "create", f"user {user}", put, rows)

    @route("DELETE", "/users/{user}", "user delete {user}")
    def delete_user(self, admin: Admin, user: Name) -> Prepared:
        """Delete a user with its rules. Raises ClientError."""
        rows = _rules_of(admin, user)
        return plan(
            "delete", f"user {user} and {counted(len(rows), 'rule')}", partial(admin.delete_user, user), rows
        )

    @route(
        "POST",
        "/users/{user}/rules",
        "acl set {user} --resource={resources} --action={actions} --source={sources} {deny?--deny}",
    )
    def put_rule(
        self, admin: Admin, user: Name, resources: SomeNames, actions: SomeNames, sources: Names = (),
        deny: bool = False,
    ) -> Prepared:  # fmt: skip
        """Allow or deny a user actions on resources, for clients at `sources` or all. Raises ClientError."""
        rows = [each for each in _rules_of(admin, user) if each.resource in resources]
        what = f"{user} {', '.join(actions)} on {', '.join(resources)}, instead of {len(rows)} earlier rules"
        permit = partial(admin.permit, user, resources, actions, sources=sources, is_denied=deny)
        verb = "deny" if deny else "allow"
        return Prepared(f"would {verb} {what}", permit, f"{verb} {what}", rows)

    @route("DELETE", "/users/{user}/rules", "acl delete {user} --resource={resource}")
    def delete_rule(self, admin: Admin, user: Name, resource: Name) -> Prepared:
        """Delete the rule of a user for a resource. Raises ClientError."""
        rows = [each for each in _rules_of(admin, user) if each.resource == resource]
        what = f"the rule of {user} for {resource}"
        return plan("delete", what, partial(admin.delete_policies, user, resource), rows)


def _rules_of(admin: Admin, user: str) -> list[RuleRow]:
    return [each for each in list_rules(admin, user) if each.user == user]
