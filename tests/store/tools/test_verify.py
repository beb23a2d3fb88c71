"""`raymq store verify` finds every kind of damage at its place, and reports nothing for a valid store."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cluster.cli.stores.store import app
from store.message_store import MessageStore
from store.store_errors import StoreError, StoreFormatUnsupported
from store.store_settings import StoreSettings
from store.tools.rebuild import rebuild
from store.tools.verify import Report, verify
from tests.conftest import ClockAtRest
from tests.store.checkpoints import make_checkpoint
from tests.store.conftest import OWNER, SMALL, a_draft

LOG = f"commitlog/{0:020d}"
QUEUE = f"consumequeue/Topic/1/{0:020d}"
few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

_MADE: dict[str, Path] = {}


def fill(store: MessageStore, clock: ClockAtRest, count: int = 120) -> None:
    for number in range(count):
        clock.advance(ms=number * 7 % 1500)
        keys = f"k{number % 11} x{number}"
        store.append(a_draft(b"%d " % number * 20, queue_id=number % 3, keys=keys, tags=f"T{number % 4}"))


@pytest.fixture
def root(tmp_path_factory, tmp_path) -> Path:
    """Return a new copy of a cleanly closed store with several files of each kind."""
    return fresh(tmp_path_factory, tmp_path / "store")


def fresh(factory, target: Path) -> Path:
    if "store" not in _MADE:
        root = factory.mktemp("valid") / "store"
        clock = ClockAtRest()
        store = MessageStore.open(root, StoreSettings(**SMALL), OWNER, clock)
        fill(store, clock)
        store.flush_now()
        while store.has_more_to_dispatch:
            store.advance()
        store.close()
        _MADE["store"] = root
    shutil.copytree(_MADE["store"], target)
    return target


def flip(path: Path, place: int, mask: int = 0x10) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= mask
    path.write_bytes(content)


def places(report: Report, path: str) -> list[tuple[int, int]]:
    return [(found.place, found.size_bytes) for found in report.findings if found.path == path]


def covers(report: Report, path: str, place: int) -> bool:
    return any(at < 0 or at <= place < at + size for at, size in places(report, path))


def tree(root: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("ending", ["clean", "crashed"])
def test_rocketmq_store_is_valid_and_not_changed(request, ending):
    root = request.getfixturevalue(f"{ending}_store")().root
    before = tree(root)
    report = verify(root)
    assert report.findings == []
    assert report.counts["records"] > 2_400
    assert tree(root) == before


def test_own_store_is_valid_while_open_and_after_close_or_kill(stores, clock, drain):
    store = stores.open()
    fill(store, clock)
    store.flush_now()
    store.advance()
    killed = stores.kill(store, "killed")
    assert verify(killed).findings == []
    report = verify(store.root)  # it is open
    assert report.findings == []
    assert report.writer_pid is not None
    assert "has this store open" in report.notes[-1]
    with pytest.raises(StoreError, match="already open in this process"):
        stores.open()  # the verification has not released the lock
    drain(store)
    store.close()
    report = verify(store.root)
    assert (report.findings, report.notes, report.writer_pid) == ([], [], None)


def test_unknown_format_is_refused_and_damaged_identity_reported(stores):
    stores.open().close()
    name = stores.directory / "store" / "raymq.json"
    name.write_bytes(b'{"formatVersion": 9}')
    with pytest.raises(StoreFormatUnsupported, match="store format 9 is not supported, only format 1"):
        verify(name.parent)
    name.write_bytes(b"{")
    [finding] = verify(name.parent).findings
    assert "is not valid JSON" in str(finding)


def test_deleted_and_recreated_topics_are_valid(stores, draft, drain):
    store = stores.open()
    for number in range(60):
        store.append(draft(b"x", topic="A" if number % 2 else "B"))
    drain(store)
    store.delete_topic("A")
    for _ in range(10):
        store.append(draft(b"y", topic="A"))
    drain(store)
    store.close()
    report = verify(store.root)
    assert (report.findings, report.notes) == ([], [])
    assert rebuild(store.root).queues == 2
    again = stores.open()
    assert again.max_offset("A", 0) == 10
    again.delete_topic("A")
    again.close()
    report = verify(store.root)
    assert (report.findings, report.notes) == ([], ["1 queues of deleted topics have records in the log"])


def test_store_with_expired_files_is_valid(stores, clock, drain):
    store = stores.open()
    fill(store, clock, 200)
    drain(store)
    make_checkpoint(store)
    for path in sorted((store.root / "commitlog").iterdir())[:2]:
        os.utime(path, (0, 0))
    store.retention.delete_expired()
    for _ in range(200):
        store.advance()
        store.retention.finish()
    assert store.positions.min > 0
    assert verify(store.root).findings == []
    store.close()
    assert verify(store.root).findings == []
    rebuild(store.root)
    assert verify(store.root).findings == []


def test_interrupted_command_prints_a_line(monkeypatch, root):
    def interrupted(*_arguments, **_named):
        raise KeyboardInterrupt

    monkeypatch.setattr("store.tools.verify.verify", interrupted)
    result = CliRunner().invoke(app, ["verify", str(root)])
    assert (result.exit_code, "interrupted" in result.output) == (130, True)


def test_damaged_record_is_reported_as_hole_with_position(root):
    flip(root / LOG, 100)
    report = verify(root)
    [hole] = [found for found in report.findings if found.kind == "hole"]
    assert hole.place <= 100 < hole.place + hole.size_bytes
    assert hole.path == LOG
    assert len(report.findings) == 1  # the unit that points into the hole is correct


@pytest.mark.parametrize(("at", "size"), [(0, 8), (8, 4), (12, 8)])
def test_each_field_of_a_unit_is_compared(root, at, size):
    flip(root / QUEUE, 5 * 20 + at + size - 1)
    assert places(verify(root), QUEUE) == [(5 * 20 + at, size)]


def test_any_damaged_byte_of_a_record_with_property_crc_is_found(stores, clock, drain):
    """RocketMQ's enabledAppendPropCRC covers the whole record, including topic and properties."""
    store = stores.open(append_property_crc=True)
    fill(store, clock, 20)
    drain(store)
    end = store.positions.written
    store.close()
    content = (store.root / LOG).read_bytes()
    assert verify(store.root).findings == []
    for place in range(13, end, 61):
        if b"__CRC32#" in content[place - 8 : place + 9]:
            continue  # damage of the name makes it another property
        flip(store.root / LOG, place, 0x04)
        assert covers(verify(store.root), LOG, place), place
        (store.root / LOG).write_bytes(content)


