"""The access control steps of the request chain: Authentication, then Authorization.

A broker has them if `authentication_enabled` and `authorization_enabled` are true, a nameserver if it has an
`access_file`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final

from actors.access.access_file import AccessFile
from actors.access.policies import Address, decide
from actors.access.signatures import SignatureCheck
from actors.access.users import User
from actors.bounds import Use
from actors.transport.request import RequestContext, TopicCheck
from actors.wire.codes import ResponseCode, request_name
from actors.wire.remoting_errors import Refused
from actors.wire.signing import ACCESS_KEY, ON_BEHALF_OF, ON_BEHALF_OF_SOURCE, Signer
from actors.wire.targets import EVERY, Action, Resource, Target
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, lite_topic_of

_OF_GROUP: Final = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
_PORT_BYTES: Final = 4
UNKNOWN_USER: Final = "user {user} is unknown or the signature is wrong"


class Users:
    """The users that a process accepts: the inner user of the cluster, and the users in its AccessFile.

    `inner` checks the signatures of the inner user.
    """

    def __init__(self, file: AccessFile, inner: Signer) -> None:
        self._file = file
        self.inner = inner

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return self._file.bounds()

    def is_inner(self, name: str) -> bool:
        """Return True if `name` is the cluster's inner user."""
        return name == self.inner.access_key

    def find(self, name: str) -> User | None:
        """Return a user of the AccessFile, or None if it has no user of this name."""
        return self._file.table.users.get(name)

    def is_super(self, name: str) -> bool:
        """Return True if the user is a super user, as the inner user always is: it may do everything."""
        user = self.find(name)
        return self.is_inner(name) or (user is not None and user.is_super)

    def ordinary_user(self, context: RequestContext) -> str | None:
        """Return the user whose signature Authentication has checked, or None if it may do everything."""
        name = context.command.ext.get(ACCESS_KEY, "")
        return None if self.is_super(name) else name


class Authentication:
    """Step that rejects requests without a valid signature of an enabled user.

    A request that the inner user sends on behalf of another user is a request of that user from here on.
    """

    def __init__(self, users: Users, check: SignatureCheck) -> None:
        self._users = users
        self._check = check

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (*self._check.bounds(), *self._users.bounds())

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused (NO_PERMISSION) unless a known and enabled user has signed the request."""
        name = context.command.ext.get(ACCESS_KEY)
        if not name:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                "the request is not signed and this server requires authentication: set access_key and "
                "secret_key in the client",
            )
        users = self._users
        user, is_inner = users.find(name), users.is_inner(name)
        signer = users.inner if is_inner else None if user is None else user.signer
        self._check(context, name, signer, is_inner, UNKNOWN_USER)
        if user is not None and not user.is_enabled and not is_inner:
            raise Refused(ResponseCode.NO_PERMISSION, f"user {name[:100]!r} is disabled")
        if context.row.is_inner and not (is_inner and ON_BEHALF_OF not in context.command.ext):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"only the processes of the cluster may send {request_name(context.row.code)}, signed as its "
                "inner user",
            )
        if ON_BEHALF_OF in context.command.ext:
            self._act_for_user(context.command.ext, is_inner=is_inner)

    def _act_for_user(self, ext: dict[str, str], *, is_inner: bool) -> None:
        """Replace the inner user by the user that it names. Raises Refused unless both are right."""
        if not is_inner:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"only the cluster's inner user may set {ON_BEHALF_OF}: sign as the user itself",
            )
        name = ext[ON_BEHALF_OF]
        user = self._users.find(name)
        if user is None or not user.is_enabled or self._users.is_inner(name):
            raise Refused(ResponseCode.NO_PERMISSION, UNKNOWN_USER.format(user=repr(name[:100])))
        try:
            ipaddress.ip_address(ext.get(ON_BEHALF_OF_SOURCE, ""))
        except ValueError:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"{ON_BEHALF_OF_SOURCE} is not an IP address"
            ) from None
        ext[ACCESS_KEY] = name


class Authorization:
    """Step that rejects requests for which the user has no permission; a super user has all permissions."""

    def __init__(
        self,
        users: Users,
        file: AccessFile,
        cluster_name: str,
        needs_name: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """Create the step.

        Args:
            users: finds the super users.
            file: has the policies.
            cluster_name: the name of the cluster in policies.
            needs_name: returns True for a topic that only rules with its name permit to read.
        """
        self._users = users
        self._file = file
        self._cluster_name = cluster_name
        self._needs_name = needs_name

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused (NO_PERMISSION) unless the user's policies allow all targets of the request."""
        name = context.command.ext.get(ACCESS_KEY, "")
        if self._users.is_super(name):
            return
        for target in context.row.targets(context):
            self._check(name, target, context)

    def topic_check(self, action: Action) -> TopicCheck:
        """Return a function that raises Refused unless the user may perform `action` on a topic.

        For requests that name a record by its CommitLog offset: their handler knows the topic only after it
        has read the record.
        """

        def check(context: RequestContext, topic: str) -> None:
            name = context.command.ext.get(ACCESS_KEY, "")
            if not self._users.is_super(name):
                self._check(name, Target(Resource.TOPIC, topic, action), context)

        return check

    def permits(self, context: RequestContext, target: Target) -> bool:
        """Return True if the user that has signed a request has permission for a target."""
        name = context.command.ext.get(ACCESS_KEY, "")
        if self._users.is_super(name):
            return True
        try:
            self._check(name, target, context)
        except Refused:
            return False
        return True

    def _check(self, name: str, target: Target, context: RequestContext) -> None:
        protected = self._protected(target)
        if protected is None:
            return
        source = source_of(context)
        policies = self._file.table.policies.get(name, {})
        by_name = (
            protected.resource is Resource.TOPIC
            and protected.action is not Action.PUB
            and self._needs_name(protected.name)
        )
        decision = decide(policies, protected, source, by_name=by_name)
        if not decision:
            reason = "no matched policies" if decision is None else "the decision is deny"
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"User:{name[:100]} has no permission to {protected.action} on "
                f"{protected.resource} {protected.name[:200]!r} from {source}, {reason}.",
            )

    def _protected(self, target: Target) -> Target | None:
        """Return the target as it is named in policies, or None if it needs no permission."""
        resource, name, action = target
        if resource is Resource.GROUP and action is Action.PUB:
            return None  # as in RocketMQ, producer groups need no permission
        if not name:
            return Target(resource, EVERY, action)
        if resource is Resource.CLUSTER and name == EVERY:
            return Target(resource, self._cluster_name, action)
        if resource is not Resource.CLUSTER and name.startswith(_OF_GROUP):
            # As in RocketMQ a retry topic belongs to its group: Sub permits to send to it and to read it. Its
            # dead letters are in the same messages, and its members produce them.
            action = Action.SUB if action is Action.PUB else action
            return Target(Resource.GROUP, name[name.index("%", 1) + 1 :], action)
        lite = lite_topic_of(name)
        return target if lite is None else target._replace(name=lite[0])


def source_of(context: RequestContext) -> Address:
    """Return the IP address of the client, which may be behind a gateway.

    An IPv4-mapped IPv6 address is returned as IPv4.
    """
    ext = context.command.ext
    if ON_BEHALF_OF in ext:  # checked by Authentication
        address = ipaddress.ip_address(ext[ON_BEHALF_OF_SOURCE])
    else:
        address = ipaddress.ip_address(context.connection.peer_bytes[:-_PORT_BYTES])
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
