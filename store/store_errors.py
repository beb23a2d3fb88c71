"""Errors of the store: damaged data on disk (StoreError) and invalid messages (MessageInvalid)."""

from pathlib import Path


class StoreError(Exception):
    """A store is damaged or cannot be used.

    The text contains the file and the byte position, if they are known.
    """

    def __init__(self, reason: str, path: Path | str | None = None, position: int | None = None) -> None:
        # Pass all arguments: pickling restores an exception from them.
        super().__init__(reason, path, position)
        self.reason = reason
        self.path = path
        self.position = position

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}: "
        where = "" if self.position is None else f" (at byte {self.position})"
        return f"{place}{self.reason}{where}"


class StoreLocked(StoreError):
    """Another process holds the lock of the store; opening it succeeds after that process has stopped."""


class StoreFormatUnsupported(StoreError):
    """The store was written in a format that this version of RayMQ cannot read."""


class RecordTooLarge(StoreError):
    """The record is larger than a log file of this store, so a retry fails as well."""


class SendsRefused(StoreError):
    """New messages are refused, such as while too few replicas are in sync; the store itself works."""


class RecordDamaged(StoreError):
    """There is no complete, valid record at the position given by the caller."""


class MessageInvalid(Exception):
    """A message, name or batch violates a limit of RocketMQ.

    `remark`, the text of the error response, contains the value, the limit and the remedy.
    """

    def __init__(self, remark: str) -> None:
        super().__init__(remark)
        self.remark = remark
