"""Errors of the remoting layer: refused requests, invalid frames and missing responses; and their texts."""

import re
from typing import Final

from store.common.logs import get_logger

_log = get_logger(__name__)

_PATH: Final = re.compile(r"(?<![\w/:.…])(?:/[^\s/:;,'\"()\[\]{}<>]+)+/?")
"""An absolute path, but no part of a URL, of a relative path or of a fraction."""


class Refused(Exception):
    """A request is refused, with RocketMQ's response code and a remark that names the remedy.

    With `delay_ms` the response is sent after this time; the connection handles no other request until then.
    """

    def __init__(self, code: int, remark: str, delay_ms: int = 0) -> None:
        super().__init__(code, remark)
        self.code = int(code)
        self.remark = remark
        self.delay_ms = delay_ms

    def __str__(self) -> str:
        return f"{self.remark} (response code {self.code})"


class ProtocolError(Exception):
    """The received bytes are not a valid frame; the connection is closed.

    `looks_like` names the protocol that the bytes seem to belong to.
    """

    def __init__(self, reason: str, looks_like: str = "a damaged or hostile frame") -> None:
        super().__init__(reason, looks_like)
        self.reason = reason
        self.looks_like = looks_like

    def __str__(self) -> str:
        return f"{self.reason}; it looks like {self.looks_like}"


class RemotingError(Exception):
    """No response was received; the peer may or may not have processed the request."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class ConnectFailed(RemotingError):
    """The peer could not be reached; the request was not sent."""


class NotProven(RemotingError):
    """The peer did not prove that it is a process of the cluster; its response must not be used."""


class TimedOut(RemotingError):
    """No response arrived before the deadline; the request may have been processed."""


class Closed(RemotingError):
    """The connection was closed before the response arrived; the request may have been processed."""


def without_paths(text: str) -> str:
    """Return a text for a peer, with `…/NAME` in place of each path of this machine.

    The log has the whole text, if it has a path.
    """
    if "/" not in text:
        return text
    found = _PATH.sub(_shortened, text)
    if found != text:
        _log.info("path_hidden", text=text)
    return found


def _shortened(match: re.Match[str]) -> str:
    folder, _, name = match[0].rstrip("/").rpartition("/")
    return f"…/{name}" if folder else "…"
