"""Resources of clients: the connected ones, and the state of one member with its stacks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cluster.client import Admin
from cluster.console.routes import Name, get
from cluster.views.clients import Clients, MemberState, list_clients, member_state

ClientId = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]


class ClientResources:
    """The clients."""

    @get("/clients")
    def clients(self, admin: Admin) -> Clients:
        """Return the connected clients. Raises ClientError."""
        return list_clients(admin)

    @get("/groups/{group}/members/{client}", "group member {group} {client} {stack?--stack}")
    def member(self, admin: Admin, group: Name, client: ClientId, stack: bool = False) -> MemberState:
        """Return the state of a member, with the stacks of its threads if `stack`. Raises ClientError."""
        return member_state(admin, group, client, stack=stack)
