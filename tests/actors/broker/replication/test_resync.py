"""A slave whose log differs from its master's stops, and copies it again after `raymq replica resync`."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from actors.broker.core.role import Role
from cluster.cli.main import build
from store.ownership.divergence import DIVERGED_FILE, Divergence, read_divergence, write_divergence
from store.tools.dump import dump
from tests.actors.broker.brokers import Peer, registered_broker, run, serving, settings_of, slave_of
from tests.actors.broker.replication.ha.ha_port import log_of
from tests.eventually import eventually_async
from tests.ports import free_port


def state_of(slave: Peer) -> str:
    return str(slave.broker.describe()["replication_state"])


async def until_copied(master: Peer, slave: Peer) -> None:
    """Wait until the slave has dispatched the master's whole log, and compare the bytes."""
    theirs, ours = (peer.store for peer in (master, slave))
    await eventually_async(lambda: ours.positions.dispatched == theirs.positions.written)
    assert log_of(ours) == log_of(theirs)


async def append_own(root: Path, messages: int) -> None:
    """Append messages to a slave's store, as a master that no nameserver knows."""
    async with serving(settings_of(root, role="slave", replica=1)) as peer:
        await peer.role.become(Role.MASTER, 1)
        for number in range(messages):
            await peer.send("T", b"own %d" % number)


def test_diverged_slave_copies_the_log_again_after_a_resync(tmp_path: Path) -> None:
    async def story() -> None:
        settings = {"replication": "async", "ha_listen_port": free_port()}
        async with registered_broker(tmp_path, **settings) as (_, master):
            await master.send("T", b"both")
            async with slave_of(master, tmp_path) as slave:
                await until_copied(master, slave)
                root = slave.broker.settings.store_root
                equal = slave.store.positions.written
            await append_own(tmp_path / "replica-1", 3)
            for number in range(5):
                await master.send("T", b"master %d" % number)
            async with slave_of(master, tmp_path) as slave:
                await eventually_async(lambda: state_of(slave).startswith("stopped: "))
                assert f"raymq replica resync {root}" in state_of(slave)
                found = read_divergence(root)
                assert found is not None
                assert (found.master, found.epoch) == (master.broker.address, 0)
                assert equal < found.position < slave.store.positions.written

            command = ["replica", "resync", str(root), "--yes"]
            done = json.loads(CliRunner().invoke(build(command), command).stdout)
            assert done["messages"] == 3
            aside = Path(done["directory"])
            assert len([line for line in dump(aside) if line["commitLogOffset"] >= equal]) == 3

            async with slave_of(master, tmp_path, slave_read_enable=True) as slave:
                await until_copied(master, slave)
                await eventually_async(lambda: slave.tables.topics.find("T") is not None)
                bodies = [message.body for message in await slave.messages("T")]
                assert bodies == [b"both", *(b"master %d" % number for number in range(5))]

    run(story)


def test_outdated_divergence_is_removed_by_a_master_and_by_a_slave_that_joins(tmp_path: Path) -> None:
    outdated = Divergence(0, "10.0.0.1:10911", 0, 1 << 20, "differs")
    roots = [tmp_path / "store", tmp_path / "replica-1" / "store"]
    for root in roots:
        root.mkdir(parents=True)
        write_divergence(root, outdated)

    async def story() -> None:
        settings = {"replication": "async", "ha_listen_port": free_port()}
        async with (
            registered_broker(tmp_path, **settings) as (_, master),
            slave_of(master, tmp_path) as slave,
        ):
            assert not (roots[0] / DIVERGED_FILE).exists()
            await eventually_async(lambda: state_of(slave) == "following")
            assert not (roots[1] / DIVERGED_FILE).exists()

    run(story)
