"""AccessFile: the file of users and policies below the store's `config` directory, and its reload.

    {"users": [{username, password, userType, userStatus}], "acls": [{subject, policies: [...]}]}

It contains secret keys, because a signature can be checked only with the plain key, and has mode 0600. Edits
of the file take effect within RELOAD_MS. A file that is invalid or readable by other users is not loaded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import orjson

from actors.broker.auth.users import AccessTable
from actors.signing import PRIVATE_MODE, CredentialsInvalid, check_private
from store.disk.files import sync_directory
from store.logs import get_logger
from store.store_errors import StoreError

_log = get_logger(__name__)

FILE_NAME = "raymqAccess.json"
RELOAD_MS = 1000

_Version = tuple[int, int, int] | None


class AccessFile:
    """The users and policies of one broker. `table` is replaced, never changed in place."""

    def __init__(self, store_root: Path) -> None:
        self.table = AccessTable()
        self.path = store_root / "config" / FILE_NAME
        self._changing = asyncio.Lock()
        self._loaded: _Version = None
        self._invalid: _Version = None  # reported already

    def load(self) -> None:
        """Load the file; without a file there are no users.

        Raises StoreError if it is damaged, or readable or writable by other users.
        """
        version = self._version()
        if version is None:
            self.table, self._loaded = AccessTable(), None
            return
        try:
            check_private(self.path)
            table = AccessTable.from_json(orjson.loads(self.path.read_bytes()))
        except CredentialsInvalid as error:
            raise StoreError(str(error)) from None
        except ValueError as error:
            raise StoreError(f"the file of users and policies is invalid: {error}", self.path) from None
        self.table, self._loaded = table, version

    async def reload(self) -> None:
        """Load the file if it has changed since it was loaded or saved. Keeps the table if it is invalid."""
        async with self._changing:
            version = self._version()
            if version in (self._loaded, self._invalid):
                return
            try:
                self.load()
                _log.info("access_file_reloaded", path=str(self.path), users=len(self.table.users))
            except (StoreError, OSError) as error:
                self._invalid = version
                _log.error("access_file_invalid", error=str(error), effect="the previous users remain valid")

    async def change(self, change: Callable[[AccessTable], None]) -> None:
        """Apply a change to a copy of the table, save it, then use it.

        Raises Refused if the change is invalid, StoreError if an edit of the file is, and OSError.
        """
        async with self._changing:
            if self._version() != self._loaded:
                self.load()  # else the edit of the file would be lost
            wanted = self.table.copy()
            change(wanted)
            text = orjson.dumps(wanted.to_json(), option=orjson.OPT_INDENT_2)
            await asyncio.shield(asyncio.to_thread(self._save, text))
            self.table, self._loaded = wanted, self._version()

    def _version(self) -> _Version:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ctime_ns, found.st_ino, found.st_size

    def _save(self, text: bytes) -> None:
        """Replace the file, durably. There is no backup: it would keep revoked users."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f"{FILE_NAME}.new")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        sync_directory(self.path.parent)
