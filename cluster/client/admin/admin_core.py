"""AdminCore: connections of the admin client, and requests to nameservers and master brokers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from actors.wire.bodies.routes import ClusterInfo
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import Buffer, RemotingCommand
from actors.wire.header import Header
from cluster.client.config import ClientConfig, Nameservers
from cluster.client.errors import ClientClosed, ConfigInvalid, nameserver_errors, refused
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.topic_route import TopicRoute
from store.common.clock import Clock
from store.message.message_queue import MessageQueue


class AdminCore:
    """Base of the admin client: its connections, and requests to nameservers and masters."""

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        *,
        config: ClientConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        config = config or ClientConfig()
        self._config = config if nameservers is None else replace(config, nameservers=nameservers)
        self._config.addresses()
        self._clock = clock
        self._instance: ClientInstance | None = None
        self._is_closed = False

    async def start(self) -> Self:
        """Start the client and return it. An `async with` block and the first call start it too."""
        self._opened()
        return self

    async def close(self) -> None:
        """Close all connections. Later calls raise ClientClosed."""
        self._is_closed = True
        if self._instance is not None:
            await self._instance.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def route(self, topic: str) -> TopicRoute:
        """Return the current route of `topic`: its brokers and queues. Raises TopicNotFound."""
        return await self._opened().routes.refresh(topic)

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers and their addresses, merged from the responses of all nameservers."""
        known = ClusterInfo()
        for response in await self._request_nameservers(RequestCode.GET_BROKER_CLUSTER_INFO):
            info = ClusterInfo.decode(response.body)
            known.brokers = info.brokers | known.brokers
            for cluster, names in info.clusters.items():
                known.clusters[cluster] = sorted({*known.clusters.get(cluster, ()), *names})
        return known

    async def check_proof(self, broker: str) -> None:
        """Raise unless the master of `broker` proves that it knows the key of this client.

        It does if it is of the cluster. Without a key, and with RocketMQ's signature, nothing is checked.

        Raises ConfigInvalid for an unknown broker, BrokerUnreachable without a proof, PermissionDenied if the
        key is wrong.
        """
        await self._opened().prove(await self._master(broker))

    async def _queues(self, topic: str) -> list[MessageQueue]:
        route = await self.route(topic)
        return sorted({*route.readable, *route.keyed})

    async def _masters(self, brokers: Iterable[str] | None) -> dict[str, str]:
        """Return the master address of each broker in `brokers` (None: all brokers), by broker name.

        Raises ConfigInvalid for an unknown broker.
        """
        info = await self.cluster_info()
        masters = {
            name: data.broker_addrs[0]
            for name, data in sorted(info.brokers.items())
            if 0 in data.broker_addrs
        }
        if brokers is None:
            return masters
        wanted = list(brokers)
        missing = sorted(set(wanted) - masters.keys())
        if missing:
            raise ConfigInvalid(
                f"no broker {', '.join(missing)} in the cluster; known brokers: {', '.join(masters)}"
            )
        return {name: masters[name] for name in wanted}

    async def _request_nameservers(self, code: int, header: Header | None = None) -> list[RemotingCommand]:
        """Return the responses of all reachable nameservers, at least one.

        Raises BrokerRefused for an error response, and NameserverUnreachable if none responds.
        """
        ext = {} if header is None else header.to_ext()
        with nameserver_errors():
            responses = await self._opened().nameservers.request_all(lambda: RemotingCommand(code, dict(ext)))
        for response in responses:
            if response.code != ResponseCode.SUCCESS:
                raise refused(response.code, response.remark)
        return responses

    async def _master(self, broker: str) -> str:
        """Return the master address of `broker`. Raises ConfigInvalid if the broker is unknown."""
        return (await self._masters([broker]))[broker]

    async def _master_of_queue(self, queue: MessageQueue) -> str:
        route = await self._opened().routes.get(queue.topic)
        return route.master(queue.broker_name) or await self._master(queue.broker_name)

    async def _call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: Buffer = b"",
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        ext = {} if header is None else header.to_ext()
        return await self._opened().invoke(address, RemotingCommand(code, ext, body), timeout_ms)

    def _opened(self) -> ClientInstance:
        if self._is_closed:
            raise ClientClosed("the admin client is closed: create a new one")
        if self._instance is None:
            self._instance = ClientInstance(self._config, clock=self._clock)
        return self._instance
