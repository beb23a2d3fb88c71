"""Every file that a replica of a Raft group reads when it starts, damaged: it refuses to start, by name.

Files that can be derived from the log again may also be replaced.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.service import BrokerService
from actors.raft.bound_file import BOUND_FILE
from actors.raft.conversion import GROUP_TABLES_FILE
from actors.raft.term_file import TERM_FILE
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import run
from tests.actors.broker.core.auth.access_peers import inner_file
from tests.actors.broker.replication.raft.test_opening import created, settings
from tests.eventually import LIMIT_S

ENTRIES: dict[str, Any] = {
    "topic": ["T", {"topicName": "T"}],
    "group": ["G", {"groupName": "G"}],
    "mode": ["T@G", {"topic": "T", "consumerGroup": "G", "mode": "PULL", "popShareQueueNum": 0}],
    "offset": ["T@G", [[0, 7]]],
    "generation": ["T@G", [[0, 7]]],
    "reset": ["T@G", [[0, 7]]],
    "lock": ["G", [["T", "broker-a", 0, "client", 1]]],
    "delay": ["3", 7],
    "order": ["T@G", [[0, {}]]],
    "timer": ["checkpoint", [7, 7]],
    "drain": ["group", True],
}
"""An entry of each kind of table that has a form: name and value."""
WRONG: tuple[Any, ...] = (7, "x", True, {"a": 1}, [7], [[7]], [["x", "y"]], [[0, "x"]], [[0, 1.5]])
NOT_JSON = (b"", b"{", b"\0" * 64, b"\xff\xfe", b"null", b"[]", b"7", b'"x"')
TABLES = (
    "topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json", "consumerFilter.json",
    "consumerOrderInfo.json", "messageRequestMode.json", "raymqGenerations.json", "raymqQueueLocks.json",
    GROUP_TABLES_FILE, "raymqAccess.json",
)  # fmt: skip


REMEDIES = ("restore", "remove", "replace", "write one", "use the version")


def tables_with(*entries: list[Any]) -> bytes:
    return orjson.dumps({"nextOffset": 0, "fullFrom": 0, "entries": entries, "deleted": []})


def damages() -> Iterator[tuple[str, bytes]]:
    """Yield each file with each content that it must not have."""
    for file in (*(f"config/{name}" for name in TABLES), TERM_FILE, "raymq.json"):
        yield from ((file, content) for content in NOT_JSON)
    yield from ((f"config/{GROUP_TABLES_FILE}", content) for content in (b"{}", b'{"entries":[[1]]}'))
    yield from ((TERM_FILE, content) for content in (b"{}", b'{"crc":1,"raft":{}}'))
    yield from (
        (BOUND_FILE, content)
        for content in (
            b"",
            b"{",
            b"\0" * 64,
            b"\xff",
            b"null",
            b"-5",
            b"1.5",
            b"9" * 5_000,
            b"{}",
            b'{"crc":1,"bound":{}}',
        )
    )
    yield "raymq.epoch", b"x"
    for kind, (name, _) in ENTRIES.items():
        for value in WRONG:
            if kind != "drain" and not (kind == "delay" and value == 7):
                yield f"config/{GROUP_TABLES_FILE}", tables_with([kind, name, value])


class Replica:
    """A replica that has started once; each `start` begins with its store of that time."""

    def __init__(self, root: Path) -> None:
        mine = f"{created(root)}@127.0.0.1:1"
        access = {"authentication_enabled": True, "inner_credentials_file": inner_file(root)}
        self.settings: BrokerSettings = settings(
            root, mine, "b@127.0.0.1:2", "c@127.0.0.1:3", vip_channel=False, **access
        )
        self._kept = root / "kept"
        run(self._start)
        shutil.copytree(self.settings.store_root, self._kept)

    async def _start(self) -> None:
        broker = BrokerService(self.settings, SystemClock())
        await asyncio.wait_for(broker.start(), LIMIT_S)
        await broker.stop()

    def start(self, file: str, content: bytes) -> None:
        root = self.settings.store_root
        shutil.rmtree(root)
        shutil.copytree(self._kept, root)
        (root / file).write_bytes(content)
        (root / file).chmod(0o600)
        backup = root / f"{file}.bak"
        if backup.exists():
            backup.write_bytes(content)
        run(self._start)


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Replica:
    return Replica(tmp_path_factory.mktemp("replica"))


def refusals(replica: Replica, cases: Iterator[tuple[str, bytes]]) -> Iterator[str]:
    """Yield what is wrong with the refusal of each case."""
    for file, content in cases:
        try:
            replica.start(file, content)
        except StoreError as error:
            name = Path(file).name
            if name not in str(error) or not any(
                word in str(error)
                for word in ("restore", "remove", "replace", "write one", "use the version")
            ):
                yield f"{file} {content!r:.80}: {error}"
        else:
            yield f"{file} {content!r:.80}: started"


@pytest.mark.extended
def test_every_damaged_file_of_a_replica_is_refused_by_name_with_a_remedy(replica: Replica) -> None:
    assert list(refusals(replica, damages())) == []


def test_damaged_entry_of_the_group_tables_is_refused_by_name(replica: Replica) -> None:
    """It is not left out: the replica would delete it in the whole group when it leads."""
    with pytest.raises(StoreError, match=rf"{GROUP_TABLES_FILE}.*the entry 'T' of kind topic is invalid"):
        replica.start(f"config/{GROUP_TABLES_FILE}", tables_with(["topic", "T", 7]))


def test_replica_starts_with_saved_entries_of_all_kinds(replica: Replica) -> None:
    """One of a kind that only a newer version has is kept; a reset still waits for the group's next pull."""
    entries = [*([kind, *entry] for kind, entry in ENTRIES.items()), ["future", "x", {"a": 1}]]
    replica.start(f"config/{GROUP_TABLES_FILE}", tables_with(*entries))
    kept = orjson.loads((replica.settings.store_root / "config" / GROUP_TABLES_FILE).read_bytes())
    assert kept["entries"] == entries
