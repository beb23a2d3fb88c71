"""Commands and start on a path that is not a store, or a store in which something replaces a file."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli.stores.store import app
from store.store_errors import StoreError
from store.tools.dump import dump

COMMANDS = (["verify"], ["info"], ["dump"], ["query", "Topic", "k"], ["rebuild", "--dry-run"])


def at(command: list[str], path: Path) -> list[str]:
    return [command[0], str(path), *command[1:]]


@pytest.fixture
def root(stores, draft, drain) -> Path:
    """Return the root of a cleanly closed store with three log files."""
    store = stores.open()
    for number in range(100):
        store.append(draft(b"%d " % number * 50, queue_id=number % 3, keys="k"))
    drain(store)
    store.close()
    return store.root


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


def make_loop(path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to(path)


def make_broken_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_command_refuses_a_path_that_is_not_a_directory(root, command):
    for path, reason in (
        (root / "nothing", "no such directory"),
        (root / "checkpoint", "is not a directory"),
    ):
        result = CliRunner().invoke(app, at(command, path))
        assert (result.exit_code, result.output) == (2, f"raymq store: {path}: {reason}\n")


@pytest.mark.parametrize(
    ("name", "make", "remedy"),
    [
        ("raymq.json", make_directory, "move away the directory"),
        ("raymq.derived", make_directory, "move away the directory"),
        ("commitlog", make_file, "move away the file of that name"),
        ("consumequeue", make_file, "move away the file of that name"),
        ("index", make_file, "move away the file of that name"),
        ("commitlog", make_loop, "move away the file of that name"),
        (f"commitlog/{0:020d}", make_broken_link, "No such file or directory"),
    ],
)
def test_wrong_kind_of_file_is_named_by_commands_and_start(
    stores, root, name: str, make: Callable[[Path], None], remedy: str
):
    make(root / name)
    for command in COMMANDS:
        result = CliRunner().invoke(app, at(command, root))
        assert isinstance(result.exception, SystemExit | None), command
        if result.exit_code not in (0, 1) or (result.exit_code == 1 and command[0] != "verify"):
            assert result.output.startswith(f"raymq store: {root}"), command
    with pytest.raises(StoreError, match=re.escape(f"{root / name}: cannot be opened: ") + f".*{remedy}"):
        stores.open()


@pytest.mark.parametrize("is_empty", [False, True])
def test_lost_log_file_is_refused_with_remedy_to_serve_all_others(stores, root, read_all, is_empty):
    places = [line["commitLogOffset"] for line in dump(root)]
    path = root / "commitlog" / f"{8192:020d}"
    path.unlink()
    if is_empty:
        path.touch()
    with pytest.raises(StoreError, match="truncate -s 8192") as refusal:
        stores.open()
    assert path.name in str(refusal.value)
    path.write_bytes(bytes(8192))  # as `truncate -s` creates it
    store = stores.open()
    left = [message for queue_id in range(3) for message in read_all(store, "Topic", queue_id)]
    lost = [place for place in places if 8192 <= place < 16384]
    assert sorted(message.commit_log_offset for message in left) == sorted(set(places) - set(lost))
    assert store.skipped == len(lost) > 20
