"""Handlers of the requests that create, change, delete, list and copy users and their policies.

The requests are those of RocketMQ's mqadmin commands createUser to listAcl. A slave copies the users of its
master; it does not change them itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import orjson

from actors.access.access_file import AccessFile
from actors.access.authorization import UNKNOWN_USER, Users
from actors.access.policies import policy_type
from actors.access.users import SUBJECT_PREFIX, AccessTable
from actors.broker.core.table_names import POLICY, USER
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.admin_headers import (
    AclHeader,
    DeleteAclHeader,
    ListAclsHeader,
    ListUsersHeader,
    UserHeader,
)
from actors.wire.bodies.access import AclInfo, PolicyInfo, UserInfo
from actors.wire.bodies.body import encode_json
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.raymq_requests import CheckUserHeader, decode_targets
from actors.wire.remoting_errors import Refused
from actors.wire.signing import ACCESS_KEY, ON_BEHALF_OF
from actors.wire.targets import Action, DecodedRequest, Target, on_cluster


@dataclass(frozen=True, slots=True)
class AccessControl:
    """The users of a broker and the file in which they are stored."""

    file: AccessFile
    users: Users


class AccessRequests:
    """Request handler for users and policies. Only the inner user gets secret keys, with GET_ALL_USERS.

    Only super users may change policies. Other users with the permission may create users, which have no
    policies, and change or delete such users and themselves: with the key of another user they would have its
    permissions.
    """

    def __init__(self, access: AccessControl | None, *, is_replicated: bool = False) -> None:
        """Create the handler.

        Args:
            access: the users; None if authentication is disabled, then all requests are refused.
            is_replicated: True in a Raft group. mqadmin sends the same request to each replica (`-c`), and
                they all reach the leader: the creation of a user that exists as requested is a success.
        """
        self._access = access
        self._is_replicated = is_replicated

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, row = RequestCode, partial(RequestRow, on_slave=OnSlave.SERVED)
        change = partial(RequestRow, changes=(USER, POLICY), is_for_all=True)
        get, update = on_cluster(Action.GET), on_cluster(Action.UPDATE)
        return (
            change(code.AUTH_CREATE_USER, self.create_user, UserHeader, update),
            change(code.AUTH_UPDATE_USER, self.update_user, UserHeader, update),
            change(code.AUTH_DELETE_USER, self.delete_user, UserHeader, update),
            change(code.AUTH_CREATE_ACL, self.set_acl, AclHeader, update),
            change(code.AUTH_UPDATE_ACL, self.set_acl, AclHeader, update),
            change(code.AUTH_DELETE_ACL, self.delete_acl, DeleteAclHeader, update),
            row(code.AUTH_GET_USER, self.get_user, UserHeader, get),
            row(code.AUTH_LIST_USER, self.list_users, ListUsersHeader, get),
            row(code.AUTH_GET_ACL, self.get_acl, AclHeader, get),
            row(code.AUTH_LIST_ACL, self.list_acls, ListAclsHeader, get),
            row(RayMQRequestCode.CHECK_USER, self.check_user, CheckUserHeader, _checked_targets),
            row(RayMQRequestCode.GET_ALL_USERS, self.get_all, None, get, is_inner=True),
        )

    def create_user(self, context: RequestContext) -> None:
        """Handle AUTH_CREATE_USER: add a user. Only a super user may add a super user."""
        info = self._user_of(context)
        self._check_may_change(context, info)

        def create(table: AccessTable) -> None:
            if not (self._is_replicated and table.has_user(info)):
                table.add_user(info)

        self._change(context, create)

    def update_user(self, context: RequestContext) -> None:
        """Handle AUTH_UPDATE_USER: change a user's secret key, type or status.

        Only a super user may change a super user or make a user a super user.
        """
        info = self._user_of(context)
        self._check_may_change(context, info)

        def update(table: AccessTable) -> None:
            self._check_has_no_policies(context, table, info.username or "")
            table.update_user(info)

        self._change(context, update)

    def delete_user(self, context: RequestContext) -> None:
        """Handle AUTH_DELETE_USER: delete a user and its policies.

        Only a super user may delete a super user.
        """
        header: UserHeader = context.header
        self._check_may_change(context, UserInfo(_given(header.username)))

        def delete(table: AccessTable) -> None:
            self._check_has_no_policies(context, table, header.username)
            table.delete_user(header.username)

        self._change(context, delete)

    def get_user(self, context: RequestContext) -> RemotingCommand:
        """Handle AUTH_GET_USER: return a user without its secret key.

        The response has no body if the user does not exist.
        """
        header: UserHeader = context.header
        user = self._enabled().users.find(_given(header.username))
        return RemotingCommand.response(body=b"" if user is None else user.to_info().encode())

    def list_users(self, context: RequestContext) -> RemotingCommand:
        """Handle AUTH_LIST_USER: return the users whose name contains `filter`, without secret keys."""
        header: ListUsersHeader = context.header
        users = self._enabled().file.table.users
        found = [user.to_info() for name, user in sorted(users.items()) if header.filter in name]
        return RemotingCommand.response(body=encode_json(found) if found else b"")

    def set_acl(self, context: RequestContext) -> None:
        """Handle AUTH_CREATE_ACL and AUTH_UPDATE_ACL: add rules to a user's policies.

        A new rule replaces the rule of the same resource.
        """
        header: AclHeader = context.header
        acl = AclInfo.decode(context.command.body)
        acl.subject = acl.subject or header.subject
        self._check_is_super(context)
        self._change(context, lambda table: table.set_policies(acl))

    def delete_acl(self, context: RequestContext) -> None:
        """Handle AUTH_DELETE_ACL: delete the rule of a resource.

        Without a resource in the request, all policies of the user are deleted.
        """
        header: DeleteAclHeader = context.header
        type_name = policy_type(header.policy_type)
        self._check_is_super(context)
        self._change(context, lambda table: table.delete_policies(header.subject, type_name, header.resource))

    def get_acl(self, context: RequestContext) -> RemotingCommand:
        """Handle AUTH_GET_ACL: return the policies of a user. Without policies the response has no body."""
        header: AclHeader = context.header
        acl = self._enabled().file.table.acl(header.subject.removeprefix(SUBJECT_PREFIX))
        return RemotingCommand.response(body=b"" if acl is None else acl.encode())

    def list_acls(self, context: RequestContext) -> RemotingCommand:
        """Handle AUTH_LIST_ACL: return policies by the filters `subject_filter` and `resource_filter`.

        The subject must contain the first filter, and the resource of a rule the second.
        """
        header: ListAclsHeader = context.header
        table = self._enabled().file.table
        acls = [acl for name in sorted(table.policies) if (acl := table.acl(name)) is not None]
        found = [
            shown
            for acl in acls
            if header.subject_filter in (acl.subject or "")
            and (shown := _filtered(acl, header.resource_filter)).policies
        ]
        return RemotingCommand.response(body=encode_json(found) if found else b"")

    def check_user(self, context: RequestContext) -> RemotingCommand:
        """Handle CHECK_USER: check the signature of a gateway's client, whose permissions were checked."""
        header: CheckUserHeader = context.header
        name = _signer_of(context)
        user = self._enabled().users.find(name)
        if ON_BEHALF_OF not in context.command.ext or user is None:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the request has no {ON_BEHALF_OF}: only gateways send it, signed as the inner user",
            )
        if header.text or header.signature:
            try:
                is_signed = user.signer.has_signed_text(header.text, bytes.fromhex(header.signature))
            except ValueError:
                is_signed = False
            if not is_signed:
                raise Refused(ResponseCode.NO_PERMISSION, UNKNOWN_USER.format(user=repr(name[:100])))
        return RemotingCommand.response()

    def get_all(self, context: RequestContext) -> None:
        """Handle GET_ALL_USERS: return users with their secret keys, and policies, to the inner user."""
        table = self._enabled().file.table  # never changes: a change replaces it
        if context.sign is None:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                "the response has the secret keys of all users, and a request that names no receiver may be "
                "passed on: update the slave",
            )

        async def work() -> RemotingCommand:
            return RemotingCommand.response(
                body=await asyncio.to_thread(lambda: orjson.dumps(table.to_json()))
            )

        context.spawn(work())

    def _user_of(self, context: RequestContext) -> UserInfo:
        header: UserHeader = context.header
        info = UserInfo.of_request(context.command.body)
        info.username = _given(header.username)
        return info

    def _check_may_change(self, context: RequestContext, info: UserInfo) -> None:
        """Raise Refused for the inner user, and for a super user unless a super user signed the request."""
        users = self._enabled().users
        name = info.username or ""
        if users.is_inner(name):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"user {name[:100]!r} is the cluster's inner user: change it in inner_credentials_file",
            )
        concerns_super = users.is_super(name) or (info.user_type or "").lower() == "super"
        if concerns_super and not self._is_super(context):
            raise Refused(
                ResponseCode.NO_PERMISSION, "The super user can only be created or changed by a super user"
            )

    def _check_is_super(self, context: RequestContext) -> None:
        if not self._is_super(context):
            raise Refused(ResponseCode.NO_PERMISSION, "The policies can only be changed by a super user")

    def _check_has_no_policies(self, context: RequestContext, table: AccessTable, name: str) -> None:
        """Raise Refused if the user has policies, unless it or a super user signed the request."""
        if name in table.policies and name != _signer_of(context) and not self._is_super(context):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"user {name[:100]!r} has policies: it can only be changed by itself or a super user",
            )

    def _is_super(self, context: RequestContext) -> bool:
        return self._enabled().users.is_super(_signer_of(context))

    def _change(self, context: RequestContext, change: Callable[[AccessTable], None]) -> None:
        file = self._enabled().file

        async def work() -> RemotingCommand:
            await file.change(change)
            return RemotingCommand.response()

        context.spawn(work())

    def _enabled(self) -> AccessControl:
        if self._access is None:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                "access control is disabled on this broker: set authentication_enabled and "
                "inner_credentials_file",
            )
        return self._access


def _checked_targets(context: DecodedRequest) -> Iterable[Target]:
    return decode_targets(context.command.body)


def _signer_of(context: RequestContext) -> str:
    return context.command.ext.get(ACCESS_KEY, "")


def _given(username: str) -> str:
    if not username.strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return username


def _filtered(acl: AclInfo, text: str) -> AclInfo:
    """Return `acl` with the rules whose resource contains `text`; with all rules if its subject does."""
    if not text or text in (acl.subject or ""):
        return acl
    policies = [
        PolicyInfo(each.policy_type, [entry for entry in each.entries if text in (entry.resource or "")])
        for each in acl.policies
    ]
    return AclInfo(acl.subject, [each for each in policies if each.entries])
