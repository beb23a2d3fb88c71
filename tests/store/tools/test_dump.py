"""`raymq store dump` and `query` agree with RocketMQ and do not change the store."""

from __future__ import annotations

import hashlib
import json

import pytest
from typer.testing import CliRunner

from cluster.cli.stores.store import app
from cluster.cli.topics.message_view import decode_line
from store.message.record import decode_record
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_settings import StoreSettings
from store.tools.dump import dump, query
from store.tools.image import StoreImage

SIZES = {
    "commit_log_file_bytes": 1 << 20,
    "consume_queue_file_bytes": 20_000,
    "index_slots": 5000,
    "index_entries": 20_000,
}


@pytest.fixture(params=["clean", "crashed"])
def rocketmq(request):
    return request.getfixturevalue(f"{request.param}_store")()


def tree(root) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.stat().st_size < 1 << 24
    }


def test_dump_equals_what_rocketmq_reads(rocketmq):
    before = tree(rocketmq.root)
    result = CliRunner().invoke(app, ["dump", str(rocketmq.root), "--json"])
    assert result.exit_code == 0
    assert result.stdout_bytes.splitlines() == rocketmq.expected.read_bytes().splitlines()
    assert tree(rocketmq.root) == before


def test_query_of_every_key_returns_the_offsets_of_rocketmq(rocketmq):
    before = tree(rocketmq.root)
    lines = [json.loads(line) for line in rocketmq.expected_keys.read_text().splitlines()]
    image = StoreImage(rocketmq.root)
    different = [
        line
        for line in lines
        if image.query_by_key(line["queryTopic"], line["queryKey"]) != line["commitLogOffsets"]
    ]
    image.close()
    assert different == []
    line = lines[len(lines) // 2]
    result = CliRunner().invoke(
        app, ["query", str(rocketmq.root), line["queryTopic"], line["queryKey"], "--json"]
    )
    assert json.loads(result.stdout) == line
    assert tree(rocketmq.root) == before


def test_adopted_store_serves_reads_and_keys_like_rocketmq(rocketmq, clock):
    identity = StoreIdentity("DefaultCluster", "broker-a")
    expected = [json.loads(line) for line in rocketmq.expected.read_text().splitlines()]
    store = MessageStore.open(rocketmq.root, StoreSettings(**SIZES), identity, clock, adopt=True)
    by_queue: dict[tuple[str, int], list[int]] = {}
    for line in expected:
        by_queue.setdefault((line["topic"], line["queueId"]), []).append(line["commitLogOffset"])
    assert {queue: store.max_offset(*queue) for queue in store.queues()} == {
        queue: len(offsets) for queue, offsets in by_queue.items()
    }
    for line in expected[::7]:
        result = store.get_message(line["topic"], line["queueId"], line["queueOffset"], 1, 1 << 20)
        assert decode_record(result.slices[0]).commit_log_offset == line["commitLogOffset"]
        found = store.query_by_key(line["topic"], line["uniqKey"]) if line["uniqKey"] else [result.slices[0]]
        assert line["commitLogOffset"] in [decode_record(record).commit_log_offset for record in found]
    store.close()
    assert [line["commitLogOffset"] for line in dump(rocketmq.root)] == [
        line["commitLogOffset"] for line in expected
    ]


def test_dump_of_open_store_includes_records_not_yet_dispatched(stores, draft):
    store = stores.open(flush="sync")
    for number in range(60):
        store.append(draft(b"%d" % number, queue_id=number % 2, keys=f"k{number % 3}", tags="T"))
    lines = list(dump(store.root))
    assert [(line["queueId"], line["queueOffset"]) for line in lines] == [
        (q, n) for q in (0, 1) for n in range(30)
    ]
    assert all(line["bodyCRCok"] and line["tags"] == "T" for line in lines)
    [found] = query(store.root, "Topic", "k1")
    assert len(found["commitLogOffsets"]) == 20
    with pytest.raises(Exception, match="already open in this process"):
        stores.open()  # the dump has not released the lock


def test_dump_and_query_of_closed_store_need_no_settings(stores, draft, drain):
    store = stores.open()
    for number in range(100):
        store.append(draft(b"%d" % number, keys=f"k{number % 10}", uniq=f"U{number}"))
    drain(store)
    store.close()
    before = tree(store.root)
    assert len(list(dump(store.root))) == 100
    assert len(next(query(store.root, "Topic", "k7"))["commitLogOffsets"]) == 10
    assert next(query(store.root, "Topic", "U55"))["commitLogOffsets"] != []
    assert next(query(store.root, "Topic", "absent"))["commitLogOffsets"] == []
    assert tree(store.root) == before


def test_dump_lists_all_records_around_a_damaged_one(stores, draft, drain):
    store = stores.open()
    places = [store.append(draft(b"body %d" % number)).physical_offset for number in range(10)]
    drain(store)
    store.close()
    path = store.root / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[places[4] + 89] ^= 1
    path.write_bytes(content)
    lines = list(dump(store.root))
    assert [line["queueOffset"] for line in lines if line.get("bodyCRCok")] == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_messages_of_a_store_have_bodies_and_can_be_sent_again(stores, draft):
    store = stores.open()
    positions = []
    for number, body in enumerate([b"text", b"\xff\x00", b"third", b"other"]):
        positions.append(store.positions.written)
        topic = "Other" if body == b"other" else "Topic"
        store.append(draft(body, topic=topic, keys=f"k{number}", tags="t"))
    store.close()
    command = ["messages", str(store.root), "--topic", "Topic"]
    lines = CliRunner().invoke(app, command).stdout_bytes.splitlines()
    assert [decode_line(line, 1)["body"] for line in lines] == [b"text", b"\xff\x00", b"third"]
    assert decode_line(lines[2], 1) == {"body": b"third", "keys": "k2", "tags": "t", "properties": {}}
    assert json.loads(lines[0])["broker"] == "broker-a"
    for begin, count in ((positions[1], 2), (positions[1] + 1, 2), (positions[2], 1), (10**9, 0)):
        result = CliRunner().invoke(app, [*command, "--from-position", str(begin)])
        assert (result.exit_code, len(result.stdout.splitlines())) == (0, count)


def test_messages_around_a_damaged_one_are_printed(stores, draft):
    store = stores.open()
    for number in range(3):
        store.append(draft(b"body %d" % number))
    store.close()
    log = next((store.root / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[data.index(b"body 1")] ^= 1
    log.write_bytes(data)
    result = CliRunner().invoke(app, ["messages", str(store.root)])
    assert result.exit_code == 1
    assert [json.loads(line)["body"] for line in result.stdout.splitlines()] == ["body 0", "body 2"]
    assert "CRC" in result.stderr


def test_dump_refuses_a_directory_that_is_not_a_store(tmp_path):
    result = CliRunner().invoke(app, ["dump", str(tmp_path)])
    assert result.exit_code == 2
    assert "not a store" in result.output
