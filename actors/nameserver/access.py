"""Access control of one nameserver, built from its settings.

Every client may read routes and the kv config. The rest needs a signature of the inner user, or of a user in
the `access_file` whose policies allow it: `Update` on the cluster for write permissions and the kv config,
`Get` on it for the settings, which name files, `Delete` on a topic to delete it. Only the inner user
registers and unregisters brokers, unless `users_register_brokers` is true: what a nameserver lists is a
process of the cluster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from actors.access.access_file import AccessFile
from actors.access.authorization import Authentication, Authorization, Users
from actors.bounds import Use, uses_of
from actors.host.cluster_access import InnerUserOnly, Proving, inner_signer, signature_check
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.transport.chain import Step
from actors.transport.request import RequestContext
from actors.wire.codes import RequestCode
from store.common.clock import Clock
from store.store_errors import StoreError

PUBLIC: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
    }
)
"""Requests that need no right; `docs/security.md` lists what they reveal."""


class UnlessPublic:
    """Step of the request chain that applies other steps to all requests that are not PUBLIC."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return uses_of(self._steps)

    def __call__(self, context: RequestContext) -> None:
        """Apply the steps unless the request is public. Raises Refused if a step does."""
        if context.row.code not in PUBLIC:
            for step in self._steps:
                step(context)


@dataclass(frozen=True, slots=True)
class NameserverAccess:
    """Access control of one nameserver: its chain steps, empty if disabled, and the file of its users."""

    steps: tuple[Step, ...]
    file: AccessFile | None


def build_nameserver_access(settings: NameserverSettings, clock: Clock) -> NameserverAccess:
    """Build the access control of a nameserver and load its users.

    Raises StoreError if the inner user's credentials or the file of users are invalid.
    """
    inner, path = inner_signer(settings), settings.access_file
    if path is not None and not path.is_absolute():
        raise StoreError(f"access_file {path} is a relative path: use an absolute one")
    if settings.users_register_brokers and (path is None or not settings.authentication_enabled):
        raise StoreError(
            "users_register_brokers needs authentication_enabled and access_file, whose users may then "
            "register brokers: set both, or omit users_register_brokers"
        )
    if inner is None:
        return NameserverAccess((), None)
    check = signature_check(settings, clock)
    proving = Proving(inner, check)
    if not settings.authentication_enabled:
        return NameserverAccess((proving,), None)
    if path is None:
        return NameserverAccess((proving, UnlessPublic((InnerUserOnly(inner, check),))), None)
    file = AccessFile(path)
    file.load()
    users = Users(file, inner)
    steps = (Authentication(users, check), Authorization(users, file, settings.cluster_name))
    return NameserverAccess((proving, UnlessPublic(steps)), file)
