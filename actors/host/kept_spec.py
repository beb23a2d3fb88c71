"""KeptSpec: the last spec of an actor, in `raymq.spec.json` in its directory.

Ray restarts a dead actor with the arguments of its first start. Settings that were changed since then are in
this file; it counts only for the actor that wrote it, not for a new one of the same name.
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
    """Return the directory of an actor's files."""
    settings = spec["settings"]
    return Path(settings.get("store_root") or settings["data_dir"])


class KeptSpec:
    """The file of one actor; `actor_id` is Ray's, which stays the same over restarts."""

    def __init__(self, directory: Path, actor_id: str) -> None:
        self._path = directory / FILE
        self._actor_id = actor_id
        self._lock = threading.Lock()

    def load(self, made_with: Mapping[str, Any]) -> dict[str, Any]:
        """Return the kept spec, or `made_with`. Never raises: a damaged file is logged and ignored."""
        try:
            kept = orjson.loads(self._path.read_bytes())
            if kept["actor_id"] == self._actor_id:
                return dict(kept["spec"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.error("settings_file_unreadable", path=str(self._path), error=str(error))
        return dict(made_with)

    def keep(self, spec: Mapping[str, Any]) -> None:
        """Keep the spec for later restarts. Raises OSError."""
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, orjson.dumps({"actor_id": self._actor_id, "spec": spec}))
