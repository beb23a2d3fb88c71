"""Settings that were changed while an actor ran outlive its process, but not the actor."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.host.kept_spec import FILE, KeptSpec, directory_of

MADE_WITH = {"name": "broker-a-0", "settings": {"permission": 6}}
CHANGED = {"name": "broker-a-0", "settings": {"permission": 4}}


def test_a_restart_begins_with_the_changed_settings(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "yet"
    assert KeptSpec(directory, "actor-1").load(MADE_WITH) == MADE_WITH
    KeptSpec(directory, "actor-1").keep(CHANGED)
    assert KeptSpec(directory, "actor-1").load(MADE_WITH) == CHANGED


def test_an_actor_that_is_made_anew_is_as_it_was_made(tmp_path: Path) -> None:
    KeptSpec(tmp_path, "actor-1").keep(CHANGED)
    assert KeptSpec(tmp_path, "actor-2").load(MADE_WITH) == MADE_WITH


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"actor_id": "actor-1"}'])
def test_a_damaged_file_never_keeps_an_actor_from_starting(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage)
    assert KeptSpec(tmp_path, "actor-1").load(MADE_WITH) == MADE_WITH


def test_every_kind_of_actor_has_its_place() -> None:
    assert directory_of({"settings": {"store_root": "/s"}}) == Path("/s")
    assert directory_of({"settings": {"data_dir": "/d"}}) == Path("/d")
