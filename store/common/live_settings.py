"""LiveSettings: settings that can change while a service runs.

All parts of a service share one settings object. They read a field that is annotated with LIVE each time they
need its value, so `LiveSettings` can change that object in place. A change of any other field needs a
restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from store.common.logs import get_logger

_log = get_logger(__name__)

Settings = TypeVar("Settings", bound=BaseModel)


class _Live:
    """Type of the annotation LIVE."""

    def __repr__(self) -> str:
        return "LIVE"


LIVE = _Live()


def live_names(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of the fields of `model` that can change while the service runs."""
    return frozenset(name for name, field in model.model_fields.items() if LIVE in field.metadata)


class Difference(NamedTuple):
    """A setting whose value differs between two settings objects of the same model.

    `path` contains the field names that lead to the setting, through inner models.
    """

    path: tuple[str, ...]
    wanted: Any
    is_live: bool

    @property
    def name(self) -> str:
        """The dotted name of the setting, such as `store.flush`."""
        return ".".join(self.path)


class LiveSettings(Generic[Settings]):
    """The settings of a running service, and the listeners that are called after each change."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._listeners: list[Callable[[list[Difference]], None]] = []

    def on_change(self, listener: Callable[[list[Difference]], None]) -> None:
        """Register a function to be called with the list of differences after every change."""
        self._listeners.append(listener)

    def change(self, wanted: Settings) -> list[Difference]:
        """Change the settings in place to those of `wanted`. Return the differences.

        Raises ValueError, and changes nothing, if settings differ that need a restart; the message names
        them.
        """
        changed = list(_differences(self.settings, wanted))
        fixed = [each.name for each in changed if not each.is_live]
        if fixed:
            raise ValueError(f"{', '.join(fixed)}: a change needs a restart")
        for each in changed:
            model: BaseModel = self.settings
            for part in each.path[:-1]:
                model = getattr(model, part)
            vars(model)[each.path[-1]] = each.wanted  # the model is frozen for all other code
        if changed:
            _log.info("settings_changed", **{each.name: str(each.wanted) for each in changed})
            for listener in self._listeners:
                listener(changed)
        return changed

    def update(self, changes: Mapping[str, Any]) -> list[Difference]:
        """Change some settings in place. Return the differences.

        `changes` maps field names to values; the value for an inner model is a mapping of the same form.
        Raises ValidationError for an invalid value, and ValueError if a setting needs a restart. Nothing is
        changed in both cases.
        """
        return self.change(_with_changes(self.settings, changes))


def _differences(present: BaseModel, wanted: BaseModel) -> Iterator[Difference]:
    for name, field in type(present).model_fields.items():
        old, new = getattr(present, name), getattr(wanted, name)
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            for inner in _differences(old, new):
                yield inner._replace(path=(name, *inner.path))
        elif old != new:
            yield Difference((name,), new, LIVE in field.metadata)


def _with_changes(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return a validated copy of `settings` with `changes` applied."""
    present = {name: getattr(settings, name) for name in type(settings).model_fields}
    for name, value in changes.items():
        inner = present.get(name)
        if isinstance(inner, BaseModel) and isinstance(value, Mapping):
            value = _with_changes(inner, value)
        present[name] = value
    return type(settings).model_validate(present)


def with_values(content: Mapping[str, Any], values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Return a copy of `content` with some values replaced.

    `content` holds settings as nested dicts. `values` maps the path of a setting (its field names) to the new
    value.
    """
    changed = dict(content)
    for path, value in values.items():
        place = changed
        for part in path[:-1]:
            place[part] = dict(place.get(part, {}))
            place = place[part]
        place[path[-1]] = value
    return changed
