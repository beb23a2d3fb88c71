"""RouteTable: the registered brokers and their topics (RocketMQ RouteInfoManager).

    brokers   broker name → cluster, {broker id: address}
    live      address → identity, last heartbeat, connection, data version of the topics
    queues    topic → {broker name: QueueData}

It uses no sockets and no clock.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from actors.bounds import AtLimit, Bound, Use
from actors.wire.bodies.routes import (
    MASTER_ID,
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ClusterInfo,
    QueueData,
    RegisterBrokerBody,
    TopicRouteData,
)
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.logs import get_logger
from store.message.data_version import DataVersion

_log = get_logger(__name__)

LOGGED_TOPICS_MAX = 10
"""Names of new topics that are logged for one registration; of more, only the number."""


@dataclass(frozen=True, slots=True)
class Registrant:
    """The names and addresses of one replica of a broker group, from its registration."""

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str = ""
    enable_acting_master: bool = False


@dataclass(slots=True)
class LiveBroker:
    """A registered replica that has not expired."""

    identity: Registrant
    data_version: DataVersion
    last_heartbeat_ns: int
    expiry_ns: int
    connection: Hashable


BROKERS: Final = Bound("nameserver_brokers", 1_000, AtLimit.REFUSE, "Registered brokers.")
TOPICS: Final = Bound("nameserver_topics", 200_000, AtLimit.REFUSE, "Topics with a route.")


class RouteTable:
    """The brokers and topics of a nameserver. Callers pass the time, in monotonic nanoseconds."""

    def __init__(
        self,
        delete_topic_with_broker_registration: bool = False,
        max_brokers: int = BROKERS.limit,
        max_topics: int = TOPICS.limit,
    ) -> None:
        self._max_brokers = max_brokers
        self._max_topics = max_topics
        self._brokers: dict[str, BrokerData] = {}
        self._live: dict[str, LiveBroker] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}
        # By broker, the topics of its last registration: a new one usually changes few of them.
        self._registered_configs: dict[str, dict[str, dict[str, Any]]] = {}
        self._deletes_missing_topics = delete_topic_with_broker_registration
        self._encoded: dict[str, bytes] = {}

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (
            BROKERS.use(lambda: len(self._brokers), lambda: self._max_brokers),
            TOPICS.use(lambda: len(self._queues), lambda: self._max_topics),
        )

    # ---- brokers -------------------------------------------------------------------------------------

    def register(
        self,
        broker: Registrant,
        body: RegisterBrokerBody,
        connection: Hashable,
        now_ns: int,
        expiry_ns: int,
        *,
        is_partial: bool = False,
    ) -> tuple[str, str] | None:
        """Register a broker and its topics, or some of them if `is_partial`.

        Returns:
            For a slave, the address and HA address of its master, if that is registered; else None.

        Raises:
            Refused: another address is registered with the same broker id and a higher state version, or the
                nameserver has as many brokers or topics as it may have.
        """
        data = self._brokers.get(broker.name)
        self._check_room(broker, data, body)
        self._refuse_stale(broker, body)
        if data is None:
            data = self._brokers[broker.name] = BrokerData(broker.cluster, broker.name)
        data.cluster = broker.cluster
        data.enable_acting_master = broker.enable_acting_master
        self._forget_former_role(broker, data)
        before = data.broker_addrs.get(broker.broker_id)
        data.broker_addrs[broker.broker_id] = broker.address
        known = self._live.get(broker.address)
        if broker.broker_id == MASTER_ID and (
            before is None or known is None or known.data_version != body.data_version
        ):
            self._update_topics(broker.name, body, is_partial)
        if known is None:
            _log.info("broker_registered", broker=broker.name, id=broker.broker_id, address=broker.address)
        self._live[broker.address] = LiveBroker(broker, body.data_version, now_ns, expiry_ns, connection)
        self._encoded.clear()
        return self._master_of(broker, data)

    def other_holder(self, broker: Registrant) -> LiveBroker | None:
        """Return the live replica at another address that has the id of `broker`; None without one."""
        data = self._brokers.get(broker.name)
        address = None if data is None else data.broker_addrs.get(broker.broker_id)
        return None if address is None or address == broker.address else self._live.get(address)

    def record_heartbeat(self, address: str, now_ns: int) -> bool:
        """Record that a broker is alive; return False if it is not registered."""
        live = self._live.get(address)
        if live is None:
            return False
        live.last_heartbeat_ns = now_ns
        return True

    def data_version(self, address: str) -> DataVersion | None:
        """Return the data version of a broker's last registration; None if it is not registered."""
        live = self._live.get(address)
        return None if live is None else live.data_version

    def unregister(self, name: str, broker_id: int, address: str) -> None:
        """Remove a replica, and the topics of its broker group if it was the last replica."""
        self._live.pop(address, None)
        data = self._brokers.get(name)
        if data is None or data.broker_addrs.get(broker_id) != address:
            return
        del data.broker_addrs[broker_id]
        _log.info("broker_removed", broker=name, id=broker_id, address=address)
        if not data.broker_addrs:
            del self._brokers[name]
            self._registered_configs.pop(name, None)
            for topic in [topic for topic, queues in self._queues.items() if name in queues]:
                self._remove_queues(topic, name)
        self._encoded.clear()

    def connection_closed(self, connection: Hashable) -> None:
        """Remove the brokers whose last registration came over this connection."""
        for live in [live for live in self._live.values() if live.connection is connection]:
            self._drop(live)

    def expire(self, now_ns: int) -> list[LiveBroker]:
        """Remove and return the brokers whose last registration or heartbeat is too old."""
        silent = [live for live in self._live.values() if now_ns - live.last_heartbeat_ns > live.expiry_ns]
        for live in silent:
            _log.warning("broker_expired", broker=live.identity.name, address=live.identity.address)
            self._drop(live)
        return silent

    # ---- topics --------------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from one cluster, or from all if `cluster` is None."""
        for name in list(self._queues.get(topic, ())):
            if cluster is None or self._cluster_of(name) == cluster:
                self._remove_queues(topic, name)
        self._encoded.clear()

    def change_write_permission(self, name: str, is_writable: bool) -> int:
        """Add or remove the write permission of a broker's topics.

        It applies to each topic until the broker registers other settings of that topic.

        Returns:
            The number of its topics.
        """
        count = 0
        for queues in self._queues.values():
            held = queues.get(name)
            if held is not None:
                perm = PERM_READ | PERM_WRITE if is_writable else held.perm & ~PERM_WRITE
                queues[name] = _with_perm(held, perm)
                count += 1
        self._encoded.clear()
        return count

    # ---- routes --------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the queues and brokers of a topic; None if no registered broker has it."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in sorted(queues) if name in self._brokers]
        if not brokers:
            return None
        return TopicRouteData([queues[name] for name in sorted(queues)], brokers)

    def encoded_route(self, topic: str, order_conf: str | None) -> bytes | None:
        """Return the route of a topic as a response body; None if no registered broker has it.

        The encoded route is cached if `order_conf` is None.
        """
        if order_conf is None and (known := self._encoded.get(topic)) is not None:
            return known
        route = self.route(topic)
        if route is None:
            return None
        route.order_topic_conf = order_conf
        body = route.encode()
        if order_conf is None:
            self._encoded[topic] = body
        return body

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters."""
        clusters: dict[str, list[str]] = {}
        for name in sorted(self._brokers):
            clusters.setdefault(self._brokers[name].cluster, []).append(name)
        return ClusterInfo({name: self._brokers[name] for name in sorted(self._brokers)}, clusters)

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return all topics, or those of one cluster, sorted by name."""
        if cluster is None:
            return sorted(self._queues)
        return sorted(
            topic
            for topic, queues in self._queues.items()
            if any(self._cluster_of(name) == cluster for name in queues)
        )

    def system_topics(self) -> list[str]:
        """Return the system topics named after each cluster and broker."""
        info = self.cluster_info()
        return [*sorted(info.clusters), *info.brokers]

    def any_broker_address(self) -> str | None:
        """Return the address of a broker, preferably a master; None if no broker is registered."""
        replicas = (
            (broker_id, name, address)
            for name, data in self._brokers.items()
            for broker_id, address in data.broker_addrs.items()
        )
        return min(replicas, default=(0, "", None))[2]

    # ---- helpers -------------------------------------------------------------------------------------

    def _refuse_stale(self, broker: Registrant, body: RegisterBrokerBody) -> None:
        held = self.other_holder(broker)
        if held is not None and held.data_version.state_version > body.data_version.state_version:
            raise Refused(
                ResponseCode.FENCED_MASTER_EPOCH,
                f"broker {broker.name} id {broker.broker_id} is registered at {held.identity.address}, with "
                f"state version {held.data_version.state_version}; {broker.address} has the older "
                f"state version {body.data_version.state_version}: stop it if it is a former master",
            )

    def _forget_former_role(self, broker: Registrant, data: BrokerData) -> None:
        """Remove the former id of a replica whose id has changed, such as a slave that has become master."""
        for broker_id, address in list(data.broker_addrs.items()):
            if address == broker.address and broker_id != broker.broker_id:
                del data.broker_addrs[broker_id]

    def _check_room(self, broker: Registrant, data: BrokerData | None, body: RegisterBrokerBody) -> None:
        if data is None and len(self._brokers) >= self._max_brokers:
            raise _full("brokers", "max_brokers", self._max_brokers, broker.name)
        room = self._max_topics - len(self._queues)
        if len(body.topic_configs) > room:
            new = sum(topic not in self._queues for topic in body.topic_configs)
            if new > room:
                raise _full("topics", "max_topics", self._max_topics, f"{new:,} topics of {broker.name}")

    def _update_topics(self, name: str, body: RegisterBrokerBody, is_partial: bool) -> None:
        previous = known = self._registered_configs.setdefault(name, {})
        if is_partial:
            previous = {topic: known[topic] for topic in body.topic_configs if topic in known}
            known.update(body.topic_configs)
        else:
            self._registered_configs[name] = body.topic_configs
        if previous == body.topic_configs:
            previous = {}  # a new version without a change: the broker restores all topics that were wiped
        new_topics: list[str] = []
        for topic, config in body.topic_configs.items():
            if name in self._queues.get(topic, ()) and previous.get(topic) == config:
                continue
            try:
                registered = _queue_data(name, config)
            except Refused as error:  # the other topics must stay reachable
                if previous.get(topic) != config:
                    _log.error(
                        "topic_registration_invalid", broker=name, topic=topic[:100], error=error.remark
                    )
                continue
            queues = self._queues.setdefault(topic, {})
            if queues.get(name) != registered:
                if not queues:
                    new_topics.append(topic)
                queues[name] = registered
        _log_registered(name, new_topics)
        if self._deletes_missing_topics and not is_partial:
            for topic in [topic for topic, queues in self._queues.items() if name in queues]:
                if topic not in body.topic_configs:
                    self._remove_queues(topic, name)

    def _remove_queues(self, topic: str, name: str) -> None:
        queues = self._queues[topic]
        queues.pop(name, None)
        if not queues:
            del self._queues[topic]

    def _drop(self, live: LiveBroker) -> None:
        self.unregister(live.identity.name, live.identity.broker_id, live.identity.address)

    def _cluster_of(self, name: str) -> str | None:
        data = self._brokers.get(name)
        return None if data is None else data.cluster

    def _master_of(self, broker: Registrant, data: BrokerData) -> tuple[str, str] | None:
        if broker.broker_id == MASTER_ID:
            return None
        address = data.broker_addrs.get(MASTER_ID)
        live = None if address is None else self._live.get(address)
        return None if live is None else (live.identity.address, live.identity.ha_address)


def _full(what: str, setting: str, limit: int, name: str) -> Refused:
    return Refused(
        ResponseCode.SYSTEM_ERROR,
        f"cannot register {name[:100]}: this nameserver has {setting} = {limit:,} {what}; raise the setting",
    )


def _queue_data(name: str, config: dict[str, Any]) -> QueueData:
    given = QueueData.from_json(config)
    return QueueData(name, given.read_queue_nums, given.write_queue_nums, given.perm, given.topic_sys_flag)


def _with_perm(held: QueueData, perm: int) -> QueueData:
    return QueueData(held.broker_name, held.read_queue_nums, held.write_queue_nums, perm, held.topic_sys_flag)


def _log_registered(broker: str, topics: list[str]) -> None:
    for topic in topics[:LOGGED_TOPICS_MAX]:
        _log.info("topic_registered", topic=topic, broker=broker)
    if len(topics) > LOGGED_TOPICS_MAX:
        _log.info("topics_registered", topics=len(topics), broker=broker)
