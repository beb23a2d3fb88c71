"""Live settings change in place and together; other settings are refused with "needs a restart"."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from store.common.live_settings import LIVE, LiveSettings, live_names, with_values


class Inner(BaseModel):
    model_config = ConfigDict(frozen=True)

    size: int = 1
    pace: Annotated[int, LIVE] = Field(5, ge=1)


class Outer(BaseModel):
    model_config = ConfigDict(frozen=True)

    port: int = 1
    name: Annotated[str, LIVE] = "a"
    inner: Inner = Inner()


def test_live_settings_update_changes_the_settings_object_in_place() -> None:
    settings = Outer(inner=Inner())
    inner = settings.inner
    changed = LiveSettings(settings).update({"name": "b", "port": 1, "inner": {"pace": "7"}})
    assert [(each.name, each.wanted) for each in changed] == [("name", "b"), ("inner.pace", 7)]
    assert (settings.name, settings.inner is inner, inner.pace, inner.size) == ("b", True, 7, 1)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": "b", "port": 2, "inner": {"size": 3}}, r"port, inner\.size: a change needs a restart"),
        ({"name": "b", "inner": {"pace": 0}}, "greater than or equal to 1"),
    ],
)
def test_live_settings_update_with_one_invalid_change_changes_nothing(changes, error) -> None:
    settings = Outer(inner=Inner())
    with pytest.raises(ValueError, match=error):
        LiveSettings(settings).update(changes)
    assert settings == Outer()


def test_live_settings_listeners_receive_only_changed_settings() -> None:
    received: list[list[str]] = []
    live = LiveSettings(Outer(inner=Inner()))
    for _ in range(2):
        live.on_change(lambda changes: received.append([each.name for each in changes]))
    live.change(Outer(name="b", inner=Inner(pace=6)))
    live.change(Outer(name="b", inner=Inner(pace=6)))
    with pytest.raises(ValueError, match="port: a change needs a restart"):
        live.update({"name": "c", "port": 2})
    assert received == 2 * [["name", "inner.pace"]]


def test_live_names_come_from_the_model_annotations() -> None:
    assert live_names(Outer) == {"name"}
    with pytest.raises(ValidationError):
        Outer().name = "still frozen for everyone else"  # type: ignore[misc]


def test_with_values_does_not_modify_its_argument() -> None:
    given = {"a": 1, "store": {"x": 1, "y": 2}}
    assert with_values(given, {("store", "x"): 5, ("new", "z"): 6, ("a",): 0}) == {
        "a": 0,
        "store": {"x": 5, "y": 2},
        "new": {"z": 6},
    }
    assert given == {"a": 1, "store": {"x": 1, "y": 2}}
