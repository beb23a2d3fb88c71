"""`raymq store info` summarizes a store without reading all of it."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from cluster.cli.stores.store import app
from store.tools.info import store_info


@pytest.mark.parametrize("ending", ["clean", "crashed"])
def test_info_of_rocketmq_store_agrees_with_rocketmq(request, ending):
    rocketmq = request.getfixturevalue(f"{ending}_store")()
    expected: dict[tuple[str, int], list[dict]] = {}
    for text in rocketmq.expected.read_text().splitlines():
        line = json.loads(text)
        expected.setdefault((line["topic"], line["queueId"]), []).append(line)
    info = store_info(rocketmq.root)
    found = {(queue.topic, queue.queue_id): queue for queue in info.queues if queue.max_offset}
    late = 0
    for key, lines in expected.items():
        if key not in found:  # a crash lost these units; the next start restores them
            late += len(lines)
            continue
        late += len(lines) - found[key].max_offset
        assert found[key].first_ms == lines[0]["storeTimestamp"]
    assert late == (0 if ending == "clean" else 2)
    assert info.closed_cleanly == (ending == "clean")
    assert info.log_end == 2_715_067 if ending == "clean" else info.log_end == 2_706_898
    assert (info.name, info.damage, info.writer_pid) == (None, [], None)


def test_info_of_own_store_shows_owner_and_content(stores, draft, drain, clock):
    store = stores.open()
    begin = clock.wall_ms()
    for number in range(100):
        clock.advance(ms=10)
        store.append(draft(b"x" * 100, queue_id=number % 2))
    drain(store)
    assert store_info(store.root).writer_pid is not None
    end = store.positions.written
    store.close()
    info = store_info(store.root)
    assert (info.log_begin, info.log_end, info.noted_end) == (0, end, end)
    assert (info.epoch, info.writer_pid, info.closed_cleanly) == (1, None, True)
    [topic] = info.topics()
    assert topic == {
        "topic": "Topic", "queues": 2, "messages": 100, "min_offset": 0, "max_offset": 50,
        "first_ms": begin + 10, "last_ms": begin + 1000,
    }  # fmt: skip
    assert info.files["commitlog"].files == len(list((store.root / "commitlog").iterdir()))
    output = json.loads(CliRunner().invoke(app, ["info", str(store.root), "--json"]).stdout)
    assert (output["madeBy"], output["broker"], output["logEnd"]) == ("RayMQ", "broker-a", end)
    assert output["topics"][0]["queueList"][1]["maxOffset"] == 50


def test_info_reports_a_file_with_wrong_size_and_continues(stores, draft, drain):
    store = stores.open()
    for _ in range(100):
        store.append(draft(b"x" * 100))
    drain(store)
    store.close()
    path = store.root / "commitlog" / f"{8192:020d}"
    path.write_bytes(path.read_bytes()[:100])
    info = store_info(store.root)
    assert info.damage == [f"commitlog/{8192:020d}: the file has 100 bytes instead of 8,192"]
    assert [queue.max_offset for queue in info.queues] == [100]


def test_queue_with_lost_last_message_has_no_last_time(stores, draft, drain, clock):
    store = stores.open()
    for _ in range(3):
        clock.advance(ms=1000)
        results = [store.append(draft(b"message", queue_id=queue_id)) for queue_id in range(2)]
    drain(store)
    store.close()
    log = store.root / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[results[0].physical_offset + 88] ^= 1
    log.write_bytes(content)
    shutil.rmtree(store.root / "consumequeue")
    stores.open().close()
    info = store_info(store.root)
    assert [(queue.max_offset, queue.last_ms) for queue in info.queues] == [(3, None), (3, clock.wall_ms())]


def test_info_refuses_what_is_not_a_supported_store(tmp_path):
    for path, reason in ((tmp_path / "absent", "no such directory"), (tmp_path, "not a store")):
        result = CliRunner().invoke(app, ["info", str(path)])
        assert result.exit_code == 2
        assert reason in result.output
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "dledger-x").mkdir()
    result = CliRunner().invoke(app, ["info", str(tmp_path)])
    assert "DLedger log is not supported" in result.output.replace("\n", " ")
