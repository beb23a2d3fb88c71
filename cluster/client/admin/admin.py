"""Topics, routes, groups and offsets, blocking face."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from actors.remoting.bodies.routes import ClusterInfo
from actors.remoting.raymq_requests import SplitsBody
from cluster.client.admin import aio_admin as aio
from cluster.client.admin.aio_admin import END_OF_TIME_MS, READ_WRITE
from cluster.client.admin.broker_admin import BrokerAdmin
from cluster.client.admin.group_admin import GroupAdmin
from cluster.client.config import ClientConfig, Nameservers
from cluster.client.transport.loop_thread import LoopThread
from cluster.client.transport.topic_route import TopicRoute
from store.clock import Clock
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue


class Admin(GroupAdmin, BrokerAdmin):
    """Looks at a cluster, and changes its topics.

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", queues=8)
        print(admin.end_offsets("orders"))
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        *,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._admin = aio.Admin(nameservers, config=config, clock=clock)
        self._thread = LoopThread.shared()

    def start(self) -> Self:
        """Open the connections' home. `with` and the first call do it too."""
        self._thread.run(self._admin.start())
        return self

    def close(self) -> None:
        """End the connections."""
        self._thread.run(self._admin.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        read_queues: int | None = None,
        perm: int = READ_WRITE,
        order: bool = False,
        brokers: Iterable[str] | None = None,
    ) -> TopicRoute:
        """Create `topic`, or change it, with `queues` queues on each of `brokers` (default: on all).

        Returns when the nameserver gives the new route: keyed sends from then on see all queues.
        Raises BrokerRefused, DeadlineExceeded.
        """
        return self._thread.run(
            self._admin.create_topic(
                topic, queues=queues, read_queues=read_queues, perm=perm, order=order, brokers=brokers
            )
        )

    def delete_topic(self, topic: str) -> None:
        """Delete `topic` with its messages and offsets, on all brokers and in the nameservers. Raises
        BrokerRefused.
        """
        self._thread.run(self._admin.delete_topic(topic))

    def topics(self) -> list[str]:
        """All topics, those of the system among them."""
        return self._thread.run(self._admin.topics())

    def route(self, topic: str) -> TopicRoute:
        """Where the queues of `topic` are. Raises TopicNotFound."""
        return self._thread.run(self._admin.route(topic))

    def cluster_info(self) -> ClusterInfo:
        """All brokers and their addresses, as the nameservers know them together."""
        return self._thread.run(self._admin.cluster_info())

    def splits(self, topic: str) -> list[SplitsBody]:
        """What each broker lets a bulk reader read of `topic`, and where its files are."""
        return self._thread.run(self._admin.splits(topic))

    def beginning_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The offset of the oldest message of each queue."""
        return self._thread.run(self._admin.beginning_offsets(topic))

    def end_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """The offset that the next message of each queue will get."""
        return self._thread.run(self._admin.end_offsets(topic))

    def offsets_at(self, topic: str, timestamp_ms: int) -> dict[MessageQueue, int]:
        """The offset of the first message of each queue stored at `timestamp_ms` (since the epoch) or
        later.
        """
        return self._thread.run(self._admin.offsets_at(topic, timestamp_ms))

    def offsets_for_times(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """As `offsets_at`, with a time of its own for each queue."""
        return self._thread.run(self._admin.offsets_for_times(times_ms))

    def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """How far `group` has come in each queue, None where it has committed nothing."""
        return self._thread.run(self._admin.committed_offsets(group, topic))

    def commit_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set how far `group` has come; members that are running do not notice. Raises BrokerRefused."""
        self._thread.run(self._admin.commit_offsets(group, offsets))

    def group_members(self, group: str) -> list[str]:
        """The client ids of a consumer group's members; empty when nobody is there."""
        return self._thread.run(self._admin.group_members(group))

    def message_by_id(self, offset_msg_id: str) -> MessageExt:
        """The message with the broker's own id (`SendResult.offset_msg_id`). Raises BrokerRefused."""
        return self._thread.run(self._admin.message_by_id(offset_msg_id))

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        unique: bool = False,
    ) -> list[MessageExt]:
        """The messages of `topic` with `key` (`unique`: with that UNIQ_KEY), stored between the two times,
        oldest first.

        At most `max_messages` from each broker.
        """
        return self._thread.run(
            self._admin.messages_by_key(
                topic, key, max_messages=max_messages, begin_ms=begin_ms, end_ms=end_ms, unique=unique
            )
        )
