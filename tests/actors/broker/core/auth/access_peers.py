"""Helpers for access control tests: a broker with users, and clients that sign their requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from actors.broker.service import BrokerService
from actors.transport.client import SigningClient
from actors.transport.limits import RemotingLimits
from actors.transport.table import RequestTable
from actors.wire.admin_headers import AclHeader, UserHeader
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.signing import Credentials, Signer, write_credentials
from store.common.clock import Clock, SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, settings_of, with_broker

INNER = Credentials("inner", "inner-secret")
DENIED = 16
SECRETS = {"alice": "alice-secret", "bob": "bob-secret", "root": "root-secret"}


class SigningPeer(Peer):
    """A client that signs its requests as one user."""

    def __init__(
        self,
        broker: BrokerService,
        credentials: Credentials,
        pushed: RequestTable | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(broker)
        limits = RemotingLimits(connect_timeout_ms=TIMEOUT_MS)
        self.client = SigningClient(clock or SystemClock(), Signer(credentials), pushed, limits)

    async def create_user(self, name: str, user_type: str = "Normal", **more: str) -> RemotingCommand:
        user = {"username": name, "password": SECRETS[name], "userType": user_type, **more}
        ext = UserHeader(name).to_ext()
        return await self.ask(RequestCode.AUTH_CREATE_USER, ext, orjson.dumps(user))

    async def update_user(self, name: str, **fields: str) -> RemotingCommand:
        ext = UserHeader(name).to_ext()
        return await self.ask(RequestCode.AUTH_UPDATE_USER, ext, orjson.dumps(fields))

    async def permit(self, name: str, resource: str, *actions: str, **more: Any) -> RemotingCommand:
        """Add a rule that allows `actions` (or has the decision in `more`) on a resource."""
        return await self.set_acl(name, [entry(resource, actions, **more)])

    async def set_acl(self, name: str, entries: list[Any], **more: Any) -> RemotingCommand:
        body = {"subject": f"User:{name}", "policies": [{"entries": entries, **more}]}
        ext = AclHeader(f"User:{name}").to_ext()
        return await self.ask(RequestCode.AUTH_CREATE_ACL, ext, orjson.dumps(body))


def entry(
    resource: str, actions: Sequence[str], decision: str = "Allow", sources: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a policy entry as mqadmin sends it."""
    return {
        "resource": resource,
        "actions": list(actions),
        "sourceIps": list(sources),
        "decision": decision,
    }


Connect = Callable[[str], SigningPeer]
AccessStory = Callable[[SigningPeer, Connect], Awaitable[None]]


def inner_file(root: Path) -> Path:
    path = root / "inner.key"
    if not path.exists():
        write_credentials(path, INNER)
    return path


def with_access(story: AccessStory, root: Path, clock: Clock | None = None, **settings: Any) -> None:
    """Run a scenario with a broker that requires signatures and permissions.

    The story gets a client of the inner user, and a function that returns the client of another user.
    """
    given = {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "inner_credentials_file": inner_file(root),
        **settings,
    }

    async def scenario(peer: Peer) -> None:
        peers = [SigningPeer(peer.broker, INNER, clock=clock)]

        def connect(name: str) -> SigningPeer:
            peers.append(SigningPeer(peer.broker, Credentials(name, SECRETS[name]), clock=clock))
            return peers[-1]

        try:
            await story(peers[0], connect)
        finally:
            for each in peers:
                await each.client.close()

    with_broker(scenario, settings_of(root, **given), clock)
