"""Rights: who may see what the console has collected as its own user: samples, histories and changes.

A resource that passes a request on as the user needs no right here, because each broker decides. Collected
figures have no broker behind them: one that responds now must permit them. No answer is no permission.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.client import Admin
from cluster.client.errors import ClientError, PermissionDenied
from cluster.console.api_errors import ApiError
from store.common.logs import get_logger

_log = get_logger(__name__)


class Rights:
    """Asks brokers what a user may see. The first one that responds decides.

    If one broker has proved that it knows the key of the console's own user, no others decide.
    """

    def __init__(self, own: Admin) -> None:
        """Create it; `own` is the client of the console's own user, which may have no key."""
        self._own = own
        self._has_proof = False
        self._responding = ""
        """The broker that has responded last; it is asked first, because others may not respond at all."""

    def check_sees_cluster(self, admin: Admin) -> None:
        """Raise unless the user may see the figures of a broker, and all topics and groups.

        Raises PermissionDenied; ApiError (503) if no broker responds, ClientError if no nameserver does.
        """
        for broker in self._asked(admin):
            try:
                admin.check_sees_everything(broker)
            except PermissionDenied:
                self._responding = broker
                raise
            except ClientError:  # it does not respond: the next one may
                continue
            self._responding = broker
            return
        raise no_broker()

    def _asked(self, admin: Admin) -> Iterator[str]:
        """Yield the brokers of the cluster; all if none has ever proved itself, as without access control."""
        brokers = sorted(admin.brokers(), key=lambda name: name != self._responding)
        for broker in brokers:
            try:
                self._own.check_proof(broker)
            except ClientError as error:
                _log.debug("console_broker_not_proven", broker=broker, error=str(error))
                continue
            self._has_proof = True
            yield broker
        if not self._has_proof:
            yield from brokers

    def is_refused(self, admin: Admin) -> bool | None:
        """Return True if the user may not see everything, False if it may; None if no broker responds.

        Raises ClientError if no nameserver responds.
        """
        try:
            self.check_sees_cluster(admin)
        except PermissionDenied:
            return True
        except ApiError:
            return None
        return False

    def sees_cluster(self, admin: Admin) -> bool:
        """Return True if a broker responds and shows everything to the user. Raises ClientError."""
        return self.is_refused(admin) is False


def no_broker() -> ApiError:
    """Return the error of a request whose rights no broker has confirmed."""
    what = "no broker responds that could say what you may see"
    return ApiError(503, what, "Start a broker, then try again.")
