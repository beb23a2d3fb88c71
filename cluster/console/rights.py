"""Rights: who may see what the console has collected as its own user: samples, histories and changes.

A resource that passes a request on as the user needs no right here, because each broker decides. Collected
figures have no broker behind them: one that responds now must permit them. No answer is no permission.
"""

from __future__ import annotations

from cluster.client import Admin
from cluster.client.errors import ClientError, PermissionDenied
from cluster.console.api_errors import ApiError


class Rights:
    """Asks brokers what a user may see. The first one that responds decides."""

    def __init__(self) -> None:
        self._responding = ""
        """The broker that has responded last; it is asked first, because others may not respond at all."""

    def check_sees_cluster(self, admin: Admin) -> None:
        """Raise unless the user may see the figures of a broker, and all topics and groups.

        Raises PermissionDenied; ApiError (503) if no broker responds, ClientError if no nameserver does.
        """
        for broker in sorted(admin.brokers(), key=lambda name: name != self._responding):
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
