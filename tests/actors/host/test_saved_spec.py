"""Changed settings are used after a restart of the same actor, but not by a new actor."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.host.saved_spec import FILE, SavedSpec, directory_of

INITIAL = {"name": "broker-a-0", "settings": {"permission": 6}}
CHANGED = {"name": "broker-a-0", "settings": {"permission": 4}}


def test_restart_uses_the_changed_settings(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "yet"
    assert SavedSpec(directory, "actor-1").load(INITIAL) == INITIAL
    SavedSpec(directory, "actor-1").save(CHANGED)
    assert SavedSpec(directory, "actor-1").load(INITIAL) == CHANGED


def test_new_actor_ignores_the_spec_of_its_predecessor(tmp_path: Path) -> None:
    SavedSpec(tmp_path, "actor-1").save(CHANGED)
    assert SavedSpec(tmp_path, "actor-2").load(INITIAL) == INITIAL


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"actor_id": "actor-1"}'])
def test_damaged_spec_file_does_not_prevent_a_start(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    assert SavedSpec(tmp_path, "actor-1").load(INITIAL) == INITIAL


def test_each_kind_of_actor_has_a_directory() -> None:
    assert directory_of({"settings": {"store_root": "/s"}}) == Path("/s")
    assert directory_of({"settings": {"data_dir": "/d"}}) == Path("/d")
