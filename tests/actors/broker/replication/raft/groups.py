"""A Raft group of brokers in one process, whose links can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.capability import Feature
from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.raft.members import Member
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from store.common.clock import SystemClock
from store.ownership.identity import read_name
from store.store_errors import StoreError
from tests.actors.broker.brokers import Peer, settings_of
from tests.eventually import eventually_async
from tests.ports import free_port


class Link:
    """Forwards the connections of one replica to another one, unless it is cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.is_cut = False

    async def open(self) -> str:
        """Listen, and return the address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def close(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            if self.is_cut:
                raise ConnectionError
            back, forth = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.append(forth)
        self._tasks += [asyncio.ensure_future(pump(reader, forth)), asyncio.ensure_future(pump(back, writer))]


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.transport.abort()


class Group:
    """Replicas with stores below `root`; `peers` has a client of each one that runs."""

    def __init__(self, root: Path, count: int = 3, **store: Any) -> None:
        self._root = root
        self._store = {"flush": "sync", **store}
        self._restarts: list[asyncio.Task[None]] = []
        self._ports = [free_port() for _ in range(count)]
        self._links: dict[tuple[int, int], Link] = {}
        self.settings: list[BrokerSettings] = []
        self._nameserver = build_nameserver(
            NameserverSettings.model_validate({"listen_port": 0}), SystemClock()
        )
        self.peers: dict[int, Peer] = {}
        self.members: list[Member] = []

    async def __aenter__(self) -> Self:
        await self._nameserver.start()
        replicas = range(len(self._ports))
        ids = ["" for _ in replicas]
        for replica in replicas:
            with pytest.raises(StoreError, match="was created: put its id"):
                await BrokerService(self._settings_of(replica, ids), SystemClock()).start()
            name = read_name(self._root / str(replica) / "store")
            assert name is not None
            ids[replica] = name.store_id
            self.members.append(Member(replica, name.store_id))
        self._links = {
            (source, to): Link(self._ports[to]) for source in replicas for to in replicas if source != to
        }
        addresses = {pair: await link.open() for pair, link in self._links.items()}
        self.settings = [self._settings_of(replica, ids, addresses) for replica in replicas]
        await asyncio.gather(*map(self.start, replicas))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._restarts)
        for replica in list(self.peers):
            await self.stop(replica)
        await self.close()
        for link in self._links.values():
            link.close()
        await self._nameserver.stop()

    async def close(self) -> None:
        """Stop what a subclass has started."""

    def features_of(self, replica: int) -> Sequence[Feature]:
        """Return further features of a broker that starts."""
        return ()

    def settings_of_each(self) -> dict[str, Any]:
        """Further settings of each broker."""
        return {}

    def peer_of(self, broker: BrokerService) -> Peer:
        """Create a client of a broker."""
        return Peer(broker)

    @property
    def nameserver(self) -> str:
        """The address of the nameserver."""
        return self._nameserver.address

    def is_leader_registered(self) -> bool:
        """Return True if the address with id 0 at the nameserver is that of the leader."""
        data = self._nameserver.routes.cluster_info().brokers.get("broker-a")
        master = None if data is None else data.broker_addrs.get(0)
        leaders = [each for each in self.peers if self.figure(each, "raft_state") == "leader"]
        return [self.peers[each].broker.address for each in leaders] == [master]

    def _settings_of(
        self, replica: int, ids: list[str], addresses: dict[tuple[int, int], str] | None = None
    ) -> BrokerSettings:
        def member(each: int) -> str:
            direct = f"127.0.0.1:{self._ports[each]}"
            return f"{ids[each]}@{(addresses or {}).get((replica, each), direct)}"

        made = settings_of(
            self._root / str(replica),
            self._store,
            replication="raft",
            replica=replica,
            raft_members=list(map(member, range(len(ids)))),
            slave_read_enable=True,
            vip_channel=False,
            nameservers=self._nameserver.address,
            receiver_addresses=[at for (_, to), at in (addresses or {}).items() if to == replica],
            **self.settings_of_each(),
        )
        return BrokerSettings.model_validate({**made.model_dump(), "listen_port": self._ports[replica]})

    async def start(self, replica: int) -> None:
        def restart(reason: str) -> None:
            self._restarts.append(asyncio.ensure_future(self._restart(replica)))

        features = self.features_of(replica)
        broker = BrokerService(self.settings[replica], SystemClock(), restart=restart, features=features)
        await broker.start()
        self.peers[replica] = self.peer_of(broker)

    async def _restart(self, replica: int) -> None:
        await eventually_async(lambda: replica in self.peers)  # it may restart itself while it starts
        await self.stop(replica)
        await self.start(replica)

    async def stop(self, replica: int) -> None:
        peer = self.peers.pop(replica)
        await peer.client.close()
        await peer.broker.stop()

    async def start_new(self, replica: int) -> Member:
        """Start a broker that is in no group yet, with this number and an empty store."""
        root = self._root / f"new-{replica}"
        made = settings_of(
            root, self._store, replication="raft", replica=replica, slave_read_enable=True,
            vip_channel=False, nameservers=self._nameserver.address, **self.settings_of_each(),
        )  # fmt: skip
        self.settings = [*self.settings[:replica], made, *self.settings[replica + 1 :]]
        await self.start(replica)
        port = int(self.peers[replica].broker.address.rpartition(":")[2])
        self.settings[replica] = BrokerSettings.model_validate({**made.model_dump(), "listen_port": port})
        return Member(replica, self.figure(replica, "store_id"))

    @property
    def restarts(self) -> int:
        """How often a replica has restarted itself, and runs again."""
        return sum(each.done() for each in self._restarts)

    def root(self, replica: int) -> Path:
        """The store of a replica."""
        return self.settings[replica].store_root

    def log_begin(self, replica: int) -> int:
        """The CommitLog offset at which the log of a replica begins."""
        return self.peers[replica].store.positions.min

    def isolate(self, replica: int) -> None:
        """Cut all links from and to a replica."""
        for pair, link in self._links.items():
            if replica in pair:
                link.cut()

    def heal(self) -> None:
        for link in self._links.values():
            link.is_cut = False

    def figure(self, replica: int, name: str) -> Any:
        return self.peers[replica].broker.describe()[name]

    async def of_leader(
        self, ask: Callable[[Peer], Awaitable[RemotingCommand]], among: Iterable[int] = range(3)
    ) -> tuple[int, RemotingCommand]:
        """Repeat a request until a leader responds; return the replica and its response.

        On a slow machine the group may elect another leader at any time.
        """
        replicas = tuple(among)

        async def try_all() -> tuple[int, RemotingCommand] | None:
            for replica in replicas:
                if self.peers[replica].broker.describe().get("raft_state") in ("candidate", "follower"):
                    continue  # it may forward the request
                response = await ask(self.peers[replica])
                if response.code not in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR):
                    return replica, response
            return None

        found = await eventually_async(try_all)
        assert found is not None
        return found

    async def send(self, body: bytes, among: Iterable[int] = range(3)) -> int:
        """Send a message until one of these replicas acknowledges it; return the replica."""
        replica, response = await self.of_leader(lambda peer: peer.send("T", body), among)
        assert response.code == 0, response.remark
        return replica
