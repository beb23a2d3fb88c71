"""ArchiveDirectory: the files of an exported topic.

    <directory>/_export.json                                  the plan: topic and splits
    <directory>/_receipts/<split>.json                        the files of a split that is exported
    <directory>/date=2026-11-24/queue=broker-a-0/0-999.parquet
    <directory>/_imports/<topic>/…                            the progress of an import into a topic

A split is a range of offsets of one queue. Its messages are in one file for each date (UTC) on which they
were stored. A file is renamed into place when it is complete, and the receipt is written after all files of
the split. Readers of Parquet, such as Spark, skip names that begin with an underscore, and read `date` and
`queue` as columns.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from jobs.job_errors import ArchiveInvalid

PLAN = "_export.json"
RECEIPTS = "_receipts"
IMPORTS = "_imports"
VERSION = 1
MESSAGES_PER_FILE = 500_000

T = TypeVar("T")


class ArchivedSplit(NamedTuple):
    """The offsets [begin, end) of one queue of the exported topic."""

    broker_name: str
    queue_id: int
    begin: int
    end: int

    @property
    def queue(self) -> str:
        """Name of the queue's folders."""
        return f"{self.broker_name}-{self.queue_id}"

    @property
    def name(self) -> str:
        """Name of the split, unique in an archive."""
        return f"{self.queue}-{self.begin}"

    def path(self, date: str) -> str:
        """Return the path of the file with the messages of `date`, relative to the archive."""
        return f"date={date}/queue={self.queue}/{self.begin}-{self.end - 1}.parquet"


class ArchivePlan(msgspec.Struct, frozen=True):
    """What an archive contains: the splits of `topic`. `committed` and `broker` are options of the export."""

    topic: str
    committed: bool
    splits: list[ArchivedSplit]
    broker: str | None = None
    version: int = VERSION

    @property
    def message_count(self) -> int:
        """Number of offsets in all splits; an export of committed messages may have fewer rows."""
        return sum(each.end - each.begin for each in self.splits)


class ArchivedFile(msgspec.Struct, frozen=True):
    """One Parquet file of a split; `path` is relative to the archive."""

    path: str
    rows: int
    sha256: str


class SplitReceipt(msgspec.Struct, frozen=True):
    """The complete files of a split, in order of their dates."""

    files: list[ArchivedFile]

    @property
    def rows(self) -> int:
        """Number of messages in the files."""
        return sum(each.rows for each in self.files)


class ArchiveDirectory:
    """The files of one archive."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def plan(self) -> ArchivePlan | None:
        """Return the plan, or None if the directory has none. Raises ArchiveInvalid if it is damaged."""
        plan = self.load(PLAN, ArchivePlan)
        if plan is not None and plan.version != VERSION:
            raise ArchiveInvalid(
                f"{self.root / PLAN} has version {plan.version}, but this release reads version {VERSION}: "
                "use the release that wrote the archive"
            )
        return plan

    def receipt(self, split: ArchivedSplit) -> SplitReceipt | None:
        """Return the receipt of a split, or None if it is not exported. Raises ArchiveInvalid."""
        return self.load(f"{RECEIPTS}/{split.name}.json", SplitReceipt)

    def save_receipt(self, split: ArchivedSplit, receipt: SplitReceipt) -> None:
        """Mark a split as exported."""
        self.save(f"{RECEIPTS}/{split.name}.json", receipt)

    def load(self, name: str, kind: type[T]) -> T | None:
        """Return the JSON object in file `name` as a `kind`; None if there is no file.

        Raises ArchiveInvalid if the file has other content.
        """
        path = self.root / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ArchiveInvalid(f"{path} is damaged: {error}. Delete it to repeat that step") from error

    def save(self, name: str, value: object) -> None:
        """Replace file `name` by `value` as JSON, durably and at once."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"_{path.name}.tmp")
        with unfinished.open("wb") as file:
            file.write(msgspec.json.encode(value))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)

    def check(self, file: ArchivedFile) -> None:
        """Raise ArchiveInvalid if a file is missing or has another checksum than its receipt."""
        path = self.root / file.path
        try:
            found = sha256_of(path)
        except FileNotFoundError as error:
            raise ArchiveInvalid(
                f"{path} is missing: restore it, or delete {self.root / RECEIPTS} and export again"
            ) from error
        if found != file.sha256:
            raise ArchiveInvalid(
                f"{path} has SHA-256 {found}, but {file.sha256} was exported: restore the file, or delete "
                f"{self.root / RECEIPTS} and export again"
            )

    def entries(self) -> Iterator[Path]:
        """Yield the entries of the directory; nothing if it does not exist."""
        if self.root.exists():
            yield from self.root.iterdir()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
