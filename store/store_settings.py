"""What can be set about a store.

RocketMQ's own keys are accepted, so that a broker.conf can be carried over.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from store.consumequeue.unit import UNIT_BYTES
from store.live_settings import LIVE
from store.settings_model import SettingsModel

_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FLUSH = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}


class StoreSettings(SettingsModel):
    """One store's settings, with RocketMQ's meanings and (but for `flush`) defaults."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "lock_wait_ms": "lock_timeout_ms",
        "clean_by_force": "force_clean_enabled",
        "delete_pause_ms": "delete_files_interval_ms",
    }

    commit_log_file_bytes: int = Field(1 << 30, ge=4096, alias="mappedFileSizeCommitLog")
    """Size of a CommitLog file; a store keeps the size that it was made with."""
    consume_queue_file_bytes: int = Field(
        300_000 * UNIT_BYTES, ge=UNIT_BYTES, alias="mappedFileSizeConsumeQueue"
    )
    """Size of a ConsumeQueue file, a multiple of 20; a store keeps it."""
    index_slots: int = Field(5_000_000, ge=1, le=500_000_000, alias="maxHashSlotNum")
    """Hash slots of an index file; a store keeps them."""
    index_entries: int = Field(20_000_000, ge=2, le=100_000_000, alias="maxIndexNum")
    """Entries of an index file; a store keeps them."""
    index: bool = Field(default=True, alias="messageIndexEnable")
    """Whether messages can be found by key."""
    flush: Literal["sync", "async"] = Field("sync", alias="flushDiskType")
    """`sync` acknowledges what is on the disk, `async` what is in the machine's page cache."""
    flush_interval_ms: int = Field(500, ge=1, alias="flushIntervalCommitLog")
    """Under async flush, how often the log is made durable."""
    checkpoint_interval_ms: Annotated[int, LIVE] = Field(5_000, ge=1)
    """How often it is noted how far queues and index are durable: what a recovery need not look at. Less
    often where that takes long: then ten times as long is none, up to 15 s.
    """
    max_message_bytes: Annotated[int, LIVE] = Field(4 << 20, ge=1, alias="maxMessageSize")
    """The largest body that is taken."""
    append_property_crc: bool = Field(default=False, alias="enabledAppendPropCRC")
    """Whether records end with a CRC of all of them, topic and properties too."""
    check_crc_on_recover: bool = Field(default=True, alias="checkCRCOnRecover")
    """Whether recovery checks the CRC of bodies."""
    message_delay_level: str = Field(_LEVELS, alias="messageDelayLevel")
    """The delays of levels 1, 2, …"""
    preallocate: Annotated[bool, LIVE] = True
    """Whether files of log and index are made ahead of need."""
    warm_mapped_file: Annotated[bool, LIVE] = Field(default=False, alias="warmMapedFileEnable")
    """Whether the log file that is written and those made ahead are locked in memory."""
    commit_log_paths: tuple[Path, ...] = Field((Path("commitlog"),), min_length=1, alias="storePathCommitLog")
    """Directories of the log, below the store's root or absolute; new files go round them."""
    read_only_commit_log_paths: tuple[Path, ...] = Field((), alias="readOnlyCommitLogStorePaths")
    """Those of them that get no new files."""
    max_open_files: int = Field(512, ge=4)
    """How many files of each kind are open at most."""
    lock_timeout_ms: int = Field(10_000, ge=0)
    """How long opening waits for another process to let go of the store."""
    dispatch_slice_bytes: int = Field(4 << 20, ge=4096)
    """How much of the log is dispatched in one turn."""
    file_reserved_time_h: Annotated[int, LIVE] = Field(72, ge=0, alias="fileReservedTime")
    """Log files go when they were last changed so long ago, read or not."""
    delete_when_h: Annotated[str, LIVE] = Field("04", alias="deleteWhen")
    """The local hours at which they go, as in 04;16."""
    disk_max_used_percent: Annotated[int, LIVE] = Field(75, ge=10, le=95, alias="diskMaxUsedSpaceRatio")
    """A disk fuller than this deletes expired files at any hour."""
    disk_force_clean_percent: Annotated[int, LIVE] = Field(85, ge=30, le=99)
    """A disk fuller than this deletes the oldest files at any age."""
    disk_refuse_writes_percent: Annotated[int, LIVE] = Field(90, ge=35, le=99)
    """A disk fuller than this takes no messages, until use is down to disk_force_clean_percent."""
    clean_interval_ms: Annotated[int, LIVE] = Field(10_000, ge=1, alias="cleanResourceInterval")
    """How often disks and files are looked at."""
    force_clean_enabled: Annotated[bool, LIVE] = Field(default=True, alias="cleanFileForciblyEnable")
    """Whether a disk that is too full deletes files before their time."""
    delete_file_batch_max: Annotated[int, LIVE] = Field(10, ge=1, alias="deleteFileBatchMax")
    """Log files deleted in one round."""
    delete_files_interval_ms: Annotated[int, LIVE] = Field(100, ge=0, alias="deleteCommitLogFilesInterval")
    """Pause between two of them."""
    file_release_timeout_ms: Annotated[int, LIVE] = Field(
        120_000, ge=0, alias="destroyMapedFileIntervalForcibly"
    )
    """How long a deleted file that is still being read keeps others from being deleted by force."""

    @field_validator("flush", mode="before")
    @classmethod
    def _flush_as_rocketmq_says_it(cls, value: Any) -> Any:
        return _FLUSH.get(value, value) if isinstance(value, str) else value

    @field_validator("commit_log_paths", "read_only_commit_log_paths", mode="before")
    @classmethod
    def _paths_as_rocketmq_says_them(cls, value: Any) -> Any:
        return (
            [path.strip() for path in value.split(",") if path.strip()] if isinstance(value, str) else value
        )

    @field_validator("consume_queue_file_bytes")
    @classmethod
    def _whole_units(cls, value: int) -> int:
        return -(-value // UNIT_BYTES) * UNIT_BYTES

    @field_validator("delete_when_h")
    @classmethod
    def _hours(cls, value: str) -> str:
        hours = [part.strip() for part in value.split(";") if part.strip()]
        if not hours or any(not hour.isdecimal() or int(hour) > 23 for hour in hours):
            raise ValueError(f"{value!r} is no list of hours: give one from 0 to 23, or more as in 04;16")
        return ";".join(hours)

    def delay_levels_ms(self) -> list[int]:
        """The delay of each level, by its number; level 0 is no level. Raises ValueError."""
        delays = [0]
        for level in self.message_delay_level.split():
            if level[-1] not in _UNIT_MS or not level[:-1].isdigit():
                raise ValueError(f"delay level {level!r} is not a number and one of s, m, h, d")
            delays.append(int(level[:-1]) * _UNIT_MS[level[-1]])
        return delays
