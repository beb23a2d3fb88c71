"""`raymq replica resync` sets the log of a diverged slave aside; nothing is lost, also after a kill."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster.cli.main import build
from store.ownership.divergence import DIVERGED_FILE, Divergence, read_divergence, write_divergence
from store.ownership.identity import read_name
from store.store_errors import StoreError
from store.tools.dump import dump
from store.tools.resync import resyncing
from tests.store.conftest import SmallStores, a_draft

FILE_BYTES = 8192


def resync(root: Path, *options: str) -> Result:
    command = ["replica", "resync", str(root), "--yes", *options]
    return CliRunner().invoke(build(command), command)


def diverged(stores: SmallStores, messages: int = 60, equal: int = 40, **more: int) -> Path:
    """Return the root of a closed slave whose first `equal` messages are the master's."""
    store = stores.open()
    position = 0
    for number in range(messages):
        if number == equal:
            position = store.positions.written
        store.append(a_draft(b"%04d" % number * 50, keys=f"k{number}"))
    store.dispatch_now()
    store.close()
    config = store.root / "config"
    config.mkdir()
    for name in ("topics.json", "delayOffset.json", "timercheck", "consumerOffset.json"):
        (config / name).write_text(f"{{}} {name}")
    found = {"position": position, "commit_log_file_bytes": FILE_BYTES, **more}
    write_divergence(store.root, Divergence(master="10.0.0.1:10911", epoch=3, reason="differs", **found))
    return store.root


def test_resync_sets_the_log_aside_and_keeps_identity_and_tables(stores: SmallStores) -> None:
    root = diverged(stores)
    before, name = stores.files(root), read_name(root)
    plan = json.loads(resync(root, "--dry-run").stdout)
    assert stores.files(root) == before
    assert (plan["messages"], plan["master"], plan["done"]) == (20, "10.0.0.1:10911", False)
    done = json.loads(resync(root).stdout)
    assert done == {**plan, "done": True}
    aside = Path(done["directory"])
    assert aside == root.with_name("store.before-resync-1")
    assert stores.files(aside) == {k: v for k, v in before.items() if k != "config/consumerOffset.json"}
    assert sorted(stores.files(root)) == ["config/consumerOffset.json", "config/topics.json"]
    assert read_name(root) == read_name(aside) == name
    lines = [line for line in dump(aside) if line["commitLogOffset"] >= done["position"]]
    assert [line["keys"] for line in lines] == [f"k{number}" for number in range(40, 60)]
    again = stores.open()  # the broker starts with an empty log
    assert (again.positions.written, again.max_offset("Topic", 0)) == (0, 0)


def test_resync_can_be_repeated_after_a_kill_at_each_rename(
    stores: SmallStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = diverged(stores)
    before, rename = stores.files(root), Path.rename
    renames = 0

    def killed(path: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames > 1:
            raise OSError(errno.EIO, "killed", str(path))
        return rename(path, target)

    for _ in range(20):
        renames = 0  # each run makes one more step
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", killed)
            result = resync(root)
        if result.exit_code == 0:
            break
        assert (root / DIVERGED_FILE).exists(), result.output
    assert result.exit_code == 0, result.output
    aside = root.with_name("store.before-resync-1")
    assert json.loads(result.stdout)["directory"] == str(aside)
    assert stores.files(aside) | stores.files(root) == before
    assert len(list(root.parent.glob("*before-resync*"))) == 1


def test_resync_after_a_start_in_between_uses_another_directory(
    stores: SmallStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = diverged(stores)
    log = {name: found for name, found in stores.files(root).items() if name.startswith("commitlog")}
    with monkeypatch.context() as patch:
        rename = Path.rename

        def fails_at_log(path: Path, target: Path) -> Path:
            if path.name == "commitlog":
                raise OSError(errno.EIO, "killed", str(path))
            return rename(path, target)

        patch.setattr(Path, "rename", fails_at_log)
        assert resync(root).exit_code == 1
    store = stores.open()
    assert store.max_offset("Topic", 0) == 60  # derived again from the log
    store.close()
    done = json.loads(resync(root).stdout)
    assert done["directory"] == str(root.with_name("store.before-resync-2"))
    assert log.items() <= stores.files(Path(done["directory"])).items()


@pytest.mark.parametrize(("into", "messages"), [(0, 20), (1, 20), (-1, 21)])
def test_messages_are_counted_that_end_after_the_position(
    stores: SmallStores, into: int, messages: int
) -> None:
    root = diverged(stores)
    found = read_divergence(root)
    assert found is not None
    write_divergence(root, Divergence(found.position + into, "m", 0, FILE_BYTES, "differs"))
    assert json.loads(resync(root, "--dry-run").stdout)["messages"] == messages


def test_log_before_the_masters_oldest_file_has_no_messages_of_its_own(stores: SmallStores) -> None:
    root = diverged(stores, equal=61, position=10**9)
    plan = json.loads(resync(root).stdout)
    assert (plan["messages"], plan["logBegin"], plan["done"]) == (0, 0, True)


def test_resync_takes_the_size_of_the_masters_log_files(stores: SmallStores) -> None:
    root = diverged(stores, equal=0, commit_log_file_bytes=2 * FILE_BYTES)
    done = json.loads(resync(root).stdout)
    sizes = [
        name.commit_log_file_bytes for each in (root, done["directory"]) if (name := read_name(Path(each)))
    ]
    assert sizes == [2 * FILE_BYTES, FILE_BYTES]
    assert done["messages"] == 60
    assert stores.open(commit_log_file_bytes=2 * FILE_BYTES).positions.written == 0


def test_store_without_a_known_divergence_is_refused(stores: SmallStores, tmp_path: Path) -> None:
    for root, error in (
        (tmp_path / "missing", "no such directory"),
        (tmp_path, "not a store of RayMQ: it has no raymq.json"),
        (diverged(stores), ""),
    ):
        if error:
            result = resync(root)
            assert (result.exit_code, error in result.stderr) == (2, True), result.output
    (root / DIVERGED_FILE).write_text('{"position": -1}')
    before = stores.files(root)
    result = resync(root)
    assert (result.exit_code, "is damaged: " in result.stderr) == (2, True), result.output
    (root / DIVERGED_FILE).unlink()
    result = resync(root)
    assert (result.exit_code, "has no diverged.json" in result.stderr) == (2, True), result.output
    before.pop(DIVERGED_FILE)
    assert stores.files(root) == before
    assert not list(tmp_path.glob("*before-resync*"))


def test_open_store_is_refused(stores: SmallStores) -> None:
    root = diverged(stores)
    stores.open()
    result = resync(root)
    assert (result.exit_code, "has this store open: stop that process" in result.stderr) == (2, True)


def test_log_outside_of_the_store_is_refused(stores: SmallStores, tmp_path: Path) -> None:
    root = diverged(stores)
    (root / "commitlog").rename(tmp_path / "elsewhere")
    (root / "commitlog").symlink_to(tmp_path / "elsewhere")
    before = stores.files(root)
    result = resync(root)
    assert (result.exit_code, "elsewhere by hand" in result.stderr) == (2, True), result.output
    assert stores.files(root) == before


def test_other_file_system_is_refused_by_name(stores: SmallStores, monkeypatch: pytest.MonkeyPatch) -> None:
    root = diverged(stores)
    before, rename = stores.files(root), Path.rename

    def across(path: Path, target: Path) -> Path:
        if path.parent != Path(target).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", across)
    with (
        pytest.raises(StoreError, match=r"not on the file system of .* elsewhere by hand"),
        resyncing(root) as work,
    ):
        work.run()
    assert stores.files(root) == before
