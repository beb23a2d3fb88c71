"""Users and policies of a broker, replicated by its Raft group; the log has no secret key in plain text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import to_builtins

from actors.access.access_file import AccessFile
from actors.access.policies import parse_policies
from actors.access.sealed_secrets import SealedSecrets
from actors.access.users import AccessTable, User
from actors.wire.bodies.access import AclInfo, UserInfo
from actors.wire.remoting_errors import Refused
from store.common.logs import get_logger

_log = get_logger(__name__)

SEALED: Final = "sealedKey"


class UserEntries:
    """Users, by name: type, status and the encrypted secret key."""

    def __init__(self, file: AccessFile, secrets: SealedSecrets) -> None:
        self._file = file
        self._secrets = secrets
        self._values: dict[str, tuple[User, dict[str, Any]]] = {}
        """The value of each user, because encryption takes time."""

    def all(self) -> dict[str, Any]:
        """Return all users."""
        return {name: self._value(user) for name, user in self._file.table.users.items()}

    def get(self, name: str) -> Any:
        """Return a user."""
        user = self._file.table.users.get(name)
        return None if user is None else self._value(user)

    def put(self, name: str, value: Any) -> None:
        """Add, change or remove a user. One whose key cannot be decrypted stays as it is."""
        try:
            _change(self._file, lambda table: self._put(table, name, value))
        except (ValueError, KeyError, TypeError, Refused) as error:
            _log.error("raft_user_not_applied", user=name[:100], error=str(error))

    def version(self) -> object:
        """Return the number of changes."""
        return self._file.changes

    def _put(self, table: AccessTable, name: str, value: Any) -> None:
        if value is None:
            table.delete_user(name)
        else:
            table.users.pop(name, None)
            secret_key = self._secrets.open(name, value[SEALED])
            table.add_user(UserInfo(name, secret_key, value["userType"], value["userStatus"]))

    def _value(self, user: User) -> dict[str, Any]:
        known = self._values.get(user.name)
        if known is None or known[0] != user:
            info = user.to_info()
            sealed = self._secrets.seal(user.name, user.secret_key)
            value = {"userType": info.user_type, "userStatus": info.user_status, SEALED: sealed}
            known = self._values[user.name] = user, value
        return known[1]


class PolicyEntries:
    """The policies of users, by user name."""

    def __init__(self, file: AccessFile) -> None:
        self._file = file

    def all(self) -> dict[str, Any]:
        """Return the policies of all users."""
        return {name: self.get(name) for name in self._file.table.policies}

    def get(self, name: str) -> Any:
        """Return the policies of a user."""
        acl = self._file.table.acl(name)
        return None if acl is None else to_builtins(acl)

    def put(self, name: str, value: Any) -> None:
        """Replace or remove the policies of a user."""
        try:
            policies = None if value is None else parse_policies(AclInfo.from_json(value).policies)
        except (ValueError, Refused) as error:
            _log.error("raft_policy_not_applied", user=name[:100], error=str(error))
            return

        def replace(table: AccessTable) -> None:
            table.policies.pop(name, None)
            if policies is not None:
                table.policies[name] = policies

        _change(self._file, replace)

    def version(self) -> object:
        """Return the number of changes."""
        return self._file.changes


def _change(file: AccessFile, change: Callable[[AccessTable], None]) -> None:
    wanted = file.table.copy()
    change(wanted)
    file.use(wanted)
