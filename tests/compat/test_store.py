"""RocketMQ's DefaultMessageStore reads and extends a RayMQ store, and RayMQ continues with it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.message.record import RecordDraft, decode_record
from store.tools.dump import dump
from store.tools.image import StoreImage
from store.tools.verify import verify
from tests.compat.build import JavaKit
from tests.compat.processes import Program
from tests.compat.rocketmq import STORE_JVM
from tests.compat.store_writer import STORE_CONF, open_store
from tests.conftest import RocketStore
from tests.eventually import LIMIT_S, eventually

pytestmark = pytest.mark.java

REPO = Path(__file__).parent.parent.parent
MESSAGES = 2500
JAVA_PUTS = 300

Row = dict[str, object]


@dataclass(frozen=True)
class JavaView:
    """Contents of a store as DefaultMessageStore serves them: all messages, and CommitLog offsets by key."""

    rows: list[Row]
    found: dict[tuple[str, str], list[int]]


def read_lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class JavaStore:
    """RocketMQ's DefaultMessageStore; each call opens the store in a new JVM."""

    def __init__(self, kit: JavaKit, folder: Path) -> None:
        self._kit = kit
        self._folder = folder
        folder.mkdir()

    def read(self, root: Path, conf: Path) -> JavaView:
        self._run(root, conf)
        return self._view("dump", "keys")

    def read_and_put(self, root: Path, conf: Path, puts: int) -> tuple[JavaView, JavaView]:
        """Return the contents before and after putting `puts` messages."""
        after = [f"{key}={self._folder / key}" for key in ("dumpAfter", "keysAfter")]
        self._run(root, conf, f"put={puts}", *after)
        return self._view("dump", "keys"), self._view("dumpAfter", "keysAfter")

    def _run(self, root: Path, conf: Path, *more: str) -> None:
        arguments = [
            f"store={root}",
            f"conf={conf}",
            *(f"{key}={self._folder / key}" for key in ("dump", "keys")),
        ]
        command = self._kit.command(
            "compat.StoreProgram", *arguments, *more, home=self._folder, jvm=STORE_JVM
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr[-4000:]

    def _view(self, dump: str, keys: str) -> JavaView:
        found = {
            (str(line["queryTopic"]), str(line["queryKey"])): line["commitLogOffsets"]
            for line in read_lines(self._folder / keys)
        }
        return JavaView(read_lines(self._folder / dump), found)  # type: ignore[arg-type]


@pytest.fixture
def java_store(kit: JavaKit, tmp_path: Path) -> JavaStore:
    return JavaStore(kit, tmp_path / "java")


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    settings = {"brokerClusterName": "DefaultCluster", **STORE_CONF}
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


@dataclass(frozen=True)
class OurStore:
    """A store written by RayMQ, and the acknowledged fields of each message."""

    root: Path
    acknowledged: list[Row]


@pytest.fixture(params=[pytest.param("closed", marks=pytest.mark.extended), "killed"])
def our_store(request: pytest.FixtureRequest, tmp_path: Path) -> OurStore:
    """Return a RayMQ store that was closed cleanly, or whose writer was killed (SIGKILL) while writing."""
    root = tmp_path / "store"
    command = [sys.executable, "-m", "tests.compat.store_writer", str(root), "--messages", str(MESSAGES)]
    killed = request.param == "killed"
    with Program([*command, *(["--forever"] if killed else [])], tmp_path / "writer.log", cwd=REPO) as writer:
        writer.wait_for("WRITTEN", LIMIT_S)
        if killed:
            writer.kill()
        else:
            assert writer.wait(LIMIT_S) == 0, writer.last_lines()
    assert (root / "abort").exists() == killed
    return OurStore(root, list(_whole_lines(tmp_path / "writer.log")))


def _whole_lines(log: Path) -> Iterator[Row]:
    """Yield the complete JSON lines; a kill may have truncated the last one."""
    for line in log.read_text().splitlines(keepends=True):
        if line.startswith("{") and line.endswith("}\n"):
            yield json.loads(line)


def keys_in(rows: Sequence[Row]) -> dict[tuple[str, str], list[int]]:
    """Return the CommitLog offsets of each key: the expected results of queries by key."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        keys = {str(row["uniqKey"])} if row["uniqKey"] else set()
        for key in keys | set(str(row["keys"] or "").split()):
            places[str(row["topic"]), key].append(int(str(row["commitLogOffset"])))
    return {key: sorted(offsets) for key, offsets in places.items()}


def with_plain_hosts(row: Row) -> Row:
    """Return the row with parsed addresses, because an IPv6 address has several textual forms."""
    plain = dict(row)
    for key in ("bornHost", "storeHost"):
        address, _, port = str(row[key]).rpartition(":")
        plain[key] = (ipaddress.ip_address(address.strip("[]")), int(port))
    return plain


def assert_rows_equal(ours: Sequence[Row], theirs: Sequence[Row]) -> None:
    """Compare row by row and report only the first difference."""
    for our_row, their_row in zip(map(with_plain_hosts, ours), map(with_plain_hosts, theirs), strict=False):
        differing = {key: (our_row.get(key), their_row.get(key)) for key in {*our_row, *their_row}}
        differing = {key: pair for key, pair in differing.items() if pair[0] != pair[1]}
        assert not differing, (
            f"{our_row.get('topic')} {our_row.get('queueOffset')}: (ours, theirs) {differing}"
        )
    assert len(ours) == len(theirs)


def assert_acknowledged_is_stored(acknowledged: Sequence[Row], rows: Sequence[Row]) -> None:
    stored = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows}
    for fact in acknowledged:
        row = stored[fact["topic"], fact["queueId"], fact["queueOffset"]]
        differing = {key: (value, row[key]) for key, value in fact.items() if row[key] != value}
        assert not differing, f"{fact['topic']} {fact['queueOffset']}: (acknowledged, stored) {differing}"
    assert all(row["bodyCRCok"] for row in rows)


def raymq_query_results(root: Path, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], list[int]]:
    image = StoreImage(root)
    try:
        return {(topic, key): image.query_by_key(topic, key) for topic, key in keys}
    finally:
        image.close()


def test_rocketmq_opens_a_raymq_store_and_raymq_opens_it_again(
    our_store: OurStore, java_store: JavaStore, conf: Path, tmp_path: Path
) -> None:
    untouched = tmp_path / "untouched"
    shutil.copytree(our_store.root, untouched)

    before, after = java_store.read_and_put(our_store.root, conf, JAVA_PUTS)

    assert_acknowledged_is_stored(our_store.acknowledged, before.rows)
    assert_rows_equal(list(dump(untouched)), before.rows)
    assert before.found == keys_in(before.rows) == raymq_query_results(untouched, before.found)
    assert len(after.rows) == len(before.rows) + JAVA_PUTS
    assert after.found == keys_in(after.rows)
    assert_rows_equal(list(dump(our_store.root)), after.rows)
    assert_raymq_continues(our_store.root, after)


def assert_raymq_continues(root: Path, java: JavaView) -> None:
    """Open the store with RayMQ, read all messages, append one, and find it by offset and by key."""
    store = open_store(root)
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for row in java.rows:
        topic, queue_id = str(row["topic"]), int(str(row["queueId"]))
        [found] = store.get_message(topic, queue_id, int(str(row["queueOffset"])), 1, 1 << 20).slices
        message = decode_record(found)
        assert hashlib.sha1(message.body).hexdigest() == row["bodySha1"]
        assert message.properties == row["properties"]
        counts[topic, queue_id] += 1
    assert {queue: store.max_offset(*queue) for queue in counts} == counts
    result = store.append(RecordDraft("FromJava", 0, b"ours again", properties=b"KEYS\x01again\x02"))
    store.flush_now()
    store.advance()
    assert result.queue_offset == counts["FromJava", 0]
    assert [bytes(decode_record(record).body) for record in store.query_by_key("FromJava", "again")] == [
        b"ours again"
    ]
    store.close()


def delete_the_oldest_files(root: Path, count: int) -> None:
    """Delete the oldest CommitLog files and their index data with RayMQ's retention."""
    store = open_store(root)
    oldest = sorted((root / "commitlog").iterdir())[:count]
    for path in oldest:
        os.utime(path, (0, 0))
    begin = store.positions.min
    store.retention.delete_expired()

    def are_deleted() -> bool:
        store.advance()
        store.retention.finish()
        return not any(path.exists() for path in oldest) and not store.retention.has_stale_queues

    eventually(are_deleted, "the deletion of files")
    assert store.positions.min > begin
    store.close()


@pytest.mark.parametrize("our_store", ["closed"], indirect=True)
def test_rocketmq_reads_a_store_after_raymq_retention(
    our_store: OurStore, java_store: JavaStore, conf: Path
) -> None:
    whole = list(dump(our_store.root))
    delete_the_oldest_files(our_store.root, 2)
    left = list(dump(our_store.root))
    assert 0 < len(left) < len(whole)

    java = java_store.read(our_store.root, conf)

    assert_rows_equal(left, java.rows)
    assert java.found == keys_in(java.rows) == raymq_query_results(our_store.root, java.found)


@pytest.mark.parametrize("our_store", ["closed"], indirect=True)
def test_rocketmq_reads_a_raymq_log_with_a_damaged_record(
    our_store: OurStore, java_store: JavaStore, conf: Path
) -> None:
    """RocketMQ also recovers from its newest files, so records before the damaged one are not truncated."""
    rows = list(dump(our_store.root))
    victim = next(row for row in rows if 0 < row["commitLogOffset"] < 500_000 and row["bodyLen"] > 20)
    with (our_store.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(victim["commitLogOffset"] + 8)  # the body's CRC
        file.write(b"\xff\xff\xff\xff")
    [damage] = verify(our_store.root).findings
    assert (damage.kind, damage.place) == ("hole", victim["commitLogOffset"])

    java = java_store.read(our_store.root, conf)

    others = [row for row in rows if row is not victim]
    place = (victim["topic"], victim["queueId"], victim["queueOffset"])
    undamaged = [row for row in java.rows if (row["topic"], row["queueId"], row["queueOffset"]) != place]
    assert_rows_equal(others, undamaged)


@pytest.mark.parametrize("ending", [pytest.param("clean", marks=pytest.mark.extended), "crashed"])
def test_dump_of_a_rocketmq_store_equals_what_rocketmq_reads(
    ending: str,
    request: pytest.FixtureRequest,
    java_store: JavaStore,
) -> None:
    unpack: Callable[[], RocketStore] = request.getfixturevalue(f"{ending}_store")
    fixture = unpack()
    ours = list(dump(fixture.root))

    java = java_store.read(fixture.root, fixture.broker_conf)

    assert_rows_equal(ours, java.rows)
    assert raymq_query_results(fixture.root, java.found) == java.found
