"""Ownership of a store: one writer at a time, and only the broker that the store belongs to."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_errors import StoreError, StoreLocked
from store.store_settings import StoreSettings

HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


def test_new_store_gets_identity_and_refuses_second_writer_in_process(stores, draft):
    store = stores.open()
    assert (store.root / "raymq.json").exists()
    assert (store.root / "abort").read_text() == str(os.getpid())
    with pytest.raises(StoreError, match="already open in this process"):
        stores.open()
    store.append(draft())


def test_store_locked_by_another_process_is_refused_with_its_pid(stores):
    stores.open().close()
    lock = stores.directory / "store" / "lock"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(StoreLocked, match=f"locked by another process, PID {holder.pid}"):
            stores.open()
        holder.stdin.close()
    stores.open()


def test_store_of_another_broker_is_refused_with_its_identity(stores, clock):
    stores.open().close()
    root = stores.directory / "store"
    settings = StoreSettings(commit_log_file_bytes=8192, lock_timeout_ms=0)
    for other in (
        StoreIdentity("DefaultCluster", "broker-b", 0),
        StoreIdentity("DefaultCluster", "broker-a", 1),
        StoreIdentity("Other", "broker-a", 0),
    ):
        with pytest.raises(
            StoreError, match="belongs to broker 'broker-a', replica 0, of cluster 'DefaultCluster'"
        ):
            MessageStore.open(root, settings, other, clock)
    assert not (root / "abort").exists()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("commit_log_file_bytes", 16384),
        ("consume_queue_file_bytes", 800),
        ("index_slots", 21),
        ("index_entries", 9),
    ],
)
def test_other_file_size_is_refused_with_name_of_setting(stores, setting, value):
    stores.open().close()
    with pytest.raises(StoreError, match=f"created with {setting} .* set it to"):
        stores.open(**{setting: value})


def test_fenced_writer_acknowledges_nothing(stores, draft):
    store = stores.open()
    errors = []
    store.on_confirmed(store.append(draft()).size_bytes, errors.append)
    epoch = store.root / "raymq.epoch"
    number = int(epoch.read_text())
    successor = epoch.with_name("raymq.epoch.new")
    successor.write_text(f"{number + 1}\n")
    successor.rename(epoch)
    store.advance()
    assert "another writer" in str(errors[0])
    with pytest.raises(StoreError, match="another writer"):
        store.append(draft())
    store.close()
    assert int(epoch.read_text()) == number + 1
    assert (store.root / "abort").exists()


def test_each_open_increases_the_epoch(stores):
    numbers = []
    for _ in range(3):
        store = stores.open()
        numbers.append(int((store.root / "raymq.epoch").read_text()))
        store.close()
    assert numbers == [1, 2, 3]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"formatVersion": 9}', b'{"formatVersion": 1}'])
def test_damaged_identity_file_is_refused_and_not_changed(stores, damage):
    stores.open().close()
    path = stores.directory / "store" / "raymq.json"
    path.write_bytes(damage)
    with pytest.raises(StoreError, match=r"raymq\.json: (is not |has no valid field |store format 9)"):
        stores.open()
    assert path.read_bytes() == damage


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("batchconsumequeue/T/0", "batch consume queues"),
        ("consumequeue_r/x", "RocksDB"),
        ("consumequeue_ext/T", "extended consume queues"),
        ("consumequeue/%LMQ%x/0", "LMQ"),
        ("dledger-broker-a/data", "DLedger"),
    ],
)
def test_unsupported_kind_of_store_is_refused_and_not_changed(stores, directory, kind):
    (stores.directory / "store" / directory).mkdir(parents=True)
    with pytest.raises(StoreError, match=kind):
        stores.open(adopt=True)
    assert not (stores.directory / "store" / "raymq.json").exists()


def test_store_of_rocketmq_is_opened_only_with_adopt_store(stores, clean_store, clock):
    root = clean_store().root
    files = stores.files(root)
    sizes = {
        "commit_log_file_bytes": 1 << 20,
        "consume_queue_file_bytes": 20_000,
        "index_slots": 5000,
        "index_entries": 20_000,
    }
    identity = StoreIdentity("DefaultCluster", "broker-a")
    with pytest.raises(StoreError, match="set adopt_store: true"):
        MessageStore.open(root, StoreSettings(**sizes), identity, clock)
    with pytest.raises(StoreError, match="commit_log_file_bytes is 1,073,741,824"):
        MessageStore.open(root, StoreSettings(), identity, clock, adopt=True)
    wrong = StoreSettings(**{**sizes, "consume_queue_file_bytes": 40_000})
    with pytest.raises(StoreError, match="consume_queue_file_bytes is 40,000"):
        MessageStore.open(root, wrong, identity, clock, adopt=True)
    wrong = StoreSettings(**{**sizes, "index_slots": 6000})
    with pytest.raises(StoreError, match="index_slots 6,000"):
        MessageStore.open(root, wrong, identity, clock, adopt=True)
    assert stores.files(root) == files
    MessageStore.open(root, StoreSettings(**sizes), identity, clock, adopt=True).close()
    MessageStore.open(root, StoreSettings(**sizes), identity, clock).close()
