"""Brokers, topics' statistics and single messages, blocking face."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from actors.remoting.bodies.broker import BrokerStatsData, ConsumeQueueUnits
from actors.remoting.bodies.progress import TopicStatsTable
from cluster.client.admin.aio_admin import Admin as AsyncAdmin
from cluster.client.admin.aio_broker_admin import Cleaning
from cluster.client.transport.loop_thread import LoopThread
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.metadata import TopicConfig


class BrokerAdmin:
    """What concerns brokers, and what is asked of them one by one."""

    _admin: AsyncAdmin
    _thread: LoopThread

    def brokers(self) -> dict[str, str]:
        """The masters' addresses by broker name."""
        return self._thread.run(self._admin.brokers())

    def broker_runtime(self, broker: str) -> dict[str, str]:
        """What a broker says of itself, by RocketMQ's names. Raises ConfigInvalid for one that is not
        there.
        """
        return self._thread.run(self._admin.broker_runtime(broker))

    def broker_config(self, broker: str) -> dict[str, str]:
        """A broker's settings, by RocketMQ's names. Raises NotSupported, ConfigInvalid."""
        return self._thread.run(self._admin.broker_config(broker))

    def change_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a broker that runs, by RocketMQ's names; all of them or none.

        They stay over a restart, until `raymq up` says otherwise. Raises ConfigInvalid; Refused for a setting
        that there is not, that needs a restart, or whose value cannot be.
        """
        self._thread.run(self._admin.change_broker_config(broker, settings))

    def clean_broker(self, broker: str, what: Cleaning) -> None:
        """Have a broker clean its store: `expired-files` begins to delete log files whose time is over,
        `expired-queues` removes queues whose messages are all gone (they begin at offset 0 again),
        `unused-topics` removes the queues of topics that do not exist. Raises ConfigInvalid, Refused.
        """
        self._thread.run(self._admin.clean_broker(broker, what))

    def broker_stats(self, broker: str, table: str, key: str) -> BrokerStatsData | None:
        """A counter over a minute, an hour and a day, as TOPIC_PUT_NUMS and a topic; None where it has not
        counted.
        """
        return self._thread.run(self._admin.broker_stats(broker, table, key))

    def set_writable(self, broker: str, *, writable: bool) -> int:
        """Let producers write to a broker, or keep them away, in all nameservers; gives the topics' count."""
        return self._thread.run(self._admin.set_writable(broker, writable=writable))

    def system_topics(self) -> list[str]:
        """The topics that brokers made for themselves."""
        return self._thread.run(self._admin.system_topics())

    def broker_topics(self, broker: str) -> dict[str, TopicConfig]:
        """All topics of one broker and their settings. Raises ConfigInvalid."""
        return self._thread.run(self._admin.broker_topics(broker))

    def topic_stats(self, topic: str) -> TopicStatsTable:
        """The ends of each queue of `topic`, and how much is put in. Raises TopicNotFound."""
        return self._thread.run(self._admin.topic_stats(topic))

    def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """The settings of `topic` by broker. Raises TopicNotFound."""
        return self._thread.run(self._admin.topic_configs(topic))

    def set_topic_perm(self, topic: str, perm: int, brokers: Iterable[str] | None = None) -> list[str]:
        """Let `topic` be written (2) and read (4) on `brokers`, by default all that have it; gives them."""
        return self._thread.run(self._admin.set_topic_perm(topic, perm, brokers))

    def messages_at(self, queue: MessageQueue, offset: int, count: int = 1) -> list[MessageExt]:
        """Up to `count` messages of a queue from `offset` on. Raises TopicNotFound, BrokerRefused."""
        return self._thread.run(self._admin.messages_at(queue, offset, count))

    def units(self, queue: MessageQueue, offset: int, count: int = 32) -> ConsumeQueueUnits:
        """Units of a consume queue from `offset` on. Raises BrokerRefused where there are none."""
        return self._thread.run(self._admin.units(queue, offset, count))