def test_zeroed_units_are_reported_as_one_finding(root):
    content = bytearray((root / QUEUE).read_bytes())
    content[100:200] = bytes(100)
    (root / QUEUE).write_bytes(content)
    assert places(verify(root), QUEUE) == [(100, 100)]


@pytest.mark.parametrize("kind", [LOG, QUEUE, "index"])
@pytest.mark.parametrize("damage", ["short", "long", "missing", "stray"])
def test_files_of_wrong_size_missing_and_stray_files_are_reported(root, kind, damage):
    path = min((root / "index").iterdir()) if kind == "index" else root / kind
    name = str(path.relative_to(root))
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "stray":
        path.with_name("stray.tmp").write_bytes(b"x")
        name = str(path.with_name("stray.tmp").relative_to(root))
    else:
        path.write_bytes(content[:-100] if damage == "short" else content + b"more")
    found = [finding for finding in verify(root).findings if finding.kind == "file"]
    if damage == "missing" and kind == LOG:
        found = verify(root).findings  # the log then begins later: the damage shows in queues and index
    assert found
    assert damage == "missing" or name in [finding.path for finding in found]


@pytest.mark.parametrize(
    ("name", "place"), [("checkpoint", 3), ("checkpoint", 9), ("checkpoint", 35), ("checkpoint", 2000)]
)
def test_damaged_checkpoint_field_is_reported(root, name, place):
    flip(root / name, place)
    assert covers(verify(root), name, place)


def test_difference_to_raymq_derived_is_reported(root):
    path = root / "raymq.derived"
    content = json.loads(path.read_bytes().partition(b"\n")[2])
    content["queues"]["Topic"]["1"][4][0] ^= 1
    text = json.dumps(content).encode()
    path.write_bytes(b"%08x\n%b" % (zlib.crc32(text), text))
    assert [found.path for found in verify(root).findings] == ["raymq.derived"]
    flip(path, 50)
    assert [found.path for found in verify(root).findings] == ["raymq.derived"]


def test_damaged_table_file_is_reported_with_its_name(root):
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"T":{"perm":"six"}}}')
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:5}}}')
    (root / "config" / "subscriptionGroup.json.bak").write_text("{broken")
    assert [found.path for found in verify(root).findings] == [
        "config/subscriptionGroup.json.bak",
        "config/topics.json",
    ]


@pytest.mark.parametrize("which", [0, -1], ids=["full", "last"])
@pytest.mark.parametrize(
    ("place", "mask"), [(36, 128), (36, 1), (38, 255), (39, 64), (39, 0x55), (39, 1), (39, 4), (39, 8)]
)
def test_wrong_index_count_is_reported_at_its_position(root, which, place, mask):
    path = sorted((root / "index").iterdir())[which]
    flip(path, place, mask)
    report = verify(root)
    assert places(report, str(path.relative_to(root))) == [(36, 4)]
    assert len(report.findings) == 1  # its entries are still compared


