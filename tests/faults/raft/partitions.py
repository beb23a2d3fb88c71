"""A Raft group whose replicas have a network of their own each, and the story of its partitions.

`unshare --net python -m tests.faults.raft.partitions DIRECTORY` runs the story; the last line of its output
is DONE. Replica n runs in a network namespace with the address 10.213.0.<n + 1>; a bridge connects them with
this process, which has the nameserver and the producer:

    10.213.0.100, bridge of this process ── veth ── 10.213.0.1, replica 0
                                         ├─ veth ── 10.213.0.2, replica 1
                                         └─ veth ── 10.213.0.3, replica 2
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from cluster.driver.new_stores import NewStore, create_stores
from store.clock import SystemClock
from store.ownership.identity import StoreIdentity
from tests.actors.broker.brokers import settings_of
from tests.eventually import eventually, eventually_async
from tests.faults.raft.processes import Processes
from tests.faults.raft.sending import sending

NETWORK = "10.213.0"
OWN = f"{NETWORK}.100"
PORT = 10911
REPLICAS = range(3)
Link = tuple[int, int]
"""(from, to): packets of this direction are lost."""


def command(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def address_of(replica: int) -> str:
    return f"{NETWORK}.{replica + 1}"


class Networks:
    """The network namespaces of the replicas, each held by a process that sleeps."""

    def __init__(self) -> None:
        self._holders = [subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) for _ in REPLICAS]
        self._lost: set[Link] = set()
        command("ip", "link", "set", "lo", "up")
        command("ip", "link", "add", "bridge", "type", "bridge")
        command("ip", "address", "add", f"{OWN}/24", "dev", "bridge")
        command("ip", "link", "set", "bridge", "up")
        own = Path("/proc/self/ns/net").readlink()
        for replica, holder in enumerate(self._holders):
            network = Path(f"/proc/{holder.pid}/ns/net")
            eventually(lambda network=network: network.readlink() != own, "the network of a replica")  # type: ignore[misc]
            end = f"replica-{replica}"
            command("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", holder.pid)
            command("ip", "link", "set", end, "master", "bridge", "up")
            self.run(replica, "ip", "link", "set", "lo", "up")
            self.run(replica, "ip", "address", "add", f"{address_of(replica)}/24", "dev", "eth0")
            self.run(replica, "ip", "link", "set", "eth0", "up")

    def enter(self, replica: int) -> list[str]:
        """Return the words that begin a command in the network of a replica."""
        return ["nsenter", "--net", "--target", str(self._holders[replica].pid)]

    def run(self, replica: int, *words: object) -> None:
        command(*self.enter(replica), *words)

    def lose(self, *links: Link) -> None:
        """Lose the packets of these directions, and of no others."""
        for source, to in self._lost ^ set(links):
            verb = "add" if (source, to) in links else "del"
            self.run(source, "ip", "route", verb, "blackhole", f"{address_of(to)}/32")
        self._lost = set(links)

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()


class PartitionedGroup(Processes):
    """Replicas as processes in networks of their own."""

    def __init__(self, root: Path, networks: Networks) -> None:
        super().__init__(root)
        self._networks = networks
        self._nameserver = build_nameserver(
            NameserverSettings.model_validate({"listen_host": OWN, "listen_port": 9876}), SystemClock()
        )

    async def __aenter__(self) -> PartitionedGroup:
        await self._nameserver.start()
        ids = [uuid.uuid4().hex for _ in REPLICAS]
        members = [f"{each}@{address_of(replica)}:{PORT}" for replica, each in enumerate(ids)]
        for replica in REPLICAS:
            made = settings_of(
                self._root / str(replica), {"flush": "sync"}, replication="raft", replica=replica,
                raft_members=members, vip_channel=False, nameservers=f"{OWN}:9876",
            )  # fmt: skip
            listen = {"listen_host": address_of(replica), "listen_port": PORT}
            self.settings.append(BrokerSettings.model_validate({**made.model_dump(), **listen}))
            identity = StoreIdentity(made.cluster_name, made.broker_name, replica)
            store = NewStore(str(made.store_root), identity, made.store.model_dump(mode="json"), ids[replica])
            assert create_stores([store]) == []
        await asyncio.gather(*map(self.start, REPLICAS))
        return self

    def command(self, replica: int) -> list[str]:
        return [*self._networks.enter(replica), *super().command(replica)]

    def address(self, replica: int) -> str:
        return f"{address_of(replica)}:{PORT}"


def partitions(leader: int, first: int, second: int) -> dict[str, tuple[bool, tuple[Link, ...]]]:
    """Return the partitions: whether the leader must be replaced, and the directions that are lost."""
    to_leader, of_leader = ((first, leader), (second, leader)), ((leader, first), (leader, second))
    return {
        "the leader is cut off": (True, to_leader + of_leader),
        "a follower is cut off": (
            False,
            ((leader, first), (first, leader), (first, second), (second, first)),
        ),
        "the leader gets nothing": (True, to_leader),
        "nothing of the leader arrives": (True, of_leader),
        "nothing of the leader arrives at one": (False, of_leader[:1]),
        "the leader gets nothing of one": (False, to_leader[:1]),
        "the leader and one follower do not reach each other": (False, (of_leader[0], to_leader[0])),
    }


async def story(root: Path) -> None:
    networks = Networks()
    try:
        async with PartitionedGroup(root, networks) as group:
            await group.leader(list(REPLICAS))
            async with sending(group.nameserver) as sent:
                for name in partitions(0, 1, 2):
                    await sent.more(200)
                    leader = await group.leader(list(REPLICAS))
                    others = [each for each in REPLICAS if each != leader]
                    must_change, links = partitions(leader, *others)[name]
                    begin_s = time.monotonic()
                    networks.lose(*links)
                    if must_change:
                        await group.leader(others)
                    await sent.more(200)
                    print(f"{name}: 200 messages after {time.monotonic() - begin_s:.1f} s", flush=True)  # noqa: T201 - the figures of docs/faults.md
                    networks.lose()
                await sent.more(200)
            await eventually_async(group.is_level)
            bodies = b"".join(sent.acknowledged)
        (root / "acknowledged").write_bytes(bodies)
        print(f"{len(sent.acknowledged):,} acknowledged\nDONE", flush=True)  # noqa: T201 - the test's result
    finally:
        networks.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        uvloop.run(story(Path(sys.argv[1])))
