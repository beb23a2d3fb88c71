"""Sessions, each a lite topic, continue in order when their broker is killed, restored or replaced."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from tests.compat.replication.slave import Slave
from tests.eventually import eventually_async
from tests.faults.lite.lite_sessions import TOPIC, Sessions, sessions
from tests.faults.standalone_process import StandaloneProcess
from tests.faults.test_killed_pair import STORE, SYNC, has_mark

pytestmark = [pytest.mark.faults, pytest.mark.slow]

MANY = 10_000
INDEX = ("--store", "index_slots=5000", "--store", "index_entries=20000")  # as of StandaloneProcess
Story = Callable[[Sessions, StandaloneProcess], Awaitable[None]]


def with_broker(
    broker: StandaloneProcess, count: int, capsys: pytest.CaptureFixture[str], story: Story
) -> None:
    async def run() -> None:
        async with sessions(broker.nameserver, count) as found:
            await story(found, broker)
        with capsys.disabled():
            print(  # noqa: T201 - the figures of docs/faults.md
                f"{count:,} sessions: outage {found.outage_s:.1f} s, longest wait {found.wait_s:.1f} s"
            )

    try:
        uvloop.run(run())
    finally:
        broker.process.kill()


@pytest.mark.parametrize("count", [200, pytest.param(MANY, marks=pytest.mark.extended)])
def test_sessions_of_a_killed_broker_continue_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    async def story(found: Sessions, broker: StandaloneProcess) -> None:
        broker.kill()
        broker.start()

    with_broker(StandaloneProcess(tmp_path), count, capsys, story)


@pytest.mark.extended
def test_sessions_of_a_restored_store_continue_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was sent after the copy is lost, as of other topics."""

    async def story(found: Sessions, broker: StandaloneProcess) -> None:
        await found.pause()
        broker.stop()
        store = tmp_path / "stores" / "broker-a-0"
        shutil.copytree(store, tmp_path / "copy")
        broker.start()
        found.send()
        await found.more()
        await found.pause()
        broker.kill()
        shutil.rmtree(store)
        shutil.move(tmp_path / "copy", store)
        found.lose()
        broker.start()
        found.send()

    with_broker(StandaloneProcess(tmp_path / "stores"), MANY, capsys, story)


@pytest.mark.extended
@pytest.mark.parametrize("count", [200, MANY])
def test_sessions_continue_in_order_with_the_store_of_a_slave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """Master and slave are killed, and the master starts again with a copy of the slave's store."""
    options = list(SYNC)
    broker = StandaloneProcess(tmp_path / "m", options)
    slave = Slave(tmp_path / "s", broker.nameserver, (*STORE, *INDEX))

    async def story(found: Sessions, broker: StandaloneProcess) -> None:
        topics = slave.store_root / "config" / "topics.json"
        await eventually_async(lambda: topics.exists() and TOPIC in topics.read_text() and has_mark(slave))
        await found.more()
        broker.kill()
        slave.kill()
        store = tmp_path / "m" / "broker-a-0"
        shutil.rmtree(store)
        shutil.move(slave.store_root, store)
        (store / "raymq.json").unlink()  # it names replica 1
        options[:] = (*STORE, "--adopt-store")
        broker.start()

    with slave:
        with_broker(broker, count, capsys, story)
