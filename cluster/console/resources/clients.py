"""Resources of clients: the connected ones, and the state of one member with its stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from cluster.client import Admin
from cluster.console.resources.topics import Name
from cluster.console.routes import Parameters, Route
from cluster.views.clients import Clients, MemberState, list_clients, member_state


class ClientsParameters(Parameters, frozen=True):
    """The list of clients has no parameters."""


class MemberParameters(Parameters, frozen=True):
    """A member of a group, with the stacks of its threads if `stack`."""

    group: Name
    client: Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
    stack: bool = False


class ClientResources:
    """The clients."""

    def routes(self) -> Sequence[Route]:
        """Return the rows of the route table."""
        return (
            Route("GET", "/clients", self.clients, ClientsParameters, Clients, "Connected clients."),
            Route(
                "GET", "/groups/{group}/members/{client}", self.member, MemberParameters, MemberState,
                "The state of a member.",
                lambda given: (
                    "group", "member", given.group, given.client, "--stack" if given.stack else None,
                ),
            ),
        )  # fmt: skip

    def clients(self, admin: Admin, given: ClientsParameters) -> Clients:
        """Return the connected clients. Raises ClientError."""
        return list_clients(admin)

    def member(self, admin: Admin, given: MemberParameters) -> MemberState:
        """Return the state of a member. Raises ClientError."""
        return member_state(admin, given.group, given.client, stack=given.stack)
