"""Settings that may change while a service runs.

A field that is annotated with LIVE is read where it is used, every time, from the one settings object that
all parts of a service share; so it is changed in that object. Any other needs a restart.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel


class _Live:
    """The mark; there is one."""

    def __repr__(self) -> str:
        return "LIVE"


LIVE = _Live()


def live_names(model: type[BaseModel]) -> frozenset[str]:
    """The fields of a settings model that may change while its service runs."""
    return frozenset(name for name, field in model.model_fields.items() if LIVE in field.metadata)


class Difference(NamedTuple):
    """A setting that two settings objects of one model have otherwise; `path` leads into inner models."""

    path: tuple[str, ...]
    wanted: Any
    is_live: bool

    @property
    def name(self) -> str:
        """As people write it: `store.flush`."""
        return ".".join(self.path)


def differences(present: BaseModel, wanted: BaseModel) -> Iterator[Difference]:
    """What `wanted` has otherwise; both are of one model."""
    for name, field in type(present).model_fields.items():
        old, new = getattr(present, name), getattr(wanted, name)
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            for inner in differences(old, new):
                yield inner._replace(path=(name, *inner.path))
        elif old != new:
            yield Difference((name,), new, LIVE in field.metadata)


def take_over(present: BaseModel, wanted: BaseModel) -> list[Difference]:
    """Change `present` in place to what `wanted` has, all or nothing; returns what has changed.

    Raises ValueError, naming them, when there are settings among these that need a restart.
    """
    found = list(differences(present, wanted))
    fixed = [each.name for each in found if not each.is_live]
    if fixed:
        raise ValueError(f"{', '.join(fixed)}: a change needs a restart")
    for each in found:
        place = present
        for part in each.path[:-1]:
            place = getattr(place, part)
        vars(place)[each.path[-1]] = each.wanted  # the model is frozen for everyone else
    return found


def with_changes(settings: BaseModel, changes: Mapping[str, Any]) -> BaseModel:
    """Checked settings like these, but for `changes`: by field name, inner models as mappings.

    Raises ValidationError for a value that cannot be.
    """
    present = {name: getattr(settings, name) for name in type(settings).model_fields}
    for name, value in changes.items():
        inner = present.get(name)
        if isinstance(inner, BaseModel) and isinstance(value, Mapping):
            value = with_changes(inner, value)
        present[name] = value
    return type(settings).model_validate(present)


def with_values(content: Mapping[str, Any], values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Settings as plain data, with other values at some paths; what is given stays as it is."""
    changed = dict(content)
    for path, value in values.items():
        place = changed
        for part in path[:-1]:
            place[part] = dict(place.get(part, {}))
            place = place[part]
        place[path[-1]] = value
    return changed
