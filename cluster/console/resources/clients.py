"""Resources of clients: the connected ones, and the state of one member with its stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from cluster.console.resources.topics import Name
from cluster.console.routes import NoParameters, Parameters, Route
from cluster.views.clients import Clients, MemberState, list_clients, member_state


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
            Route(
                "GET", "/clients", lambda admin, _given: list_clients(admin), NoParameters, Clients,
                "Connected clients.",
            ),
            Route(
                "GET", "/groups/{group}/members/{client}",
                lambda admin, given: member_state(admin, given.group, given.client, stack=given.stack),
                MemberParameters, MemberState,
                "The state of a member.",
                lambda given: (
                    "group", "member", given.group, given.client, "--stack" if given.stack else None,
                ),
            ),
        )  # fmt: skip