@given(st.data())
@few
def test_any_damaged_byte_in_queues_and_index_is_reported_in_place(tmp_path_factory, data):
    root = fresh(tmp_path_factory, tmp_path_factory.mktemp("flipped") / "store")
    kind = data.draw(st.sampled_from(["consumequeue", "index"]))
    path = data.draw(st.sampled_from(sorted(p for p in (root / kind).rglob("*") if p.is_file())))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    slots_end = 40 + 4 * SMALL["index_slots"]
    if kind == "index" and slots_end <= place < slots_end + 20:
        place = slots_end + 20  # entry 0 is never used
    mask = data.draw(st.integers(1, 255))
    flip(path, place, mask)
    report = verify(root)
    name = str(path.relative_to(root))
    if kind == "index" and 8 <= place < 16:  # endTimestamp: the entries contain it in seconds only
        assert not report.is_valid
    else:
        assert covers(report, name, place), (name, place, mask, report.findings)
        assert len(report.findings) <= 3


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("at", "mask"), [(10, 1), (11, 1), (11, 128)])
def test_damaged_offset_in_the_last_entry_of_an_index_file_is_one_finding(root, which, at, mask):
    path = sorted((root / "index").iterdir())[which]
    entry = 40 + 4 * SMALL["index_slots"] + 20 * (SMALL["index_entries"] - 1)
    flip(path, entry + at, mask)
    report = verify(root)
    assert places(report, str(path.relative_to(root))) == [(entry + 4, 8)]
    assert len(report.findings) == 1


@given(st.integers(0, 119), st.integers(0, 11), st.integers(1, 255))
@few
def test_damaged_record_header_byte_is_reported_in_place(tmp_path_factory, number, at, mask):
    root = fresh(tmp_path_factory, tmp_path_factory.mktemp("flipped") / "store")
    units = (root / f"consumequeue/Topic/{number % 3}" / f"{number // 3 // 20 * 400:020d}").read_bytes()
    unit = units[number // 3 % 20 * 20 :][:20]
    position = int.from_bytes(unit[:8], "big") + (at if at < 8 else 88 + at)
    path = root / "commitlog" / f"{position - position % 8192:020d}"
    flip(path, position % 8192, mask)
    report = verify(root)
    assert covers(report, str(path.relative_to(root)), position % 8192)


def test_command_lists_damage_and_exits_with_1(root):
    flip(root / LOG, 100)
    flip(root / QUEUE, 19)
    result = CliRunner().invoke(app, ["verify", str(root), "--json"])
    assert result.exit_code == 1
    output = json.loads(result.stdout)
    assert output["valid"] is False
    assert [finding["path"] for finding in output["findings"]] == [LOG, QUEUE]
    shutil.rmtree(root)


def test_command_exits_with_0_for_a_valid_store(root):
    result = CliRunner().invoke(app, ["verify", str(root), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["findings"] == []


def test_command_exits_with_2_if_the_path_is_not_a_supported_store(tmp_path, root):
    for path, reason in (
        (tmp_path / "absent", "no such directory"),
        (tmp_path, "it has no directory commitlog"),
    ):
        result = CliRunner().invoke(app, ["verify", str(path)])
        assert result.exit_code == 2
        assert reason in result.output.replace("\n", " ")
    (root / "batchconsumequeue" / "T").mkdir(parents=True)
    result = CliRunner().invoke(app, ["verify", str(root)])
    assert result.exit_code == 2
    assert "batch consume queues are not supported" in result.output


@given(st.data())
@few
def test_verify_survives_and_reports_any_content_of_any_file(tmp_path_factory, data):
    root = fresh(tmp_path_factory, tmp_path_factory.mktemp("ruined") / "store")
    names = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.name != "lock")
    name = data.draw(st.sampled_from(names))
    content = (root / name).read_bytes()
    start = data.draw(st.integers(0, len(content) - 1))
    size = data.draw(st.sampled_from([1, 20, 300, 1 << 20]))
    kind = data.draw(st.sampled_from(["zeros", "ones", "noise", "cut", "empty"]))
    part = content[start : start + size]
    ruined = {
        "zeros": content[:start] + bytes(len(part)) + content[start + size :],
        "ones": content[:start] + b"\xff" * len(part) + content[start + size :],
        "noise": content[:start] + random.Random(size).randbytes(len(part)) + content[start + size :],
        "cut": content[:start],
        "empty": b"",
    }[kind]
    (root / name).write_bytes(ruined)
    try:
        report = verify(root)
    except StoreError:  # a store with another format number is refused
        if name != "raymq.json":
            raise
        return
    # Only bodies of records have a CRC, and a changed number in raymq.json or raymq.epoch may be valid.
    is_covered = not name.startswith(("commitlog", "raymq.json", "raymq.epoch", "index"))
    if ruined != content and (is_covered or kind == "empty") and name != "raymq.json":
        assert not report.is_valid or report.notes


def test_verify_with_lock_keeps_writers_out_and_refuses_open_store(root: Path, tmp_path: Path) -> None:
    def open_meanwhile(_done: int, _total: int) -> None:
        with pytest.raises(StoreError, match="already open in this process"):
            MessageStore.open(root, StoreSettings(**SMALL), OWNER, ClockAtRest())

    report = verify(root, is_locking=True, progress=open_meanwhile)
    assert (report.findings, report.notes, report.writer_pid) == ([], [], None)
    store = MessageStore.open(root, StoreSettings(**SMALL), OWNER, ClockAtRest())
    refused = CliRunner().invoke(app, ["verify", str(root), "--lock"])
    store.close()
    assert refused.exit_code == 2
    assert "already open in this process" in refused.stderr
    with pytest.raises(StoreError, match="no directory commitlog"):
        verify(tmp_path, is_locking=True)
    assert not (tmp_path / "lock").exists()
