"""What can be wrong with data: with our own (StoreError), or with a message given to us (MessageInvalid)."""

from pathlib import Path


class StoreError(Exception):
    """What we hold is damaged or cannot be used; names the file and the byte position where known."""

    def __init__(self, reason: str, path: Path | str | None = None, position: int | None = None) -> None:
        super().__init__(reason, path, position)  # all of them, so that the error survives pickling
        self.reason = reason
        self.path = path
        self.position = position

    def __str__(self) -> str:
        place = "" if self.path is None else f"{self.path}: "
        where = "" if self.position is None else f" (at byte {self.position})"
        return f"{place}{self.reason}{where}"


class StoreLocked(StoreError):
    """Another process holds the lock of the store; opening succeeds once that process ends."""


class StoreFormatUnsupported(StoreError):
    """The store has been written in a format that this version of the program does not know."""


class RecordTooLarge(StoreError):
    """No log file of this store can hold the record: another attempt fails as well."""


class RecordDamaged(StoreError):
    """The bytes at this position are no whole, sound record."""


class MessageInvalid(Exception):
    """A message, name or batch that RocketMQ does not allow; `remark` says what, the limit and the cure."""

    def __init__(self, remark: str) -> None:
        super().__init__(remark)
        self.remark = remark
