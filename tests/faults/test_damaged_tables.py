"""Files `config/*.json` of a broker that are truncated, zeroed or changed.

The broker uses the backup. If both are damaged, it refuses to start and names the file. Nothing is changed.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.config_files import DELAYS, GENERATIONS, GROUPS, OFFSETS, TOPICS
from actors.broker.service import BrokerService
from actors.wire.codes import RequestCode
from actors.wire.headers import CreateTopicHeader
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import Peer, run, settings_of, with_broker
from tests.eventually import LIMIT_S

pytestmark = [pytest.mark.faults, pytest.mark.slow]

TABLE_NAMES = {
    TOPICS: b'"topicConfigTable"',
    GROUPS: b'"subscriptionGroupTable"',
    OFFSETS: b'"offsetTable"',
    DELAYS: b'"offsetTable"',
    GENERATIONS: b'"generations"',
}


def renamed(name: str) -> Callable[[bytes], bytes]:
    """Return a damage that flips one bit of the table's key: the file is valid JSON without the table."""
    quoted = TABLE_NAMES[name]
    return lambda content: content.replace(quoted, quoted.replace(b"a", b"c", 1), 1)


def damages(name: str) -> dict[str, Callable[[bytes], bytes]]:
    rng = random.Random(name)
    return {
        "emptied": lambda content: b"",
        "truncated": lambda content: content[: rng.randrange(1, len(content) - 1)],
        "zeroed": lambda content: bytes(len(content)),
        "a bit of the table's key": renamed(name),
        "another type": lambda content: orjson.dumps({TABLE_NAMES[name].decode().strip('"'): {"T@G": [1]}}),
    }


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> BrokerSettings:
    """Return settings of a broker that saved each table twice: file and backup are equal."""
    settings = settings_of(tmp_path_factory.mktemp("tables"))

    async def use(peer: Peer) -> None:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("T", 3, 3, 6).to_ext())
        for number in range(4):
            assert (await peer.send("T", b"%d" % number)).code == 0
        await peer.commit("G", "T", 2)
        await peer.heartbeat("client", "G", T="*")
        offsets = peer.tables.offsets
        offsets.claim("G", "T", 0, 7)
        await peer.tables.save_definitions()
        await peer.tables.save_offsets()

    with_broker(use, settings)
    config = settings.store_root / "config"
    (config / DELAYS).write_bytes(b'{"offsetTable":{"1":0}}')
    for name in TABLE_NAMES:
        shutil.copyfile(config / name, config / f"{name}.bak")
    return settings


def copy_of(settings: BrokerSettings, root: Path) -> BrokerSettings:
    shutil.copytree(settings.store_root, root)
    return settings.model_copy(update={"store_root": root})


@pytest.mark.parametrize("name", TABLE_NAMES)
def test_damaged_table_is_replaced_by_backup_and_kept(
    settings: BrokerSettings, tmp_path: Path, name: str
) -> None:
    async def check_tables(peer: Peer) -> None:
        assert [message.body for message in await peer.messages("T")] == [b"0", b"1", b"2", b"3"]
        assert (await peer.send("T", queue_id=2)).code == 0
        assert (await peer.committed("G", "T")).ext["offset"] == "2"
        assert peer.tables.offsets.generation("G", "T", 0) == 7
        assert "G" in peer.tables.groups.table.groups

    for number, (damage, change) in enumerate(damages(name).items()):
        copy = copy_of(settings, tmp_path / str(number))
        path = copy.store_root / "config" / name
        path.write_bytes(change(path.read_bytes()))
        damaged = path.read_bytes()
        with_broker(check_tables, copy)
        with_broker(check_tables, copy)
        kept = [each.read_bytes() for each in path.parent.glob(f"{name}*")]
        assert damaged in kept, f"{name} {damage}: the damaged file was overwritten"
        backup = path.with_name(f"{name}.bak")
        assert backup.read_bytes() != damaged, f"{name} {damage}: the damaged file replaced the valid backup"


@pytest.mark.parametrize("name", TABLE_NAMES)
def test_table_with_damaged_backup_is_refused_and_left_unchanged(
    settings: BrokerSettings, tmp_path: Path, name: str
) -> None:
    async def refused(copy: BrokerSettings, damage: str) -> None:
        with pytest.raises(StoreError, match=f"{name}: .* there is no valid backup") as caught:
            await asyncio.wait_for(BrokerService(copy, SystemClock()).start(), LIMIT_S)
        assert "remove the file" in str(caught.value), damage

    for number, (damage, change) in enumerate(damages(name).items()):
        copy = copy_of(settings, tmp_path / str(number))
        config = copy.store_root / "config"
        for path in (config / name, config / f"{name}.bak"):
            path.write_bytes(change(path.read_bytes()))
        before = {path: path.read_bytes() for path in config.iterdir()}
        run(lambda copy=copy, damage=damage: refused(copy, damage))  # type: ignore[misc]
        assert {path: path.read_bytes() for path in config.iterdir()} == before, damage
