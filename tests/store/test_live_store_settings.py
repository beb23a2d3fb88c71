"""Live settings of a store that are neither of retention nor limits of messages."""

from __future__ import annotations

from pathlib import Path

from store.common.live_settings import LiveSettings

CHECKPOINT = "raymq.derived"


def test_changed_checkpoint_interval_applies_after_the_next_checkpoint(stores, draft, drain, clock):
    store = stores.open()
    live = LiveSettings(store.settings)
    live.update({"checkpoint_interval_ms": 7})

    def has_checkpoint_after(wait_ms: int) -> bool:
        before = (store.root / CHECKPOINT).stat().st_mtime_ns if (store.root / CHECKPOINT).exists() else 0
        store.append(draft())
        drain(store)
        clock.advance(wait_ms)
        for _ in range(3):
            store.advance()
            store.finish_background()
        path = store.root / CHECKPOINT
        return path.exists() and path.stat().st_mtime_ns > before

    assert has_checkpoint_after(5_000)  # the interval that had begun
    clock.advance(15_000)  # the pause after a slow checkpoint
    store.advance()
    store.finish_background()
    assert has_checkpoint_after(7)
    live.update({"checkpoint_interval_ms": 1_000_000})
    assert has_checkpoint_after(7)
    assert not has_checkpoint_after(7)


def test_changed_preallocation_applies_to_the_next_file(stores, draft):
    store = stores.open()
    live = LiveSettings(store.settings)

    def files_after_an_append() -> int:
        store.append(draft(b"x" * 3_000))
        store.advance()
        store.finish_background()
        return len(list((store.root / "commitlog").iterdir()))

    assert files_after_an_append() == 1
    live.update({"preallocate": True})
    assert files_after_an_append() > 1
    before_kib = locked_kib()
    live.update({"warm_mapped_file": True})
    for _ in range(4):
        files_after_an_append()
    assert locked_kib() > before_kib


def locked_kib() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck")]
    return int(line.split()[1])
