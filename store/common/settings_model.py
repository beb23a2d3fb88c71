"""SettingsModel: base class of all settings models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SettingsModel(BaseModel):
    """Immutable settings that reject unknown names. The docstring of an attribute documents its setting."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True
    )
