"""The settings of a store.

RocketMQ's own keys are accepted too, so that a broker.conf can be used unchanged.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from store.common.live_settings import LIVE
from store.common.settings_model import SettingsModel
from store.consumequeue.unit import UNIT_BYTES

_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FLUSH = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}


class StoreSettings(SettingsModel):
    """Settings of one store. Meanings and defaults are RocketMQ's, except for the default of `flush`."""

    commit_log_file_bytes: int = Field(1 << 30, ge=4096, alias="mappedFileSizeCommitLog")
    """Size of a CommitLog file in bytes; cannot be changed once the store exists."""
    consume_queue_file_bytes: int = Field(
        300_000 * UNIT_BYTES, ge=UNIT_BYTES, alias="mappedFileSizeConsumeQueue"
    )
    """Size of a ConsumeQueue file in bytes, rounded up to a multiple of 20.

    Cannot be changed once the store exists.
    """
    index_slots: int = Field(5_000_000, ge=1, le=500_000_000, alias="maxHashSlotNum")
    """Number of hash slots of an index file; cannot be changed once the store exists."""
    index_entries: int = Field(20_000_000, ge=2, le=100_000_000, alias="maxIndexNum")
    """Number of entries of an index file; cannot be changed once the store exists."""
    index: bool = Field(default=True, alias="messageIndexEnable")
    """Whether messages are indexed, so that they can be queried by key."""
    flush: Literal["sync", "async"] = Field("sync", alias="flushDiskType")
    """`sync` acknowledges a message when it is on disk, `async` when it is in the page cache."""
    flush_interval_ms: int = Field(500, ge=1, alias="flushIntervalCommitLog")
    """Interval between two flushes of the log if `flush` is `async`."""
    checkpoint_interval_ms: Annotated[int, LIVE] = Field(5_000, ge=1)
    """Interval between two checkpoints of consume queues and index; recovery starts at the last checkpoint.

    After a slow checkpoint the pause is ten times its duration, up to 15 s.
    """
    max_message_bytes: Annotated[int, LIVE] = Field(4 << 20, ge=1, alias="maxMessageSize")
    """Largest accepted message body."""
    append_property_crc: bool = Field(default=False, alias="enabledAppendPropCRC")
    """Whether a record ends with a CRC of the whole record, including topic and properties."""
    check_crc_on_recover: bool = Field(default=True, alias="checkCRCOnRecover")
    """Whether recovery checks the CRC of message bodies."""
    message_delay_level: str = Field(_LEVELS, alias="messageDelayLevel")
    """The delays of delay levels 1, 2, …, separated by spaces; units are s, m, h and d."""
    preallocate: Annotated[bool, LIVE] = True
    """Whether the next CommitLog and index files are allocated before they are needed."""
    warm_mapped_file: Annotated[bool, LIVE] = Field(default=False, alias="warmMapedFileEnable")
    """Whether the current CommitLog file and the ones allocated in advance are locked in memory (mlock)."""
    commit_log_paths: tuple[Path, ...] = Field((Path("commitlog"),), min_length=1, alias="storePathCommitLog")
    """Directories of the CommitLog, absolute or relative to the store's root.

    New files are created in each of them in turn.
    """
    read_only_commit_log_paths: tuple[Path, ...] = Field((), alias="readOnlyCommitLogStorePaths")
    """Directories of the CommitLog in which no new files are created."""
    max_open_files: int = Field(512, ge=4)
    """Maximum number of open files of each kind (CommitLog files, consume queue files). A process whose hard
    limit of open files is low opens fewer.
    """
    lock_timeout_ms: int = Field(10_000, ge=0)
    """How long opening a store waits for its lock, if another process holds it."""
    dispatch_slice_bytes: int = Field(4 << 20, ge=4096)
    """How many bytes of the log are dispatched to consume queues and index in one turn of the event loop."""
    file_reserved_time_h: Annotated[int, LIVE] = Field(72, ge=0, alias="fileReservedTime")
    """Age, since its last change, at which a CommitLog file expires and is deleted, consumed or not."""
    delete_when_h: Annotated[str, LIVE] = Field("04", alias="deleteWhen")
    """Hours of the day, local time, at which expired files are deleted, such as 04;16."""
    disk_max_used_percent: Annotated[int, LIVE] = Field(75, ge=10, le=95, alias="diskMaxUsedSpaceRatio")
    """Disk usage above which expired files are deleted at any hour."""
    disk_force_clean_percent: Annotated[int, LIVE] = Field(85, ge=30, le=99)
    """Disk usage above which the oldest files are deleted, even if they have not expired."""
    disk_refuse_writes_percent: Annotated[int, LIVE] = Field(90, ge=35, le=99)
    """Disk usage above which messages are refused, until usage falls to disk_force_clean_percent."""
    clean_interval_ms: Annotated[int, LIVE] = Field(10_000, ge=1, alias="cleanResourceInterval")
    """Interval between two checks of disk usage and expired files."""
    force_clean_enabled: Annotated[bool, LIVE] = Field(default=True, alias="cleanFileForciblyEnable")
    """Whether files that have not expired are deleted if the disk is too full."""
    delete_file_batch_max: Annotated[int, LIVE] = Field(10, ge=1, alias="deleteFileBatchMax")
    """Maximum number of CommitLog files deleted in one check."""
    delete_files_interval_ms: Annotated[int, LIVE] = Field(100, ge=0, alias="deleteCommitLogFilesInterval")
    """Pause between the deletion of two files."""
    file_release_timeout_ms: Annotated[int, LIVE] = Field(
        120_000, ge=0, alias="destroyMapedFileIntervalForcibly"
    )
    """How long forced deletion waits for a deleted file that is still being read.

    Until then, the store deletes no other files that have not expired.
    """

    @field_validator("flush", mode="before")
    @classmethod
    def _accept_rocketmq_flush_names(cls, value: Any) -> Any:
        return _FLUSH.get(value, value) if isinstance(value, str) else value

    @field_validator("commit_log_paths", "read_only_commit_log_paths", mode="before")
    @classmethod
    def _split_comma_separated_paths(cls, value: Any) -> Any:
        return (
            [path.strip() for path in value.split(",") if path.strip()] if isinstance(value, str) else value
        )

    @field_validator("consume_queue_file_bytes")
    @classmethod
    def _round_up_to_whole_units(cls, value: int) -> int:
        return -(-value // UNIT_BYTES) * UNIT_BYTES

    @field_validator("delete_when_h")
    @classmethod
    def _check_hours(cls, value: str) -> str:
        hours = [part.strip() for part in value.split(";") if part.strip()]
        if not hours or any(not hour.isdecimal() or int(hour) > 23 for hour in hours):
            raise ValueError(
                f"{value!r} is not a list of hours: give hours from 0 to 23, separated by ;, such as 04;16"
            )
        return ";".join(hours)

    def delay_levels_ms(self) -> list[int]:
        """Return the delay of each level in milliseconds; index 0 is unused.

        Raises ValueError if `message_delay_level` is invalid.
        """
        delays = [0]
        for level in self.message_delay_level.split():
            if level[-1] not in _UNIT_MS or not level[:-1].isdigit():
                raise ValueError(
                    f"delay level {level!r} is invalid: give a number and one of s, m, h, d, such as 30s"
                )
            delays.append(int(level[:-1]) * _UNIT_MS[level[-1]])
        return delays
