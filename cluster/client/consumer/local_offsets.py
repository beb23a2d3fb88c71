"""LocalOffsets: stores the offsets of a broadcasting consumer in a file on the consumer's machine.

The directory and the format are those of RocketMQ's LocalFileOffsetStore. Therefore a Java consumer can
resume at the offsets of a Python consumer with the same client id, and vice versa. `offsets.json.bak` is a
backup of the previous `offsets.json`.

    ~/.rocketmq_offsets/<ip>@<instance name>/<group>/offsets.json
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:17},
     "raymqEpochs":[["T","broker-a",0,"10.0.0.1:10911","198c2f5e1a0-9f3b22c1"]]}

`raymqEpochs`, which RocketMQ ignores, has the replica and the epoch of its log in which the messages before
an offset were read (`ReadEpoch`). So a consumer notices a log that went back while it was stopped.

The instance name is DEFAULT if `instance_name` is empty, as in RocketMQ. The file `lock` in the directory
prevents two running consumers from using the same offsets.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from actors.wire.bodies.body import encode_json, queue_of_key, queue_table
from actors.wire.remoting_errors import Refused
from cluster.client.config import AutoOffset, PushConfig
from cluster.client.errors import ClientError, ConfigInvalid, DataDamaged
from cluster.client.group.broadcasting import ADDED
from cluster.client.group.offset_client import Commit, Committed, OffsetClient
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance, local_address
from store.common.file_lock import try_lock
from store.common.json_file import JsonConfigFile
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue
from store.store_errors import StoreError

_log = get_logger(__name__)

DEFAULT_INSTANCE = "DEFAULT"
EPOCHS = "raymqEpochs"

Epoch = tuple[str, str]
"""The address of a replica, and the id of an epoch of its log."""


def offset_folder(config: PushConfig) -> Path:
    """Return the directory of the offset file of a consumer."""
    client_id = f"{local_address()}@{config.instance_name or DEFAULT_INSTANCE}"
    return Path(config.local_offset_dir).expanduser() / client_id / config.group


class OffsetStore(Protocol):
    """Stores the offsets of a push consumer: OffsetClient at the brokers, LocalOffsets in a local file."""

    async def starting(
        self,
        queue: MessageQueue,
        consume_from: AutoOffset,
        generation: int = 0,
        *,
        retry_refusals: bool = False,
    ) -> int:
        """Return the committed offset of `queue`, or the offset selected by `consume_from` if it has none."""

    async def commit_best_effort(self, offsets: Mapping[MessageQueue, Commit]) -> Committed:
        """Commit `offsets` without retries: the next periodic commit repeats a failed one."""

    def epoch(self, queue: MessageQueue) -> tuple[str, str]:
        """Return the replica that `queue` was read from and the epoch of its log; empty if unknown."""

    def close(self) -> None:
        """Release the lock of the offset file, if the store uses one."""


def make_offset_store(instance: ClientInstance, config: PushConfig) -> OffsetStore:
    """Return LocalOffsets for a broadcasting consumer, OffsetClient for any other consumer.

    Raises ConfigInvalid or DataDamaged as LocalOffsets does.
    """
    brokers = OffsetClient(instance, config.group, config.consume_timestamp_ms)
    if config.is_broadcasting:
        return LocalOffsets(config, brokers, instance.clock.wall_ms())
    return brokers


class LocalOffsets:
    """The offset file of one broadcasting consumer, locked until `close`."""

    def __init__(self, config: PushConfig, brokers: OffsetClient, started_ms: int) -> None:
        """Lock and read the offset file.

        Args:
            config: Settings of the consumer.
            brokers: Used to query the start offsets of queues that have no entry in the file.
            started_ms: Start time of the consumer, in ms since the epoch.

        Raises:
            ConfigInvalid: Another consumer uses the file, or the directory cannot be written.
            DataDamaged: The file and its backup are damaged.
        """
        self._config = config
        self._brokers = brokers
        self._started_ms = started_ms
        folder = offset_folder(config)
        self._file = JsonConfigFile(folder / "offsets.json", folder / "offsets.json.tmp")
        self._lock = _lock_folder(folder)
        try:
            self._offsets, self._epochs = self._file.read(_parse) or ({}, {})
        except StoreError as error:
            os.close(self._lock)
            raise DataDamaged(f"local offsets: {error}") from error
        self._topics = {queue.topic for queue in self._offsets}
        self._saved_ms = self._file.saved_ms
        self._saving = asyncio.Lock()

    async def starting(
        self,
        queue: MessageQueue,
        consume_from: AutoOffset,
        generation: int = 0,
        *,
        retry_refusals: bool = False,
    ) -> int:
        """Return the offset of `queue` in the file, or the offset selected by `consume_from` if it has none.

        If `consume_from` is "latest", a queue that was added to a topic must be read from its first message.
        Therefore "latest" means the time of the last save of the file if the file contains the topic, and the
        start time of the consumer if `generation` is ADDED.

        Retries after retriable errors; with `retry_refusals`, after all errors of the brokers or the disk.
        """
        backoff = Backoff()
        while queue not in self._offsets:
            try:
                offset = await self._first(queue, consume_from, generation)
                # Save the offset before the first message is consumed. Otherwise a consumer that restarts
                # before its first commit would skip the messages sent in between.
                await self._save({queue: offset}, {})
            except (ClientError, OSError) as error:
                if not retry_refusals and not getattr(error, "retriable", False):
                    raise
                _log.warning("starting_offset_failed", queue=str(queue), error=str(error))
                await asyncio.sleep(backoff.next_ms() / 1000)
                await self._brokers.refresh(queue.topic)
        return self._offsets[queue]

    async def _first(self, queue: MessageQueue, consume_from: AutoOffset, generation: int) -> int:
        is_of_known_topic = queue.topic in self._topics
        if consume_from == "latest" and (is_of_known_topic or generation == ADDED):
            since_ms = self._saved_ms if is_of_known_topic else self._started_ms
            return await self._brokers.at_time(queue, since_ms)
        return await self._brokers.initial(queue, consume_from)

    async def commit_best_effort(self, offsets: Mapping[MessageQueue, Commit]) -> Committed:
        """Save `offsets` to the file. If writing fails, log the error and return all brokers as failed."""
        try:
            await self._save(
                {queue: commit.offset for queue, commit in offsets.items()},
                {queue: (commit.address, commit.history) for queue, commit in offsets.items()},
            )
        except OSError as error:
            _log.warning("local_offsets_save_failed", path=str(self._file.path), error=str(error))
            failure = ClientError(f"{self._file.path}: {error}")
            return Committed([], {queue.broker_name: failure for queue in offsets})
        return Committed([], {})

    async def _save(self, offsets: Mapping[MessageQueue, int], epochs: Mapping[MessageQueue, Epoch]) -> None:
        async with self._saving:
            changed, read = {**self._offsets, **offsets}, {**self._epochs, **epochs}
            if (changed, read) == (self._offsets, self._epochs):
                return
            table = queue_table(dict(sorted(changed.items())))
            rows = [[*queue, *epoch] for queue, epoch in sorted(read.items()) if all(epoch)]
            text = encode_json({"offsetTable": table, EPOCHS: rows})
            await asyncio.to_thread(self._file.save_text, text)
            self._offsets, self._epochs = changed, read

    def epoch(self, queue: MessageQueue) -> tuple[str, str]:
        """Return the replica that `queue` was read from and the epoch of its log; empty if unknown."""
        return self._epochs.get(queue, ("", ""))

    def close(self) -> None:
        """Release the lock, so that another consumer can use the file."""
        os.close(self._lock)


def _parse(content: dict[str, Any]) -> tuple[dict[MessageQueue, int], dict[MessageQueue, Epoch]]:
    table = content.get("offsetTable")
    if not isinstance(table, dict):
        raise ValueError("the key offsetTable is missing or is not an object")  # noqa: TRY004 -- the file is damaged, not the call
    offsets = {}
    for key, offset in table.items():
        try:
            queue = queue_of_key(key)
        except Refused as error:
            raise ValueError(f"the key {key!r} of offsetTable is not a message queue") from error
        if type(offset) is not int or offset < 0:
            raise ValueError(f"the offset of {queue} is {offset!r}: it must be a non-negative integer")
        offsets[queue] = offset
    try:
        epochs = {
            MessageQueue(str(topic), str(broker_name), int(queue_id)): (str(address), str(epoch_id))
            for topic, broker_name, queue_id, address, epoch_id in content.get(EPOCHS, ())
        }
    except (TypeError, ValueError):
        epochs = {}  # the offsets are valid without them
    return offsets, epochs


def _lock_folder(folder: Path) -> int:
    """Lock the directory for this process, and return the descriptor that holds the lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigInvalid(
            f"{folder} cannot be written: {error.strerror}; set local_offset_dir to a writable directory"
        ) from error
    if not try_lock(descriptor):
        os.close(descriptor)
        raise ConfigInvalid(
            f"another broadcasting consumer uses the offsets in {folder}: set a different instance_name for "
            "each consumer of a group on one machine"
        )
    return descriptor
