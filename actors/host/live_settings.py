"""The settings of a service that runs: changed in place, by the driver or by an administrator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from pydantic import BaseModel

from store.clock import Clock
from store.live_settings import Difference, take_over
from store.logs import get_logger
from store.metadata import DataVersion

_log = get_logger(__name__)

Settings = TypeVar("Settings", bound=BaseModel)


class LiveSettings(Generic[Settings]):
    """One service's settings, their version, and who wants to know of changes."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.version = DataVersion()
        self.listeners: list[Callable[[list[Difference]], None]] = []
        self._clock = clock

    def change(self, wanted: BaseModel) -> list[Difference]:
        """Be as `wanted`, all or nothing; returns what has changed.

        Raises ValueError, naming them, for settings that need a restart.
        """
        changed = take_over(self.settings, wanted)
        if changed:
            self.version = self.version.next(self._clock.wall_ms())
            _log.info("settings_changed", **{each.name: str(each.wanted) for each in changed})
            for listener in self.listeners:
                listener(changed)
        return changed
