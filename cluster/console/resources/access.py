"""Resources of access control: users and the rules of their policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from cluster.client import Admin
from cluster.console.routes import Change, NoParameters, Parameters, Route, Write, option
from cluster.views.access import Rule, UserView, list_rules, list_users

User = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Texts = Annotated[list[User], msgspec.Meta(max_length=50)]


class RulesParameters(Parameters, frozen=True):
    """The rules of the users whose names contain `match`."""

    match: Annotated[str, msgspec.Meta(max_length=255)] = ""


class PutUser(Write, frozen=True, kw_only=True):
    """A user; what is not given keeps its value. A new user needs a secret key."""

    user: User
    secret: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    is_super: bool | None = None
    enabled: bool | None = None


class DeleteUser(Write, frozen=True, kw_only=True):
    """A user to delete, with its policies."""

    user: User


class PutRule(Write, frozen=True, kw_only=True):
    """A rule: allow, or `deny`, a user some actions on resources, for clients at `sources` or all."""

    user: User
    resources: Annotated[Texts, msgspec.Meta(min_length=1)]
    actions: Annotated[Texts, msgspec.Meta(min_length=1)]
    sources: Texts = msgspec.field(default_factory=list)
    deny: bool = False


class DeleteRule(Write, frozen=True, kw_only=True):
    """The rule of a user for a resource."""

    user: User
    resource: User


class AccessResources:
    """Users and rules."""

    def routes(self) -> Sequence[Route]:
        """Return the rows of the route table."""
        return (
            Route(
                "GET", "/users", lambda admin, _given: list_users(admin), NoParameters, Sequence[UserView],
                "Users.", lambda _given: ("user", "list"),
            ),
            Route(
                "GET", "/rules", lambda admin, given: list_rules(admin, given.match), RulesParameters,
                Sequence[Rule], "Rules of users.",
                lambda given: ("acl", "list", given.match or None),
            ),
            Route("POST", "/users", self.put_user, PutUser, Change, "Create or change a user.", _put_user),
            Route(
                "DELETE", "/users/{user}", self.delete_user, DeleteUser, Change, "Delete a user.",
                lambda given: ("user", "delete", given.user),
            ),
            Route(
                "POST", "/users/{user}/rules", self.put_rule, PutRule, Change, "Allow or deny actions.",
                lambda given: (
                    "acl", "set", given.user,
                    *(word for each in given.resources for word in ("--resource", each)),
                    *(word for each in given.actions for word in ("--action", each)),
                    *(word for each in given.sources for word in ("--source", each)),
                    "--deny" if given.deny else None,
                ),
            ),
            Route(
                "DELETE", "/users/{user}/rules", self.delete_rule, DeleteRule, Change, "Delete a rule.",
                lambda given: ("acl", "delete", given.user, *option("--resource", given.resource)),
            ),
        )  # fmt: skip

    def put_user(self, admin: Admin, given: PutUser) -> Change:
        """Create or change a user. Raises ClientError."""
        before = [each for each in list_users(admin) if each.user == given.user]
        verb = "change" if before else "create"
        rows = [
            {"setting": "super user", "before": [each.type for each in before], "after": given.is_super},
            {"setting": "enabled", "before": [each.status for each in before], "after": given.enabled},
            {"setting": "secret key", "before": None, "after": "new" if given.secret else "unchanged"},
        ]
        if given.dry_run:
            return Change(f"would {verb} user {given.user}", rows)
        admin.put_user(given.user, given.secret, is_super=given.is_super, is_enabled=given.enabled)
        return Change(f"{verb}d user {given.user}", rows, done=True)

    def delete_user(self, admin: Admin, given: DeleteUser) -> Change:
        """Delete a user. Raises ClientError."""
        rows = [each for each in list_rules(admin, given.user) if each.user == given.user]
        if given.dry_run:
            return Change(f"would delete user {given.user} and {len(rows)} rules", rows)
        admin.delete_user(given.user)
        return Change(f"deleted user {given.user} and {len(rows)} rules", rows, done=True)

    def put_rule(self, admin: Admin, given: PutRule) -> Change:
        """Set rules. Raises ClientError."""
        replaced = [
            each
            for each in list_rules(admin, given.user)
            if each.user == given.user and each.resource in given.resources
        ]
        verb = "deny" if given.deny else "allow"
        rule = f"{given.user} {', '.join(given.actions)} on {', '.join(given.resources)}"
        if given.dry_run:
            return Change(f"would {verb} {rule}, instead of {len(replaced)} earlier rules", replaced)
        admin.permit(given.user, given.resources, given.actions, sources=given.sources, is_denied=given.deny)
        return Change(f"{verb} {rule}, instead of {len(replaced)} earlier rules", replaced, done=True)

    def delete_rule(self, admin: Admin, given: DeleteRule) -> Change:
        """Delete a rule. Raises ClientError."""
        rows = [
            each
            for each in list_rules(admin, given.user)
            if each.user == given.user and each.resource == given.resource
        ]
        if given.dry_run:
            return Change(f"would delete the rule of {given.user} for {given.resource}", rows)
        admin.delete_policies(given.user, given.resource)
        return Change(f"deleted the rule of {given.user} for {given.resource}", rows, done=True)


def _put_user(given: PutUser) -> Sequence[str | None]:
    return (
        "user",
        "create",
        given.user,
        None if given.is_super is None else "--super" if given.is_super else "--no-super",
        None if given.enabled is None else "--enabled" if given.enabled else "--no-enabled",
    )
