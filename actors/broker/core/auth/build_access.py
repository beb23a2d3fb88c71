"""BrokerAccess: access control of one broker, built from its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.access.access_file import FILE_NAME, AccessFile
from actors.access.authorization import Authentication, Authorization, Users
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.auth.access_requests import AccessControl
from actors.host.cluster_access import Proving, inner_signer, signature_check
from actors.transport.chain import Step
from actors.transport.request import Permits, RequestContext, TopicCheck, UserOf
from actors.wire.signing import ACCESS_KEY, Signer
from actors.wire.targets import Action, Target
from store.common.clock import Clock


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """Access control of one broker.

    If authentication is disabled, `control` is None and `steps` refuse nothing. Without authorization,
    `may_read` and `may_send` permit everything.
    """

    signer: Signer | None
    """Signs the broker's own requests as the cluster's inner user; None if no credentials are set."""
    control: AccessControl | None
    steps: tuple[Step, ...]
    """Steps of the request chain: Authentication, then Authorization."""
    may_read: TopicCheck
    may_send: TopicCheck
    """Raises Refused unless the user may send to a topic. `may_read` does the same for reads."""
    permits: Permits
    user_of: UserOf
    """Returns the user that signed a request; None for a super user, or if authentication is disabled."""

    def sender_of(self, context: RequestContext) -> str | None:
        """Return the user on whose behalf a request is forwarded, None for the inner user and without keys.

        It is empty, which a broker with users refuses, if this one signs requests but checks none.
        """
        if self.signer is None:
            return None
        if self.control is None:
            return ""
        user = context.command.ext[ACCESS_KEY]
        return None if self.control.users.is_inner(user) else user


def build_access(
    settings: BrokerSettings, clock: Clock, addresses: Sequence[str], needs_name: Callable[[str], bool]
) -> BrokerAccess:
    """Build the access control of a broker. Loads the file of users if authentication is enabled.

    Other processes reach the broker at `addresses`. `needs_name` returns True for a topic that only rules
    with its name permit to read.

    Raises StoreError if the inner user's credentials or the file of users are invalid.
    """
    signer = inner_signer(settings)
    if signer is None:
        return BrokerAccess(None, None, (), _permit, _permit, _permits, _no_user)
    check = signature_check(settings, clock, addresses)
    if not settings.authentication_enabled:
        return BrokerAccess(signer, None, (Proving(signer, check),), _permit, _permit, _permits, _no_user)
    file = AccessFile(settings.store_root / "config" / FILE_NAME)
    file.load()
    users = Users(file, signer)
    control, authentication = AccessControl(file, users), Authentication(users, check)
    if not settings.authorization_enabled:
        steps = (authentication,)
        return BrokerAccess(signer, control, steps, _permit, _permit, _permits, users.ordinary_user)
    authorization = Authorization(users, file, settings.cluster_name, needs_name)
    may_read, may_send = authorization.topic_check(Action.GET), authorization.topic_check(Action.PUB)
    return BrokerAccess(
        signer,
        control,
        (authentication, authorization),
        may_read,
        may_send,
        authorization.permits,
        users.ordinary_user,
    )


def _permit(context: RequestContext, topic: str) -> None:
    """Permit every request; used if access control is disabled."""


def _permits(context: RequestContext, target: Target) -> bool:
    """Permit every target; used if access control is disabled."""
    return True


def _no_user(context: RequestContext) -> str | None:
    """Return None; used if authentication is disabled and any client may name any user."""
    return None
