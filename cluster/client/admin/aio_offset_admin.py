"""Async admin requests that reset the offsets of a consumer group, or copy them to another group.

The broker performs the reset: online members resume at the new offset with their next pull. If the group has
no online members, its next member starts at the new offset.
"""

from __future__ import annotations

from typing import Literal

from actors.wire.admin_headers import CloneGroupOffsetHeader, ResetOffsetHeader
from actors.wire.bodies.progress import decode_progress_offsets
from actors.wire.codes import RequestCode, ResponseCode
from cluster.client.admin.aio_group_admin import GroupAdmin
from cluster.client.errors import ConfigInvalid, GroupNotFound
from cluster.client.group.offset_client import OffsetClient
from cluster.client.times import check_plausible
from store.message.message_queue import MessageQueue

Position = Literal["earliest", "latest"] | int
RESET_TO_END_MS = -1  # RocketMQ's timestamp for "after the last message"


class OffsetAdmin(GroupAdmin):
    """Requests that reset or copy committed offsets."""

    async def reset_offsets(
        self, group: str, topic: str, position: Position = "latest", *, dry_run: bool = False
    ) -> dict[MessageQueue, int]:
        """Reset the offsets of `group` in `topic`, and return the new offsets.

        Online members resume at the new offsets with their next pull. The default position "latest" skips all
        messages that the group has not consumed yet.

        Args:
            group: The consumer group.
            topic: The topic.
            position: "earliest", "latest", or a time in ms since the epoch. A time selects the first message
                stored at or after it.
            dry_run: Return the new offsets without resetting the group.

        Raises:
            ConfigInvalid: `position` is invalid.
            GroupNotFound: The group does not exist.
            TopicNotFound: The topic does not exist.
        """
        timestamp_ms = _timestamp_ms(position, self._opened().clock.wall_ms())
        if dry_run:
            return await self._preview(group, topic, timestamp_ms)
        route = await self.route(topic)
        offsets: dict[MessageQueue, int] = {}
        header = ResetOffsetHeader(topic, group, timestamp_ms)
        for address in route.all_masters().values():
            response = await self._call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
            offsets |= decode_progress_offsets(response.body)
        return dict(sorted(offsets.items()))

    async def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Reset the offset of `group` in one queue.

        Raises ConfigInvalid if `offset` is negative, and BrokerRefused if it is outside the queue.
        """
        if offset < 0:
            raise ConfigInvalid(f"offset {offset} of {queue} is negative: give 0 or more")
        header = ResetOffsetHeader(queue.topic, group, queue_id=queue.queue_id, offset=offset)
        address = await self._master_of_queue(queue)
        await self._call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)

    async def clone_offsets(self, source: str, target: str, topic: str | None = None) -> None:
        """Copy the committed offsets of group `source` in `topic` to group `target`.

        If `topic` is None, the offsets of all topics that `source` has consumed are copied. Stop the members
        of `target` before the call, because an online member overwrites the copied offsets with its next
        commit.
        """
        # RocketMQ copies nothing if the request names no topic.
        topics = [topic] if topic else [None, *await self.topics_of_group(source)]
        for address in (await self._masters(None)).values():
            for each in topics:
                header = CloneGroupOffsetHeader(source, target, each, offline=True)
                await self._call(address, RequestCode.CLONE_GROUP_OFFSET, header)

    async def _preview(self, group: str, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        queues = sorted((await self.route(topic)).readable)
        if group not in await self.groups():
            raise GroupNotFound(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {group!r} does not exist: create it before resetting its offsets",
            )
        offsets = OffsetClient(self._opened(), group)
        if timestamp_ms == RESET_TO_END_MS:
            return {queue: await offsets.end(queue) for queue in queues}
        return {queue: await offsets.at_time(queue, timestamp_ms) for queue in queues}


def _timestamp_ms(position: Position, now_ms: int) -> int:
    """Return the timestamp that requests a reset to `position`. Raises ConfigInvalid if it is invalid."""
    if position == "earliest":
        return 0
    if position == "latest":
        return RESET_TO_END_MS
    if type(position) is not int or position < RESET_TO_END_MS:
        raise ConfigInvalid(
            f"position is {position!r}: it must be 'earliest', 'latest' or a time in ms since the epoch"
        )
    if position != RESET_TO_END_MS:
        check_plausible("position", position, now_ms)
    return position
