"""The code blocks of docs/extending.md run and work at their extension points."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from actors.broker.core.metadata.topics import Topics
from actors.broker.core.role import Role
from actors.broker.core.sending.interceptors import SendDraft
from actors.transport.in_process import InProcessConnection
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import TopicHeader
from actors.wire.hot_headers import SendMessageHeader
from cluster.control.kinds import KINDS
from store.commitlog.positions import Positions
from store.message.properties import encode_properties
from store.message.record import RecordDraft, decode_records
from store.message_store import MessageStore
from store.metadata import TopicConfigTable
from store.ownership.identity import StoreIdentity
from store.store_settings import StoreSettings
from tests.actors.broker.brokers import SMALL_STORE, Peer, settings_of, with_broker
from tests.conftest import ClockAtRest

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
BLOCKS = dict(re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE))


def run_block(title: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "extending"}
    exec(compile(BLOCKS[title], f"{PAGE.name}: {title}", "exec"), names)
    return names


def test_every_extension_point_has_a_code_block() -> None:
    listed = re.findall(r"^\| \[(.+?)\]\(#", PAGE.read_text(), re.MULTILINE)
    assert [title.lower() for title in BLOCKS] == listed


def test_example_feature_uses_every_extension_point(tmp_path: Path) -> None:
    names = run_block("Feature")
    feature = names["send_audit"]()

    async def story(peer: Peer) -> None:
        await peer.send("T", b"1", properties="KEYS\x01k\x02")
        assert (await peer.send("T", b"2", queue_id=99)).code == ResponseCode.INVALID_PARAMETER
        [stored] = await peer.messages("T")
        assert stored.properties["AUDITED"] == "true"
        assert (await peer.ask(names["GET_AUDIT"])).ext == {"stored": "1", "failed": "1"}
        assert peer.broker.describe()["audited"] == 1
        await peer.role.become(Role.FENCED, 2)
        assert (await peer.send("T", b"3")).remark == "the audit is closed: send later"

    with_broker(story, settings_of(tmp_path), features=[feature])


def test_example_feature_keeps_its_state_and_table(tmp_path: Path) -> None:
    names = run_block("Feature")

    async def first(peer: Peer) -> None:
        await peer.send("T", b"1")
        await peer.send("T", b"2")
        feature.tables[0].put("T", True)
        assert (await peer.send("T", b"3")).remark == "topic T is closed"

    async def second(peer: Peer) -> None:
        assert (await peer.ask(names["GET_AUDIT"])).ext == {"stored": "2", "failed": "0"}
        assert (await peer.send("T", b"4")).remark == "topic T is closed"

    for story in (first, second):
        feature = names["send_audit"]()
        with_broker(story, settings_of(tmp_path), features=[feature])
    assert (tmp_path / "store" / "sinks" / "audit").exists()


def test_example_row_step_and_observer_handle_requests() -> None:
    rows = run_block("Request row")["RecallRequests"]().rows()
    slow_log = run_block("Observer")["SlowLog"](threshold_ms=0)
    authorization = run_block("Chain step")["Authorization"]({"T"})

    async def story() -> list[tuple[int, str | None]]:
        server = RemotingServer(
            RequestTable(rows), ClockAtRest(), steps=(authorization,), observers=(slow_log,)
        )
        caller: InProcessConnection = server.connect_in_process("test", bytes(8))
        found = []
        for topic in ("T", "U"):
            command = RemotingCommand(RequestCode.RECALL_MESSAGE, TopicHeader(topic).to_ext())
            response = await caller.request(command)
            found.append((response.code, response.remark))
        await server.stop()
        return found

    assert asyncio.run(story()) == [
        (ResponseCode.SUCCESS, "recalled from T"),
        (ResponseCode.NO_PERMISSION, "pub on U is not allowed"),
    ]
    assert slow_log.slow == [(RequestCode.RECALL_MESSAGE, 0)] * 2


def test_example_interceptor_redirects_messages(tmp_path: Path) -> None:
    clock = ClockAtRest()
    topics = Topics(settings_of(tmp_path), TopicConfigTable(clock), lambda name: None, lambda name: None)
    properties = "suspicious\x01true\x02"
    draft = SendDraft(SendMessageHeader("PG", "T", 3, properties), RecordDraft("T", 3, b"x", b""), properties)
    run_block("Send interceptor")["Quarantine"](topics).before_append(draft)
    assert (draft.record.topic, draft.record.queue_id) == ("QUARANTINE", 0)
    assert "REAL_TOPIC\x01T\x02" in draft.properties


@pytest.fixture
def store(tmp_path: Path) -> Any:
    settings = StoreSettings.model_validate({**SMALL_STORE, "flush": "async"})
    sink = run_block("Dispatch sink")["RecordCount"]()
    identity = StoreIdentity("C", "a", 0)
    opened = MessageStore.open(tmp_path / "store", settings, identity, ClockAtRest(), sinks=[sink])
    for region in ("eu", "us", "eu"):
        properties = encode_properties({"region": region})
        opened.append(RecordDraft("T", 0, region.encode(), properties))
    opened.advance()
    yield opened, sink
    opened.close()


def test_example_sink_counts_records(store: Any) -> None:
    assert store[1].count == 3


def test_example_filter_selects_by_property(store: Any) -> None:
    found = store[0].get_message("T", 0, 0, 10, 1 << 20, run_block("Message filter")["RegionFilter"]("eu"))
    messages = [message for part in found.slices for message in decode_records(part)]
    assert [message.queue_offset for message in messages] == [0, 2]


def test_example_confirm_policy_waits_for_replicas() -> None:
    policy = run_block("Confirm policy")["InSyncReplicas"](2)
    positions = Positions()
    positions.written = 100
    assert [policy.confirmed(positions, replicas) for replicas in ({}, {1: 40}, {1: 40, 2: 70})] == [
        0,
        40,
        70,
    ]


def test_example_service_follows_the_role() -> None:
    calls: list[str] = []

    async def start() -> None:
        calls.append("start")

    async def stop() -> None:
        calls.append("stop")

    async def story() -> None:
        role = run_block("Role")["with_log_stream"](start, stop)
        await role.become(Role.MASTER, 1)
        await role.become(Role.FENCED, 2)

    asyncio.run(story())
    assert calls == ["start", "stop"]


def test_example_held_request_is_satisfied_by_messages() -> None:
    held = run_block("Wait registry")["HeldNotification"](None, ("T", "group"))
    assert (held.is_satisfied(0), held.is_satisfied(1)) == (False, True)


def test_example_kind_of_process_is_created_after_all_others() -> None:
    bridge = run_block("Kind of process")["BRIDGE"]
    assert bridge.order > max(kind.order for kind in KINDS.values())
