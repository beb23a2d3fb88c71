"""Checkpoints at a time that a test chooses."""

from __future__ import annotations

from store.message_store import MessageStore


def make_checkpoint(store: MessageStore) -> None:
    """Make a checkpoint of all records on this thread, as each truncation does: this one drops nothing."""
    store.truncate_to(store.positions.written)
