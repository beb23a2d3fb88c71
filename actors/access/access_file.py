"""AccessFile: a file with the users and policies of a broker or nameserver.

    {"users": [{username, password, userType, userStatus}], "acls": [{subject, policies: [...]}]}

The file contains secret keys in plain text, because they are needed to check signatures. Its mode must be
0600. An edited file is loaded within RELOAD_MS, unless it is invalid or other users of the machine can access
it. Brokers write their files; a nameserver only reads one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from actors.access.users import RULES, USERS, AccessTable, count_rules
from actors.bounds import Use
from actors.wire.signing import PRIVATE_MODE, CredentialsInvalid, check_private
from store.common.logs import get_logger
from store.disk.files import sync_directory
from store.store_errors import StoreError

_log = get_logger(__name__)

FILE_NAME = "raymqAccess.json"
"""Name of a broker's file, below the `config` directory of its store."""
RELOAD_MS = 1000

_Version = tuple[int, int, int] | None


class AccessFile:
    """Loads and saves users and policies.

    `table` holds the current users and policies. Each change replaces it by a new table, and increases
    `changes`.
    """

    def __init__(self, path: Path) -> None:
        self.table = AccessTable()
        self.changes = 0
        self.path = path
        self._changing = asyncio.Lock()
        self._loaded: _Version = None
        self._invalid: _Version = None  # its error was logged already
        self._saved = self.table

    def load(self) -> None:
        """Load the file. If it does not exist, the table is empty.

        Raises StoreError if the file is invalid, or if other users can read or write it.
        """
        version = self._version()
        if version is None:
            self._use(AccessTable(), None)
            return
        try:
            check_private(self.path)
            table = AccessTable.from_json(orjson.loads(self.path.read_bytes()))
        except CredentialsInvalid as error:
            raise StoreError(str(error)) from None
        except ValueError as error:
            raise StoreError(
                f"the file of users and policies is invalid: {error}; correct it, or restore it from a copy",
                self.path,
            ) from None
        self._use(table, version)

    async def reload(self) -> None:
        """Load the file if it was edited. If the file is invalid, log an error and keep the current table."""
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

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (
            USERS.use(lambda: len(self.table.users)),
            RULES.use(lambda: max(map(count_rules, self.table.policies.values()), default=0)),
        )

    async def change(self, change: Callable[[AccessTable], None]) -> None:
        """Apply `change` to a copy of the table, save the copy, then replace the table by it.

        Raises:
            Refused: `change` rejects the values of the request.
            StoreError: The file was edited since it was loaded, and is now invalid.
            OSError: The file cannot be written.
        """
        async with self._changing:
            if self._version() != self._loaded:
                self.load()  # the file was edited: saving the old table would undo that
            before = self.table
            wanted = before.copy()
            change(wanted)
            await self._write(wanted)
            if self.table is not before:
                raise StoreError("the users were replaced by those of another replica: repeat the request")
            self._use(wanted, self._loaded)

    def use(self, table: AccessTable) -> None:
        """Use another table, which `save` must save."""
        self.table = table
        self.changes += 1

    async def save(self) -> None:
        """Save the table that is used, unless it is. Raises OSError if the file cannot be written."""
        async with self._changing:
            if self._saved is not self.table:
                await self._write(self.table)

    async def replace(self, table: AccessTable) -> None:
        """Save another table, then use it. Do nothing if it equals the one that is used and saved.

        Raises OSError if the file cannot be written.
        """
        async with self._changing:
            is_equal = (table.users, table.policies) == (self.table.users, self.table.policies)
            if not is_equal or self._version() != self._loaded:
                await self._write(table)
                self._use(table, self._loaded)
                _log.info("access_file_replaced", path=str(self.path), users=len(table.users))

    async def _write(self, table: AccessTable) -> None:
        text = orjson.dumps(table.to_json(), option=orjson.OPT_INDENT_2)
        await asyncio.shield(asyncio.to_thread(self._save, text))
        self._saved, self._loaded = table, self._version()

    def _use(self, table: AccessTable, version: _Version) -> None:
        self._saved, self._loaded = table, version
        self.use(table)

    def _version(self) -> _Version:
        """Return values that differ after each edit of the file, or None if it does not exist."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ctime_ns, found.st_ino, found.st_size

    def _save(self, text: bytes) -> None:
        """Replace the file and flush it. No backup is kept, because it would contain deleted users' keys."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f"{self.path.name}.new")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        sync_directory(self.path.parent)
