"""What can go wrong between two peers: a refusal by the other side, bytes that are no frame, or no answer
at all.
"""


class Refused(Exception):
    """The request cannot be granted now; carries RocketMQ's response code and a remark that says what to
    do.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = int(code)
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.remark} (response code {self.code})"


class ProtocolError(Exception):
    """Bytes that are no frame of this protocol. `looks_like` says what they seem to be; the connection
    ends.
    """

    def __init__(self, reason: str, looks_like: str = "a damaged or hostile frame") -> None:
        super().__init__(reason, looks_like)
        self.reason = reason
        self.looks_like = looks_like

    def __str__(self) -> str:
        return f"{self.reason}; it looks like {self.looks_like}"


class RemotingError(Exception):
    """No answer came: the peer may or may not have done what it was asked."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class ConnectFailed(RemotingError):
    """The peer could not be reached; the request was not sent."""


class TimedOut(RemotingError):
    """The answer did not come within the time given; the request may have been carried out."""


class Closed(RemotingError):
    """The connection ended before the answer; the request may have been carried out."""
