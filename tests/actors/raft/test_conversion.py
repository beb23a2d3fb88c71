"""The store of a single broker becomes the only member of a Raft group, and that of a single broker again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.raft.conversion import (
    GROUP_TABLES_FILE,
    LEFT_FILE,
    UNKNOWN,
    bootstrap_group,
    check_first,
    leave_group,
    prepare_to_join,
    refuse_member,
)
from actors.raft.effects import SavedTerm
from actors.raft.epoch_file import EPOCH_FILE_CHECKPOINT, FENCED_FILE, epoch_file_text
from actors.raft.group_record import GROUP_TOPIC
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from actors.raft.term_file import TERM_FILE, TermFile
from store.common.clock import SystemClock
from store.message_store import MessageStore
from store.ownership.divergence import DIVERGED_FILE
from store.ownership.first_copy import COPYING_FILE
from store.ownership.identity import StoreIdentity
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from tests.store.conftest import a_draft

IDENTITY = StoreIdentity("C", "a")
Steps = Callable[[Path, StoreIdentity], None]


def opened(root: Path) -> MessageStore:
    return MessageStore.open(
        root, StoreSettings(commit_log_file_bytes=1 << 16), IDENTITY, SystemClock(), adopt=False
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with a message, which is not open."""
    store = opened(tmp_path / "store")
    store.append(a_draft())
    store.close()
    return tmp_path / "store"


def term_file(root: Path, name: str = TERM_FILE) -> TermFile:
    content = json.loads((root / "raymq.json").read_bytes())
    return TermFile(root, "C/a", Member(0, content["storeId"]), name)


def log_of(root: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted((root / "commitlog").iterdir()))


def test_store_becomes_the_only_member_and_is_left_again(root: Path) -> None:
    before = log_of(root)
    check_first(root, IDENTITY)
    for _ in range(2):  # an interrupted migration repeats it
        bootstrap_group(root, IDENTITY)
        saved = term_file(root).read()
        assert saved is not None
        assert len(saved.first_members.voters) == 1
        assert (saved.term, saved.history) == (0, ())
        with pytest.raises(StoreError, match="raymq migrate"):
            refuse_member(root)
        tables = json.loads((root / "config" / GROUP_TABLES_FILE).read_bytes())
        assert tables == {"entries": [], "fullSetFrom": UNKNOWN, "nextOffset": UNKNOWN}
    for _ in range(2):
        leave_group(root, IDENTITY)
        refuse_member(root)
        assert (root / LEFT_FILE).exists()
    assert log_of(root) == before
    opened(root).close()


def test_group_that_is_left_continues_its_history_when_it_begins_again(root: Path) -> None:
    bootstrap_group(root, IDENTITY)
    me = term_file(root).read().first_members.voters[0]  # type: ignore[union-attr]
    group = (GroupRecord(10, 1, Members((me, Member(1, "b")))), GroupRecord(50, 3, Members((me,))))
    known = SavedTerm(3, me, True, Members((me,)), group)
    term_file(root).write(known)
    (root / "config" / GROUP_TABLES_FILE).write_text('{"entries": [["topic", "old", {}]]}')
    leave_group(root, IDENTITY)
    bootstrap_group(root, IDENTITY)
    assert term_file(root).read() == known
    assert b"old" not in (root / "config" / GROUP_TABLES_FILE).read_bytes()


def test_first_term_follows_the_epochs_of_the_master(root: Path) -> None:
    (root / EPOCH_FILE_CHECKPOINT).write_text(epoch_file_text([(2, 0), (7, 50)]))
    bootstrap_group(root, IDENTITY)
    saved = term_file(root).read()
    assert saved is not None
    assert saved.term == 7


def test_replica_that_is_to_join_has_no_members(root: Path) -> None:
    prepare_to_join(root, IDENTITY, term_file(root)._me.store_id)  # noqa: SLF001
    assert term_file(root).read() == SavedTerm()


@pytest.mark.parametrize("step", [check_first, bootstrap_group, leave_group])
def test_store_of_a_group_with_other_members_is_refused(root: Path, step: Steps) -> None:
    bootstrap_group(root, IDENTITY)
    me = term_file(root).read().first_members.voters[0]  # type: ignore[union-attr]
    for members in (Members((me, Member(1, "b"))), Members((me,), (Member(2, "c"),)), Members()):
        term_file(root).write(SavedTerm(first_members=members))
        content = (root / TERM_FILE).read_bytes()
        with pytest.raises(StoreError, match="raymq replica remove"):
            step(root, IDENTITY)
        assert (root / TERM_FILE).read_bytes() == content


@pytest.mark.parametrize("step", [check_first, bootstrap_group, leave_group])
def test_store_of_another_cluster_or_no_store_is_refused(root: Path, step: Steps) -> None:
    with pytest.raises(StoreError, match="is the store of"):
        step(root, StoreIdentity("Other", "a"))
    with pytest.raises(StoreError, match="there is no store"):
        step(root.parent / "none", IDENTITY)
    assert not (root / TERM_FILE).exists()


@pytest.mark.parametrize("file", [FENCED_FILE, DIVERGED_FILE, COPYING_FILE])
def test_store_that_is_not_the_masters_is_refused(root: Path, file: str) -> None:
    (root / file).write_text("{}")
    with pytest.raises(StoreError, match="promote this replica first"):
        check_first(root, IDENTITY)


def test_store_that_has_lost_its_history_is_refused(root: Path) -> None:
    (root / "consumequeue" / GROUP_TOPIC).mkdir(parents=True)
    with pytest.raises(StoreError, match=rf"but no {LEFT_FILE}"):
        bootstrap_group(root, IDENTITY)
    with pytest.raises(StoreError, match="is not the store of a replica"):
        leave_group(root, IDENTITY)


@pytest.mark.parametrize("step", [bootstrap_group, leave_group])
def test_open_store_is_not_converted(root: Path, step: Steps) -> None:
    store = opened(root)
    with pytest.raises(StoreError, match="already open"):
        step(root, IDENTITY)
    store.close()
