"""SavedSpec: the settings of an actor, saved in `raymq.spec.json` so that a restart does not lose changes.

Ray restarts an actor with the arguments of its first start, without the settings that were changed later.
Therefore the actor saves its spec after each change and loads it when it restarts. Only the actor that wrote
the file loads it, not a new actor of the same name.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from store.common.logs import get_logger
from store.disk.files import replace_file

_log = get_logger(__name__)

FILE = "raymq.spec.json"


def directory_of(spec: Mapping[str, Any]) -> Path:
    """Return the directory of an actor's files: `store_root` for a broker, `data_dir` for other actors."""
    settings = spec["settings"]
    return Path(settings.get("store_root") or settings["data_dir"])


class SavedSpec:
    """The spec file of one actor. `actor_id` is Ray's id of the actor; a restart does not change it."""

    def __init__(self, directory: Path, actor_id: str) -> None:
        self._path = directory / FILE
        self._actor_id = actor_id
        self._lock = threading.Lock()

    def load(self, initial: Mapping[str, Any]) -> dict[str, Any]:
        """Return the saved spec, or `initial` if this actor has not saved one.

        A damaged file is logged and ignored.
        """
        try:
            saved = orjson.loads(self._path.read_bytes())
            if saved["actor_id"] == self._actor_id:
                return dict(saved["spec"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.error("settings_file_unreadable", path=str(self._path), error=str(error))
        return dict(initial)

    def save(self, spec: Mapping[str, Any]) -> None:
        """Replace the saved spec. Raises OSError if the file cannot be written."""
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, orjson.dumps({"actor_id": self._actor_id, "spec": spec}))
