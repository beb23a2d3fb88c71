"""Async admin requests about users and their policies (access control)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from actors.remoting.admin_headers import (
    AclHeader,
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    UserHeader,
)
from actors.remoting.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from actors.remoting.codes import RequestCode
from cluster.client.admin.admin_core import AdminCore
from cluster.client.errors import ConfigInvalid


class AccessAdmin(AdminCore):
    """Requests about users and policies. Each broker has its own users; changes are made on all brokers."""

    async def users(self) -> dict[str, dict[str, UserInfo]]:
        """Return the users of each broker, by broker and user name. Secret keys are not returned."""
        found = {}
        for broker, address in (await self._masters(None)).items():
            response = await self._call(address, RequestCode.AUTH_LIST_USER, ListUsersHeader())
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
        """Create a user on all brokers, or change it. Values that are None stay as they are.

        Raises:
            ConfigInvalid: The user is new on a broker and no secret key is given.
            PermissionDenied: A value is invalid, or the caller may not change this user.
        """
        present = await self.users()
        missing = [broker for broker, users in present.items() if name not in users]
        if missing and not secret_key:
            raise ConfigInvalid(f"user {name!r} is new on {', '.join(missing)}: give its secret key")
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
        """Return the policies of the users of each broker whose names contain `name`, by broker."""
        found = {}
        for broker, address in (await self._masters(None)).items():
            response = await self._call(address, RequestCode.AUTH_LIST_ACL, ListAclsHeader(name))
            found[broker] = msgspec.json.decode(response.body or b"[]", type=list[AclInfo])
        return found

    async def put_policies(self, name: str, policies: Sequence[PolicyInfo]) -> None:
        """Add rules to a user's policies on all brokers. They replace rules of the same resource.

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
        """Allow a user actions on resources, or deny them, on all brokers (see `put_policies`)."""
        decision = "Deny" if is_denied else "Allow"
        entries = [
            PolicyEntryInfo(resource, list(actions), list(sources) or None, decision)
            for resource in resources
        ]
        await self.put_policies(name, [PolicyInfo(None, entries)])

    async def delete_policies(self, name: str, resource: str | None = None) -> None:
        """Delete the rule of a resource, or all policies of a user, on all brokers.

        Raises PermissionDenied if the user or its policies do not exist.
        """
        header = DeleteAclHeader(f"User:{name}", None, resource)
        for address in (await self._masters(None)).values():
            await self._call(address, RequestCode.AUTH_DELETE_ACL, header)
