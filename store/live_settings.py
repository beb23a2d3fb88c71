"""Settings that may change while a service runs.

A field that is annotated with LIVE is read where it is used, every time, from the one settings object that
all parts of a service share; so it is changed in that object. Any other needs a restart.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


class _Live:
    """The mark; there is one."""

    def __repr__(self) -> str:
        return "LIVE"


LIVE = _Live()


def live_names(model: type[BaseModel]) -> frozenset[str]:
    """The fields of a settings model that may change while its service runs."""
    return frozenset(name for name, field in model.model_fields.items() if LIVE in field.metadata)


def change_live(settings: BaseModel, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change settings in place, all or none; returns those whose value is another now.

    `changes` are by field name. Raises ValueError (pydantic's ValidationError among them) for a value that
    cannot be, and for a setting that needs a restart.
    """
    model = type(settings)
    present = {name: getattr(settings, name) for name in model.model_fields}
    checked = model.model_validate({**present, **changes})
    changed = {name: getattr(checked, name) for name in changes if getattr(checked, name) != present[name]}
    fixed = sorted(changed.keys() - live_names(model))
    if fixed:
        raise ValueError(f"{', '.join(fixed)}: this needs a restart")
    vars(settings).update(changed)  # the model is frozen for everyone else
    return changed
