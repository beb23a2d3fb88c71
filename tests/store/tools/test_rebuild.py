"""`raymq store rebuild` recreates queues and index, resumes after a kill, and never changes the log."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import store.tools.rebuild as module
from cluster.cli.stores.store import app
from store.dispatch.dispatcher import Dispatcher
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.tools.info import store_info
from store.tools.rebuild import rebuild
from store.tools.verify import verify

ROCKETMQ_SIZES = {
    "commit_log_file_bytes": 1 << 20,
    "consume_queue_file_bytes": 20_000,
    "index_slots": 5000,
    "index_entries": 20_000,
}


class Killed(BaseException):
    """Stands for a SIGKILL: no `except Exception` catches it."""


@pytest.fixture
def closed(stores, draft, drain) -> Path:
    """Return the root of a cleanly closed store with several files of each kind."""
    store = stores.open()
    for number in range(120):
        store.append(draft(b"%d " % number * 20, queue_id=number % 3, keys=f"k{number}", tags="T"))
    drain(store)
    store.close()
    return store.root


def log_of(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (root / "commitlog").iterdir()
    }


def ruin(root: Path) -> None:
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(b"garbage" * 100)
    for path in (root / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def test_rebuild_restores_queues_and_index_byte_for_byte(stores, closed):
    files, log = stores.files(closed), log_of(closed)
    ruin(closed)
    done = rebuild(closed)
    assert (done.records, done.queues, done.holes, done.resumed_from) == (120, 3, 0, None)
    assert stores.files(closed) == files
    assert log_of(closed) == log
    assert verify(closed).findings == []
    assert not (closed / "abort").exists()
    again = stores.open()
    assert again.recovered.records == 1  # raymq.derived lets it start as after a clean close


def test_rebuild_resumes_after_a_kill_at_any_step(stores, closed, monkeypatch):
    files = stores.files(closed)
    monkeypatch.setattr(module, "_SLICE_BYTES", 4096)
    monkeypatch.setattr(module, "_NOTE_EVERY_BYTES", 5000)
    kill_points = [
        (module, "replace_file"), (module, "sync_directory"), (module.shutil, "rmtree"),
        (module, "sync_files"), (Dispatcher, "step"),
    ]  # fmt: skip
    resumed = 0
    for owner, name in kill_points:
        for step in range(40):
            root = stores.directory / f"killed-{name}-{step}"
            shutil.copytree(closed, root)
            if not killed_at(monkeypatch, owner, name, step, lambda root=root: rebuild(root)):
                break
            assert (root / "raymq.derived").exists()
            opened = stores.directory / f"opened-{name}-{step}"
            shutil.copytree(root, opened)
            stores.open(opened.name).close()  # a broker may open it at any time
            assert stores.files(opened) == files | rebuild_mark(opened), (name, step)
            done = rebuild(root)
            resumed += done.resumed_from is not None
            assert stores.files(root) == files, (name, step)
            assert verify(root).findings == []
            shutil.rmtree(root)
            shutil.rmtree(opened)
    assert resumed > 5


def rebuild_mark(root: Path) -> dict[str, str]:
    """Return raymq.rebuild as an entry of `stores.files`: a broker leaves that file as it is."""
    mark = root / "raymq.rebuild"
    return {mark.name: hashlib.sha256(mark.read_bytes()).hexdigest()} if mark.exists() else {}


def killed_at(monkeypatch, owner, name: str, step: int, work: Callable[[], object]) -> bool:
    """Do the work, with a kill before call number `step` of a function.

    Return False if it finished earlier.
    """
    calls = 0
    original = getattr(owner, name)

    def counted(*arguments, **named):
        nonlocal calls
        calls += 1
        if calls > step:
            raise Killed
        return original(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, counted)
        try:
            work()
        except Killed:
            return True
    return False


def test_rebuild_restarts_if_a_broker_has_written_since(stores, closed, draft, drain, monkeypatch):
    assert killed_at(monkeypatch, Dispatcher, "step", 2, lambda: rebuild(closed))
    assert rebuild(closed, dry_run=True).resumed_from is not None
    assert store_info(closed).rebuild_is_open
    store = stores.open()
    store.append(draft(b"later"))
    drain(store)
    store.close()
    assert not store_info(closed).rebuild_is_open
    done = rebuild(closed)
    assert (done.resumed_from, done.records) == (None, 121)
    assert verify(closed).findings == []


def test_rebuild_keeps_the_queue_offsets_of_a_hole(stores, closed, read_all):
    store = stores.open()
    victim = read_all(store, "Topic", 2)[-1]  # the last message of all
    before = read_all(store, "Topic", 2)
    middle = before[10]
    store.close()
    for message in (victim, middle):
        path = closed / "commitlog" / f"{message.commit_log_offset // 8192 * 8192:020d}"
        with path.open("r+b") as file:
            file.seek(message.commit_log_offset % 8192 + 90)
            file.write(b"\xff\xfe")
    assert rebuild(closed).holes == 1
    again = stores.open()
    assert read_all(again, "Topic", 2) == [each for each in before if each not in (victim, middle)]


@pytest.mark.parametrize("ending", ["clean", "crashed"])
def test_rebuilt_rocketmq_store_has_no_files_of_raymq(request, ending, clock):
    rocketmq = request.getfixturevalue(f"{ending}_store")()
    log = log_of(rocketmq.root)
    top = {path.name for path in rocketmq.root.iterdir()}
    assert rebuild(rocketmq.root).records > 2_400
    assert log_of(rocketmq.root) == log
    assert {path.name for path in rocketmq.root.iterdir()} == top
    assert verify(rocketmq.root).findings == []
    expected = [json.loads(line) for line in rocketmq.expected.read_text().splitlines()]
    settings = StoreSettings(**ROCKETMQ_SIZES)
    store = MessageStore.open(rocketmq.root, settings, StoreIdentity("C", "b"), clock, adopt=True)
    for line in expected[::50]:
        result = store.get_message(line["topic"], line["queueId"], line["queueOffset"], 1, 1 << 20)
        assert result.message_count == 1
    store.close()


def test_rebuild_refuses_an_open_store_and_changes_nothing(stores, draft, drain):
    store = stores.open()
    store.append(draft())
    drain(store)
    files = stores.files(store.root)
    with pytest.raises(StoreError, match="has this store open"):
        rebuild(store.root)
    result = CliRunner().invoke(app, ["rebuild", str(store.root)])
    assert result.exit_code == 2
    assert "stop that process first" in result.output.replace("\n", " ")
    assert stores.files(store.root) == files


def test_dry_run_reports_the_plan_and_changes_nothing(stores, closed):
    files = stores.files(closed)
    result = CliRunner().invoke(app, ["rebuild", str(closed), "--dry-run", "--json"])
    output = json.loads(result.stdout)
    assert (output["done"], output["queues"], output["resumedFrom"]) == (False, 3, None)
    assert stores.files(closed) == files


def test_rebuild_refuses_what_is_not_a_supported_store(tmp_path, closed):
    for path, reason in ((tmp_path / "absent", "no such directory"), (closed / "index", "not a store")):
        result = CliRunner().invoke(app, ["rebuild", str(path)])
        assert result.exit_code == 2
        assert reason in result.output.replace("\n", " ")
    (closed / "consumequeue_r" / "x").mkdir(parents=True)
    result = CliRunner().invoke(app, ["rebuild", str(closed)])
    assert "RocksDB consume queues are not supported" in result.output.replace("\n", " ")
