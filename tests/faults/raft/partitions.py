"""A storm over a Raft group whose replicas have a network of their own each, which is divided.

`unshare --net python -m tests.faults.raft.partitions DIRECTORY` divides it while every kind of client works;
the last line of its output is DONE. Replica n runs in a network namespace with the address 10.213.0.<n + 1>;
a bridge connects them with this process, and those of the nameserver and the clients:

    10.213.0.100, bridge of this process ── veth ── 10.213.0.1, replica 0
                                         ├─ veth ── 10.213.0.2, replica 1
                                         └─ veth ── 10.213.0.3, replica 2
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from tests.checkers import Recorder
from tests.eventually import eventually
from tests.faults.raft.storm import NAME, REPLICAS, RaftStorm
from tests.faults.storm_run import print_seed, run_storm

NETWORK = "10.213.0"
OWN = f"{NETWORK}.100"
SENDS = 100
"""A network stays divided until so many messages more are acknowledged."""
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


class NetworkStorm(RaftStorm):
    """The replicas of the storm are in networks of their own."""

    host = OWN

    def __init__(self, root: Path, recorder: Recorder, rng: random.Random, networks: Networks) -> None:
        self._networks = networks
        super().__init__(root, recorder, rng, jump_ms=0)

    def _listen_host(self, replica: int) -> str:
        return address_of(replica)

    def _enter(self, name: str) -> list[str]:
        broker, _, replica = name.rpartition("-")
        return self._networks.enter(int(replica)) if broker == NAME else []

    def divide(self) -> None:
        """Divide the network in each way, until messages are acknowledged, and connect it again."""
        for name in partitions(*REPLICAS):
            self.await_level()
            leader = self.leader()
            links = partitions(leader, *(each for each in REPLICAS if each != leader))[name]
            outage_s = self.outage_s(lambda links=links: self._networks.lose(*links))  # type: ignore[misc]
            wanted = len(self.acknowledged) + SENDS
            self.until(lambda wanted=wanted: len(self.acknowledged) >= wanted, f"sends while {name}")  # type: ignore[misc]
            print(f"{name}: {outage_s:.1f} s", flush=True)  # noqa: T201 - the figures of docs/faults.md
            self._networks.lose()


def partitions(leader: int, first: int, second: int) -> dict[str, tuple[Link, ...]]:
    """Return the directions that are lost in each partition."""
    to_leader, of_leader = ((first, leader), (second, leader)), ((leader, first), (leader, second))
    return {
        "the leader is cut off": to_leader + of_leader,
        "a follower is cut off": ((leader, first), (first, leader), (first, second), (second, first)),
        "the leader gets nothing": to_leader,
        "nothing of the leader arrives": of_leader,
        "nothing of the leader arrives at one": of_leader[:1],
        "the leader gets nothing of one": to_leader[:1],
        "the leader and one follower do not reach each other": (of_leader[0], to_leader[0]),
    }


def main() -> None:
    """Run the storm in the directory that is given."""
    root, seed, networks = Path(sys.argv[1]), print_seed(), Networks()
    recorder = Recorder(root / "history")
    try:
        with NetworkStorm(root, recorder, random.Random(seed), networks) as storm:

            def divide() -> None:
                storm.fill()
                storm.divide()

            run_storm(storm, recorder, seed, divide)
    finally:
        networks.close()
    print(f"{len(storm.acknowledged):,} acknowledged\nDONE", flush=True)  # noqa: T201 - the test's result


if __name__ == "__main__":
    main()
