"""What an actor was last told to be, beside what it was made with: `raymq.spec.json` in its directory.

Ray makes a dead actor again with the arguments of its first start. Settings that were changed since, while it
ran, stand in this file; it counts only for the actor that wrote it, not for one that was made anew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from store.disk.files import replace_file
from store.logs import get_logger

_log = get_logger(__name__)

FILE = "raymq.spec.json"


def directory_of(spec: Mapping[str, Any]) -> Path:
    """Where an actor of this spec keeps its files."""
    settings = spec["settings"]
    return Path(settings.get("store_root") or settings["data_dir"])


class KeptSpec:
    """The file of one actor; `actor_id` is Ray's, which stays the same over restarts."""

    def __init__(self, directory: Path, actor_id: str) -> None:
        self._path = directory / FILE
        self._actor_id = actor_id
        self._one_at_a_time = threading.Lock()

    def load(self, made_with: Mapping[str, Any]) -> dict[str, Any]:
        """The spec to be now. Raises nothing: a file that is no good is told of and passed over."""
        try:
            kept = orjson.loads(self._path.read_bytes())
            if kept["actor_id"] == self._actor_id:
                return dict(kept["spec"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.error("changed_settings_lost", path=str(self._path), error=str(error))
        return dict(made_with)

    def keep(self, spec: Mapping[str, Any]) -> None:
        """From now on a restart begins with this spec. Raises OSError."""
        with self._one_at_a_time:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, orjson.dumps({"actor_id": self._actor_id, "spec": spec}))
