"""LocalOffsets: the offsets of a broadcasting consumer, in a file on its own machine.

The directory and the format are those of RocketMQ's LocalFileOffsetStore, so a Java consumer with the same
client id resumes at the offsets of a Python consumer, and the reverse:

    ~/.rocketmq_offsets/<ip>@<instance name>/<group>/offsets.json        and offsets.json.bak, the file before
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:17}}

The instance name is DEFAULT if `instance_name` is empty, as in RocketMQ. The file `lock` in the directory
prevents two running consumers from using the same offsets.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from actors.remoting.bodies.body import encode_json, queue_of_key, queue_table
from actors.remoting.remoting_errors import Refused
from cluster.client.config import AutoOffset, PushConfig
from cluster.client.errors import ClientError, ConfigInvalid, DataDamaged
from cluster.client.group.broadcasting import ADDED
from cluster.client.group.offset_client import Commit, Committed, OffsetClient
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance, local_address
from store.logs import get_logger
from store.message.message_queue import MessageQueue
from store.metadata.json_file import JsonConfigFile
from store.store_errors import StoreError

log = get_logger(__name__)

DEFAULT_INSTANCE = "DEFAULT"


def offset_folder(config: PushConfig) -> Path:
    """Return the directory of the offset file of a consumer."""
    client_id = f"{local_address()}@{config.instance_name or DEFAULT_INSTANCE}"
    return Path(config.local_offset_dir).expanduser() / client_id / config.group


class OffsetStore(Protocol):
    """Where a push consumer keeps its offsets: OffsetClient (at the brokers), or LocalOffsets."""

    async def starting(
        self,
        queue: MessageQueue,
        consume_from: AutoOffset,
        generation: int = 0,
        *,
        retry_refusals: bool = False,
    ) -> int:
        """Return the offset to start at: the committed offset, else the offset given by `consume_from`."""

    async def commit_best_effort(self, offsets: Mapping[MessageQueue, Commit]) -> Committed:
        """Commit `offsets` once without retries; for periodic commits."""

    def close(self) -> None:
        """Release the resources of the store."""


def make_offset_store(instance: ClientInstance, config: PushConfig) -> OffsetStore:
    """Return the offset store of a consumer. Raises ConfigInvalid, DataDamaged (broadcasting only)."""
    brokers = OffsetClient(instance, config.group, config.consume_timestamp_ms)
    if config.is_broadcasting:
        return LocalOffsets(config, brokers, instance.clock.wall_ms())
    return brokers


class LocalOffsets:
    """The offsets of one broadcasting consumer. Close it when the consumer has ended."""

    def __init__(self, config: PushConfig, brokers: OffsetClient, started_ms: int) -> None:
        """Open the offset file.

        Args:
            config: Settings of the consumer.
            brokers: Queries the offsets of queues that have no entry in the file.
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
            self._offsets = self._file.read(_parse) or {}
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
        """Return the offset to start at: the one of the file, else the offset given by `consume_from`.

        A queue of generation ADDED appeared while the consumer was running. Then `latest` means the start of
        the consumer, and for a topic of the file the last save, so that no message is skipped. Retriable
        errors, and with `retry_refusals` all errors, are retried.
        """
        backoff = Backoff()
        while queue not in self._offsets:
            try:
                offset = await self._first(queue, consume_from, generation)
                # Save it before the first message: messages sent while the consumer is down are for it too.
                await self._save({queue: offset})
            except (ClientError, OSError) as error:
                if not retry_refusals and not getattr(error, "retriable", False):
                    raise
                log.warning("starting_offset_failed", queue=str(queue), error=str(error))
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
        """Save `offsets`. If the disk refuses, log the error and report all as unconfirmed."""
        try:
            await self._save({queue: commit.offset for queue, commit in offsets.items()})
        except OSError as error:
            log.warning("local_offsets_save_failed", path=str(self._file.path), error=str(error))
            failure = ClientError(f"{self._file.path}: {error}")
            return Committed([], {queue.broker_name: failure for queue in offsets})
        return Committed([], {})

    async def _save(self, offsets: Mapping[MessageQueue, int]) -> None:
        async with self._saving:
            changed = {**self._offsets, **offsets}
            if changed == self._offsets:
                return
            text = encode_json({"offsetTable": queue_table(dict(sorted(changed.items())))})
            await asyncio.to_thread(self._file.save_text, text)
            self._offsets = changed

    def close(self) -> None:
        """Let another consumer use the file."""
        os.close(self._lock)


def _parse(content: dict[str, Any]) -> dict[MessageQueue, int]:
    table = content.get("offsetTable")
    if not isinstance(table, dict):
        raise ValueError("it has no offsetTable")  # noqa: TRY004 -- the file is damaged, not the call
    offsets = {}
    for key, offset in table.items():
        try:
            queue = queue_of_key(key)
        except Refused as error:
            raise ValueError(f"{key!r} is not a queue") from error
        if type(offset) is not int or offset < 0:
            raise ValueError(f"the offset of {queue} is {offset!r}: it must be an integer of 0 or more")
        offsets[queue] = offset
    return offsets


def _lock_folder(folder: Path) -> int:
    """Lock the directory for this process, and return the descriptor that holds the lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigInvalid(f"{folder}: {error.strerror}; set local_offset_dir to a writable one") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigInvalid(
            f"another broadcasting consumer uses the offsets in {folder}: set a different instance_name for "
            "each consumer of a group on one machine"
        ) from error
    return descriptor
