"""Async admin requests that manage the users of access control and their policies."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from actors.wire.admin_headers import (
    AclHeader,
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    UserHeader,
)
from actors.wire.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.header import Header
from cluster.client.admin.admin_core import AdminCore
from cluster.client.errors import BrokerRefused, ConfigInvalid


class AccessAdmin(AdminCore):
    """Requests that manage users and policies.

    Each master broker stores its own copy of the users. Every change is sent to all master brokers.
    """

    async def users(self) -> dict[str, dict[str, UserInfo]]:
        """Return {broker name: {user name: user}}. The users are returned without their secret keys."""
        found = {}
        for broker, address in (await self._masters(None)).items():
            response = await self._listed(address, RequestCode.AUTH_LIST_USER, ListUsersHeader())
            users = msgspec.json.decode(response.body or b"[]", type=list[UserInfo])
            found[broker] = {user.username or "": user for user in users}
        return found

    async def put_user(
        self,
        name: str,
        secret_key: str | None = None,
        *,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
    ) -> None:
        """Create a user on all brokers, or change an existing user. None leaves a value unchanged.

        Raises:
            ConfigInvalid: The user does not exist on a broker, and no secret key is given.
            PermissionDenied: A value is invalid, or the caller may not change this user.
        """
        present = await self.users()
        missing = [broker for broker, users in present.items() if name not in users]
        if missing and not secret_key:
            raise ConfigInvalid(
                f"user {name!r} does not exist on {', '.join(missing)}: give a secret key to create it"
            )
        types, statuses = {True: "Super", False: "Normal"}, {True: "enable", False: "disable"}
        user_type = None if is_super is None else types[is_super]
        user_status = None if is_enabled is None else statuses[is_enabled]
        body = UserInfo(name, secret_key, user_type, user_status).encode()
        for broker, address in (await self._masters(None)).items():
            is_new = name not in present.get(broker, ())
            code = RequestCode.AUTH_CREATE_USER if is_new else RequestCode.AUTH_UPDATE_USER
            await self._call(address, code, UserHeader(name), body)

    async def delete_user(self, name: str) -> None:
        """Delete a user and its policies on all brokers. Does nothing if the user does not exist."""
        for address in (await self._masters(None)).values():
            await self._call(address, RequestCode.AUTH_DELETE_USER, UserHeader(name))

    async def acls(self, name: str = "") -> dict[str, list[AclInfo]]:
        """Return, by broker name, the policies of all users whose names contain `name`."""
        found = {}
        for broker, address in (await self._masters(None)).items():
            response = await self._listed(address, RequestCode.AUTH_LIST_ACL, ListAclsHeader(name))
            found[broker] = msgspec.json.decode(response.body or b"[]", type=list[AclInfo])
        return found

    async def _listed(self, address: str, code: RequestCode, header: Header) -> RemotingCommand:
        """Return the response. RocketMQ has a system error, with Java's text, without access control."""
        try:
            return await self._call(address, code, header)
        except BrokerRefused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            remark = (
                "the broker cannot list users and rules, probably because it has no access control: set "
                "authenticationMetadataProvider and authorizationMetadataProvider in its broker.conf, or "
                "read its log"
            )
            raise BrokerRefused(error.code, remark, address) from error

    async def put_policies(self, name: str, policies: Sequence[PolicyInfo]) -> None:
        """Add rules to a user's policies on all brokers. A rule replaces the earlier rule of its resource.

        Raises PermissionDenied if the user does not exist or a rule is invalid.
        """
        header, body = AclHeader(f"User:{name}"), AclInfo(f"User:{name}", list(policies)).encode()
        for address in (await self._masters(None)).values():
            await self._call(address, RequestCode.AUTH_UPDATE_ACL, header, body)

    async def permit(
        self,
        name: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        sources: Sequence[str] = (),
        is_denied: bool = False,
    ) -> None:
        """Allow or deny a user some actions on resources, on all brokers.

        Args:
            name: The user.
            resources: `*`, or `Topic:`, `Group:` or `Cluster:` followed by a name, `PREFIX*` or `*`.
            actions: `All`, `Pub`, `Sub`, `Create`, `Update`, `Delete`, `Get` or `List`.
            sources: Addresses or networks of the clients to which the rule applies; empty for all clients.
            is_denied: Deny the actions instead of allowing them.

        Raises PermissionDenied as `put_policies` does.
        """
        decision = "Deny" if is_denied else "Allow"
        entries = [
            PolicyEntryInfo(resource, list(actions), list(sources) or None, decision)
            for resource in resources
        ]
        await self.put_policies(name, [PolicyInfo(None, entries)])

    async def delete_policies(self, name: str, resource: str | None = None) -> None:
        """Delete a user's rule for `resource`, or all its policies if `resource` is None, on all brokers.

        Raises PermissionDenied if the user or its policies do not exist.
        """
        header = DeleteAclHeader(f"User:{name}", None, resource)
        for address in (await self._masters(None)).values():
            await self._call(address, RequestCode.AUTH_DELETE_ACL, header)
