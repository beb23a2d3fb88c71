"""SettingsModel: base class of all settings models. It also accepts the old names of renamed settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from store.logs import get_logger

_log = get_logger(__name__)


class SettingsModel(BaseModel):
    """Immutable settings that reject unknown names. The docstring of an attribute documents its setting."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True
    )

    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Maps old setting names to the current names. An old name is accepted with a warning."""

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, values: object) -> object:
        return with_present_names(values, cls.RENAMED) if isinstance(values, Mapping) else values


def with_present_names(values: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Replace old setting names in `values` by the current names. Log a warning for each old name.

    `renamed` maps old names to current names. Raises ValueError if a setting is given under both names.
    """
    present = dict(values)
    for old in [name for name in values if name in renamed]:
        new = renamed[old]
        if new in present:
            raise ValueError(f"{old} is the old name of {new}, and both are set: remove {old}")
        present[new] = present.pop(old)
        _log.warning("setting_renamed", setting=old, remedy=f"use {new}; the next release refuses {old}")
    return present
