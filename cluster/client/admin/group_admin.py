"""Consumer groups: their settings, how far they are, who is in them, their offsets; blocking face."""

from __future__ import annotations

from actors.remoting.bodies.connected import ClientConnection, ConsumerConnection
from actors.remoting.bodies.progress import ConsumeStats, QueueTimeSpan
from cluster.client.admin.aio_admin import Admin as AsyncAdmin
from cluster.client.admin.aio_group_admin import TO_THE_END_MS
from cluster.client.transport.loop_thread import LoopThread
from store.message.message_queue import MessageQueue
from store.metadata import SubscriptionGroupConfig


class GroupAdmin:
    """What concerns consumer groups, and producers."""

    _admin: AsyncAdmin
    _thread: LoopThread

    def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """All consumer groups and their settings, of whichever broker has them."""
        return self._thread.run(self._admin.groups())

    def put_group(self, group: SubscriptionGroupConfig) -> None:
        """Create a group on all brokers, or change its settings. Raises BrokerRefused."""
        return self._thread.run(self._admin.put_group(group))

    def delete_group(self, group: str, *, offsets: bool = True) -> None:
        """Delete a group on all brokers, with what it has committed unless `offsets` is false."""
        return self._thread.run(self._admin.delete_group(group, offsets=offsets))

    def group_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """How far a group is in each queue of `topic`, or of all that it has consumed."""
        return self._thread.run(self._admin.group_stats(group, topic))

    def all_group_stats(self) -> dict[str, ConsumeStats]:
        """How far all groups are in all that they have consumed."""
        return self._thread.run(self._admin.all_group_stats())

    def group_time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """How long ago what a group consumes of each queue was stored."""
        return self._thread.run(self._admin.group_time_spans(group, topic))

    def group_connection(self, group: str) -> ConsumerConnection | None:
        """Who consumes as `group` and what; None when nobody is online."""
        return self._thread.run(self._admin.group_connection(group))

    def producers(self, group: str) -> list[ClientConnection]:
        """The producers of a group that are connected."""
        return self._thread.run(self._admin.producers(group))

    def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that have consumed `topic` or subscribe to it. Raises TopicNotFound."""
        return self._thread.run(self._admin.groups_of_topic(topic))

    def topics_of_group(self, group: str) -> list[str]:
        """The topics that a group has consumed."""
        return self._thread.run(self._admin.topics_of_group(group))

    def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int = TO_THE_END_MS
    ) -> dict[MessageQueue, int]:
        """Have `group` go on with the first message stored at `timestamp_ms` or later, or past the last one.

        Members that run are told at their next pull. Gives the new offsets. Raises GroupNotFound,
        TopicNotFound.
        """
        return self._thread.run(self._admin.reset_offsets(group, topic, timestamp_ms))

    def reset_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Have `group` go on at an offset of one queue. Raises BrokerRefused where the queue has no such."""
        return self._thread.run(self._admin.reset_offset(group, queue, offset))

    def clone_offsets(self, source: str, target: str, topic: str | None = None) -> None:
        """Give group `target` the offsets of `source`, in `topic` or in all that it has consumed."""
        return self._thread.run(self._admin.clone_offsets(source, target, topic))

    def running_info(self, group: str, client_id: str) -> bytes:
        """What a member says of itself, RocketMQ's ConsumerRunningInfo as it came.

        Raises GroupNotFound when it is not connected, BrokerRefused when it does not say.
        """
        return self._thread.run(self._admin.running_info(group, client_id))
