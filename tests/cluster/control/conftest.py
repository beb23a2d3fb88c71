"""Fixtures of the driver's tests."""

from __future__ import annotations

import pytest

from actors.host import ray_port


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return the contents of a key-value store that replaces Ray's."""
    values: dict[str, bytes] = {}

    def keys(_: str, prefix: str) -> list[str]:
        return [key for key in values if key.startswith(prefix)]

    monkeypatch.setattr(ray_port, "recalled_keys", keys)
    monkeypatch.setattr(ray_port, "recall", lambda _, key: values.get(key))
    monkeypatch.setattr(ray_port, "remember", lambda _, key, value: values.update({key: value}))
    monkeypatch.setattr(ray_port, "forget", lambda _, key: values.pop(key, None))
    return values
