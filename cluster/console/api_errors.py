"""Errors of the API: a status, a sentence with value and cause, and a remedy."""

from __future__ import annotations

from actors.wire.remoting_errors import without_paths
from cluster.client import errors
from cluster.client.errors import ClientError
from store.store_errors import MessageInvalid


class ApiError(Exception):
    """A request that is refused. `status` is the HTTP status; the message names the value and the cause."""

    def __init__(self, status: int, message: str, remedy: str = "") -> None:
        super().__init__(status, message, remedy)
        self.status = status
        self.message = message
        self.remedy = remedy

    def to_json(self) -> dict[str, str]:
        """Return the body of the response."""
        return {"error": self.message, "remedy": self.remedy}


_KINDS: tuple[tuple[type[ClientError], int, str], ...] = (
    (errors.ConfigInvalid, 400, "Correct the value and try again."),
    (errors.TopicNotFound, 404, "Choose an existing topic: the page Topics lists them all."),
    (errors.GroupNotFound, 404, "Choose an existing group: the page Groups lists them all."),
    (errors.PermissionDenied, 403, "Read the reason. Rights are given with `raymq acl set`."),
    (errors.NotSupported, 501, "This needs brokers of RayMQ."),
    (errors.InvalidRequest, 400, "Correct the value and try again."),
    (errors.BrokerBusy, 503, "Try again in a few seconds."),
    (errors.BrokerRefused, 409, "Read the reason, which is the broker's, and try again."),
    (
        errors.NameserverUnreachable,
        502,
        "Start a nameserver, or give the console another with --nameserver.",
    ),
    (errors.BrokerUnreachable, 502, "Start the broker, or check the network between console and broker."),
    (errors.DeadlineExceeded, 504, "Try again; if it happens often, look at the load of the brokers."),
    (errors.ClientClosed, 503, "The console is stopping: start it again."),
)


def api_error(error: ClientError | MessageInvalid) -> ApiError:
    """Return the error of the API that corresponds to an error of the client."""
    if isinstance(error, MessageInvalid):
        return ApiError(400, str(error), "Correct the value and try again.")
    for kind, status, remedy in _KINDS:
        if isinstance(error, kind):
            return ApiError(status, without_paths(str(error)), remedy)
    return ApiError(502, without_paths(str(error)), "Try again.")
