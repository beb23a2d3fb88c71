"""The next index file is created in advance on another thread; the content of the index is the same."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from store.commitlog import mapped_file
from store.message.record import RecordDraft
from store.message_store import MessageStore
from tests.store.conftest import SmallStores

Draft = Callable[..., RecordDraft]
MESSAGES = 100  # one key each; an index file has 64 entries


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the names of the threads that created files of the size of an index file, in order."""
    found: list[str] = []
    allocate_now = os.posix_fallocate

    def allocate(descriptor: int, offset: int, length: int) -> None:
        if length == 40 + 20 * 4 + 64 * 20:
            found.append(threading.current_thread().name)
        allocate_now(descriptor, offset, length)

    monkeypatch.setattr(mapped_file.os, "posix_fallocate", allocate)
    return found


def send(store: MessageStore, draft: Draft, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.append(draft(b"body", keys=f"key-{number}"))
        store.advance()
        store.finish_background()  # the disk is as fast as the sender
        store.advance()


def index_of(store: MessageStore) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted((store.root / "index").iterdir())]


def ahead(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name.startswith("index."))


def test_preallocated_index_file_gives_the_same_index(
    stores: SmallStores, draft: Draft, makers: list[str]
) -> None:
    plain, store = stores.open("plain"), stores.open("ahead", preallocate=True)
    send(plain, draft, 0, MESSAGES)
    makers.clear()
    send(store, draft, 0, MESSAGES)
    assert makers == [threading.current_thread().name, "store-background_0"]
    assert index_of(store) == index_of(plain)
    assert len(index_of(store)) == 2
    assert all(store.query_by_key("Topic", f"key-{number}") for number in range(MESSAGES))


def test_dispatch_creates_the_index_file_if_it_is_not_preallocated(
    stores: SmallStores, draft: Draft, makers: list[str], drain: Callable[[MessageStore], None]
) -> None:
    store = stores.open(preallocate=True)
    for number in range(MESSAGES):  # all in one dispatch step
        store.append(draft(b"body", keys=f"key-{number}"))
    drain(store)
    assert makers == [threading.current_thread().name] * 2
    assert all(store.query_by_key("Topic", f"key-{number}") for number in range(MESSAGES))


def test_preallocated_index_file_is_removed_at_shutdown_or_next_start(
    stores: SmallStores, draft: Draft
) -> None:
    store = stores.open(preallocate=True)
    send(store, draft, 0, 60)
    assert ahead(store.root) == ["index.ahead"]
    killed = stores.kill(store, "killed")
    store.close()
    assert ahead(store.root) == []
    (killed / "index-20260101000000000.new").write_bytes(b"half made")
    assert ahead(killed) == ["index.ahead"]
    again = stores.open("killed", preallocate=True)
    assert list(again.root.glob("index?*")) == []
    send(again, draft, 60, 40)
    assert all(again.query_by_key("Topic", f"key-{number}") for number in range(MESSAGES))


def test_failed_index_preallocation_is_reported_when_needed(
    stores: SmallStores, draft: Draft, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.open(preallocate=True)
    send(store, draft, 0, 40)
    is_full = True

    def allocate(descriptor: int, offset: int, length: int) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        os.ftruncate(descriptor, length)

    monkeypatch.setattr(mapped_file.os, "posix_fallocate", allocate)
    send(store, draft, 40, 20)
    assert store.write_refusal is None
    assert ahead(store.root) == []
    store.append(draft(b"body", keys="a b c d e f"))
    store.advance()
    assert "No space left" in (store.write_refusal or "")
    is_full = False
