"""A re-index gives the files of the broker and of `raymq store rebuild`, from independent tasks."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from store.message.properties import encode_properties
from store.message.record import RecordDraft
from store.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from store.recovery.summary import read_summary
from store.store_errors import StoreError, StoreLocked
from store.tools.rebuild import rebuild
from store.tools.reindex import swap as swap_module
from store.tools.reindex.run import Task, reindex
from store.tools.verify import verify
from tests.eventually import eventually

LOG_FILE_BYTES = 8192
BODY = 88


class Killed(BaseException):
    """Stands for a SIGKILL: no `except Exception` catches it."""


@dataclass
class BackwardEngine:
    """Runs the last task first, each from a pickled copy, so that tasks cannot depend on each other."""

    parallelism: int = 3
    stages: list[str] = field(default_factory=list)

    def run(self, description: str, tasks: Sequence[Task]) -> list[Any]:
        self.stages.append(description.rpartition(": ")[2])
        copies = [pickle.loads(pickle.dumps(task)) for task in tasks]
        results = [pickle.loads(pickle.dumps(task())) for task in reversed(copies)]
        return results[::-1]


def run(root: Path, **options: Any) -> Any:
    return reindex(BackwardEngine(), root, **options)


def fill(store: Any, draft: Any, clock: Any, drain: Any) -> None:
    """Append records of every kind: several topics and queues, no keys, many keys, transactions, delays."""
    for number in range(150):
        clock.advance(ms=1500)
        keys = " ".join(f"k{number}-{each}" for each in range(number % 4))
        store.append(draft(b"%d " % number * 20, queue_id=number % 3, keys=keys, tags="T", uniq=f"u{number}"))
        if number % 5 == 0:
            flag = (TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)[number % 3]
            store.append(draft(b"half", "späte", 1, keys="half", sys_flag=flag))
        if number % 7 == 0:
            properties = encode_properties({"DELAY": "2", "REAL_TOPIC": "Topic"})
            store.append(RecordDraft("SCHEDULE_TOPIC_XXXX", 1, b"later", properties))
    drain(store)


@pytest.fixture
def closed(stores, draft, drain, clock) -> Path:
    """Return the root of a cleanly closed store with several files of each kind."""
    store = stores.open()
    fill(store, draft, clock, drain)
    store.close()
    return store.root


def ruin(root: Path) -> None:
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(b"garbage" * 100)
    for path in (root / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def damage(root: Path, position: int, content: bytes) -> None:
    """Overwrite bytes of the log at a CommitLog offset."""
    base = position - position % LOG_FILE_BYTES
    with (root / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(position - base)
        file.write(content)


def rebuilt(stores: Any, root: Path) -> dict[str, str]:
    """Return the files of a copy of the store after `rebuild`."""
    copy = root.with_name(f"{root.name}-rebuilt")
    shutil.copytree(root, copy)
    rebuild(copy)
    return stores.files(copy)


def test_reindex_restores_queues_and_index_byte_for_byte(stores, closed):
    files = stores.files(closed)
    assert sum(name.startswith("index/") for name in files) > 3
    assert sum(name.startswith("commitlog/") for name in files) > 3
    ruin(closed)
    done = run(closed)
    assert (done.queues, done.damage, done.differences) == (5, [], [])
    assert stores.files(closed) == files
    assert verify(closed).findings == []
    assert not (closed / "abort").exists()
    again = stores.open()
    assert again.recovered.records == 1  # raymq.derived lets it start as after a clean close


@pytest.mark.parametrize("parallelism", [1, 2, 16])
def test_reindex_gives_the_same_files_for_any_number_of_tasks(stores, closed, parallelism):
    files = stores.files(closed)
    shutil.rmtree(closed / "consumequeue")
    shutil.rmtree(closed / "index")
    engine = BackwardEngine(parallelism)
    reindex(engine, closed)
    assert engine.stages == ["scan", "write"]
    assert stores.files(closed) == files


@pytest.mark.parametrize("ending", ["clean", "crashed"])
def test_reindex_of_a_rocketmq_store_equals_its_rebuild(request, stores, ending):
    root = request.getfixturevalue(f"{ending}_store")().root
    before = stores.files(root)
    top = {path.name for path in root.iterdir()}
    expected = rebuilt(stores, root)
    done = run(root)
    assert done.records > 2_400
    assert stores.files(root) == expected
    if ending == "clean":  # RocketMQ's own queues, byte for byte
        assert {name: each for name, each in before.items() if name.startswith("consumequeue/")}.items() <= (
            stores.files(root).items()
        )
    assert {path.name for path in root.iterdir()} == top


def test_reindex_skips_and_reports_damaged_records_with_position(stores, closed, read_all):
    store = stores.open()
    messages = [read_all(store, "Topic", queue)[20] for queue in range(3)]
    store.close()
    positions = sorted(message.commit_log_offset for message in messages)
    for position in positions[:2]:
        damage(closed, position + BODY + 2, b"\xff\xfe")
    damage(closed, positions[2] + 20, (999_999).to_bytes(8, "big"))  # its queue offset, which no CRC covers
    done = run(closed)
    places = [(each.path, each.place, each.kind) for each in done.damage]
    for position, kind, at in zip(positions, ("hole", "hole", "log"), (0, 0, 20), strict=True):
        base = position - position % LOG_FILE_BYTES
        assert (f"commitlog/{base:020d}", position - base + at, kind) in places
    assert len(places) == 3
    assert "CRC" in done.damage[0].reason
    assert stores.files(closed) == rebuilt(stores, closed)
    again = stores.open()
    assert len(read_all(again, "Topic", 0)) == 49


def test_reindex_of_a_killed_store_ends_before_the_incomplete_append(stores, draft, drain, clock):
    store = stores.open()
    fill(store, draft, clock, drain)
    end = store.positions.written
    store.append_batch(draft(b""), batch_of(3))
    assert store.positions.written > end
    killed = stores.kill(store, "killed")
    damage(killed, end, bytes(8))  # the first 8 bytes of an append are written last
    expected = rebuilt(stores, killed)
    done = run(killed)
    assert (done.log_end, done.damage) == (end, [])
    assert stores.files(killed) == expected
    opened = stores.open("killed")
    assert opened.positions.written == end


def batch_of(count: int) -> bytes:
    """Return the body of a batch request with `count` messages (total size, magic, CRC, flag, body, …)."""
    body = b"in a batch"
    one = [22 + len(body), 0, 0, 0, len(body)]
    return (b"".join(each.to_bytes(4, "big") for each in one) + body + bytes(2)) * count


def test_reindex_follows_gaps_and_recreated_topics_as_a_rebuild_does(stores, draft, drain, clock):
    store = stores.open()
    fill(store, draft, clock, drain)
    store.delete_topic("Topic")
    for number in range(40):
        store.append(draft(b"again %d" % number, queue_id=number % 2, keys="a"))
    drain(store)
    store.close()
    root = store.root
    first = min((root / "commitlog").iterdir())
    first.unlink()  # as retention does: the queues begin after offset 0
    expected = rebuilt(stores, root)
    run(root)
    assert stores.files(root) == expected
    assert any(name.startswith("consumequeue/Topic/0/") for name in expected)


def test_check_reports_differences_and_writes_nothing(stores, closed):
    unit = closed / "consumequeue" / "Topic" / "1" / f"{0:020d}"
    with unit.open("r+b") as file:
        file.seek(7 * 20 + 12)
        file.write(b"\x01")
    index = min((closed / "index").iterdir())
    with index.open("r+b") as file:
        file.seek(40 + 4 * 20 + 20)
        file.write(b"\x7f")
    files = stores.files(closed)
    done = run(closed, check=True)
    assert stores.files(closed) == files
    assert not (closed / "raymq.reindex").exists()
    found = {(each.path, each.kind): each.reason for each in done.differences}
    assert "unit 7: tagsCode" in found[f"consumequeue/Topic/1/{0:020d}", "unit"]
    assert (f"index/{index.name}", "index") in found
    assert done.differences == verify(closed).findings
    run(closed)
    assert run(closed, check=True).differences == []


def test_check_names_missing_units_with_queue_and_offsets(closed):
    path = closed / "consumequeue" / "Topic" / "2" / f"{400:020d}"  # queue offsets 20 to 39
    path.unlink()
    (difference,) = run(closed, check=True).differences
    assert (difference.path, difference.reason) == (
        f"consumequeue/Topic/2/{400:020d}",
        "the file with units 20 to 39 is missing",
    )


def test_reindex_without_index_removes_it_and_a_broker_rebuilds_it(stores, closed):
    files = stores.files(closed)
    assert run(closed, with_index=False).index_files == 0
    assert list((closed / "index").iterdir()) == []
    stores.open().close()
    assert stores.files(closed) == files


def test_broker_opens_the_store_after_a_kill_at_any_step_of_the_swap(stores, closed, monkeypatch):
    files = stores.files(closed)
    for path in (closed / "consumequeue" / "Topic").iterdir():
        (path / f"{0:020d}").write_bytes(bytes(400))
    steps = ("sync_file_system", "replace_file", "sync_directory", "remove_work", "_rename")
    kills = 0
    for name in steps:
        for step in range(4):
            root = stores.directory / f"killed-{name}-{step}"
            shutil.copytree(closed, root)
            if not killed_at(monkeypatch, name, step, root):
                break
            kills += 1
            stores.open(root.name).close()
            assert without_work(stores.files(root)) == files, (name, step)
            assert verify(root).findings == []
            run(root)
            assert stores.files(root) == files, (name, step)
    assert kills > 7


def test_broker_opens_the_store_after_a_kill_between_the_renames(stores, closed, monkeypatch):
    files = stores.files(closed)
    for step in range(4):
        root = stores.directory / f"renamed-{step}"
        shutil.copytree(closed, root)
        original, calls = Path.rename, []

        def counted(path: Path, target: Path, calls=calls, step=step, original=original) -> Path:
            if Path(target).name in ("consumequeue", "index"):
                calls.append(path)
                if len(calls) > step:
                    raise Killed
            return original(path, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", counted)
            patched.setattr("store.tools.reindex.run.swap.remove_work", lambda _: None)
            with pytest.raises(Killed):
                run(root)
        stores.open(root.name).close()
        assert without_work(stores.files(root)) == files, step
        run(root)
        assert stores.files(root) == files


def without_work(files: dict[str, str]) -> dict[str, str]:
    """Return the files without those that a killed job left in its work directory."""
    return {name: each for name, each in files.items() if not name.startswith("raymq.reindex/")}


def killed_at(monkeypatch, name: str, step: int, root: Path) -> bool:
    """Re-index with a kill before call number `step` of a function of the swap.

    Return False if there were fewer calls. The first call of `remove_work` precedes the swap.
    """
    calls = 0
    original = getattr(swap_module, name)

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > step:
            raise Killed
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(swap_module, name, counted)
        try:
            run(root)
        except Killed:
            return True
    return False


def test_open_store_is_refused_and_unchanged(stores, draft, drain):
    store = stores.open()
    store.append(draft())
    drain(store)
    files = stores.files(store.root)
    with pytest.raises(StoreError, match="has this store open: stop the broker"):
        run(store.root)
    assert stores.files(store.root) == files


def test_check_of_an_open_store_compares_it_up_to_its_checkpoint(stores, draft, drain, clock):
    """A broker appends, rolls files and makes checkpoints while the tasks of the check run."""
    store = stores.open(checkpoint_interval_ms=1_000)
    (store.root / "raymq.derived").unlink()
    with pytest.raises(StoreError, match="no checkpoint yet: try again later"):
        run(store.root, check=True)
    fill(store, draft, clock, drain)

    def has_checkpoint() -> bool:
        drain(store)
        summary = read_summary(store.root, store.identity.store_id)
        return summary is not None and summary.position > 2 * LOG_FILE_BYTES

    eventually(has_checkpoint, "a checkpoint")

    class Appending(BackwardEngine):
        def run(self, description: str, tasks: Sequence[Task]) -> list[Any]:
            fill(store, draft, clock, drain)
            results = super().run(description, tasks)
            fill(store, draft, clock, drain)
            return results

    done = reindex(Appending(), store.root, check=True)
    assert (done.differences, done.damage) == ([], [])
    assert 0 < done.log_end < store.positions.written
    assert done.records >= 180
    assert "has this store open" in done.notes[0]
    unit = store.root / "consumequeue" / "Topic" / "1" / f"{0:020d}"
    with unit.open("r+b") as file:
        file.seek(7 * 20 + 12)
        file.write(b"\x01")
    (difference,) = reindex(Appending(), store.root, check=True).differences
    assert "unit 7: tagsCode" in difference.reason


def test_second_reindex_of_the_same_store_is_refused(closed):
    class Second(BackwardEngine):
        def run(self, description: str, tasks: Sequence[Task]) -> list[Any]:
            with pytest.raises(StoreError, match="another re-index of this store is running"):
                run(closed, check=True)
            return super().run(description, tasks)

    reindex(Second(), closed, check=True)


def test_interrupted_rebuild_and_lmq_queues_are_refused(closed, monkeypatch):
    (closed / "consumequeue" / "%LMQ%light" / "0").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"light message queues \(LMQ\) are not supported"):
        run(closed)
    shutil.rmtree(closed / "consumequeue" / "%LMQ%light")
    with monkeypatch.context() as patched:
        patched.setattr("store.tools.rebuild.Dispatcher.step", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            rebuild(closed)
    with pytest.raises(StoreError, match="run `raymq store rebuild` again to resume it"):
        run(closed)
    rebuild(closed)
    assert run(closed, check=True).differences == []


def test_broker_cannot_open_the_store_during_a_reindex(stores, closed):
    class Opening(BackwardEngine):
        def run(self, description: str, tasks: Sequence[Task]) -> list[Any]:
            with pytest.raises((StoreLocked, StoreError), match="already open"):
                stores.open()
            return super().run(description, tasks)

    reindex(Opening(), closed)


def test_what_is_not_a_store_is_refused(stores, closed, tmp_path):
    for root, reason in (
        (tmp_path / "absent", "no such directory"),
        (closed / "index", "not a store"),
        (closed / "checkpoint", "is not a directory"),
    ):
        with pytest.raises(StoreError, match=reason):
            run(root)
    (closed / "consumequeue_r" / "x").mkdir(parents=True)
    with pytest.raises(StoreError, match="RocksDB consume queues are not supported"):
        run(closed)


def test_short_and_missing_log_files_are_refused_by_name(stores, closed):
    log = sorted((closed / "commitlog").iterdir())
    content = log[1].read_bytes()
    log[1].write_bytes(content[:-1])
    files = stores.files(closed)
    with pytest.raises(StoreError, match=f"{log[1].name}: the file has 8,191 bytes"):
        run(closed)
    assert stores.files(closed) == files
    log[1].unlink()
    with pytest.raises(StoreError, match=f"the preceding file {log[1].name} is missing"):
        run(closed)


def test_linked_queue_directory_is_refused(closed, tmp_path):
    (closed / "consumequeue").rename(tmp_path / "elsewhere")
    (closed / "consumequeue").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot be replaced by rename: use `raymq store rebuild`"):
        run(closed)


def test_empty_store_is_reindexed(stores):
    store = stores.open()
    store.close()
    done = run(store.root)
    assert (done.records, done.queues, done.index_files, done.log_end) == (0, 0, 0, 0)
    assert run(store.root, check=True).differences == []
