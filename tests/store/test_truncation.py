"""Truncation of the log of a replica: what it invalidates, where it may cut, and what it leaves on disk."""

from __future__ import annotations


def test_truncation_invalidates_the_flush_job_in_flight(stores, draft):
    """Bytes written after a truncation were never synced by a flush that began before it."""
    store = stores.open(flush="sync")
    store.append(draft(b"1"))
    store.flush_now()
    cut = store.append(draft(b"2" * 500)).physical_offset
    job = store.flush_job()
    job.run()
    store.truncate_to(cut)
    store.append(draft(b"3" * 100))
    store.flush_done(job)
    assert store.positions.flushed == cut
    store.flush_now()
    assert store.positions.flushed == store.positions.written


def test_flush_begins_anew_after_a_truncation_without_waiting_for_the_old_job(stores, draft):
    store = stores.open(flush="sync")
    cut = store.append(draft(b"1")).physical_offset
    old = store.flush_job()
    store.truncate_to(cut)
    store.append(draft(b"2"))
    new = store.flush_job()
    assert new is not None
    old.run()
    store.flush_done(old)
    assert store.flush_job() is None  # the new job is still in flight
    new.run()
    store.flush_done(new)
    assert store.positions.flushed == store.positions.written
