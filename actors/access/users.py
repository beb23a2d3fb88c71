"""AccessTable: the users of a broker and their policies in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import Any, Final

import orjson
from msgspec import to_builtins

from actors.access.policies import CUSTOM, Policies, ResourcePattern, merged, parse_policies, to_infos
from actors.bounds import AtLimit, Bound
from actors.wire.bodies.access import TEXT_CHARS_MAX, AclInfo, UserInfo
from actors.wire.codes import ResponseCode
from actors.wire.json_fields import get_objects
from actors.wire.remoting_errors import Refused
from actors.wire.signing import Credentials, Signer

SUBJECT_PREFIX: Final = "User:"
SUPER, NORMAL = "Super", "Normal"
ENABLED, DISABLED = "enable", "disable"

USERS: Final = Bound("users", 10_000, AtLimit.REFUSE, "Users.")
RULES: Final = Bound("rules_of_user", 1_000, AtLimit.REFUSE, "Rules of the policies of one user.")
"""They are compared one after another for each request."""

_TYPES: Final = {"super": SUPER, "normal": NORMAL}
_STATUSES: Final = {"enable": ENABLED, "disable": DISABLED}


def count_rules(policies: Policies) -> int:
    """Return the number of rules of one user."""
    return sum(map(len, policies.values()))


@dataclass(frozen=True, slots=True)
class User:
    """A user of a broker. `repr` does not show the secret key.

    A super user may do everything. The requests of a disabled user are refused.
    """

    name: str
    secret_key: str = field(repr=False)
    is_super: bool = False
    is_enabled: bool = True
    signer: Signer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Create the signer of the user's name and secret key."""
        object.__setattr__(self, "signer", Signer(Credentials(self.name, self.secret_key)))

    def to_info(self, *, with_secret: bool = False) -> UserInfo:
        """Return the JSON form of the user; only the file needs it `with_secret`."""
        return UserInfo(
            self.name,
            self.secret_key if with_secret else None,
            SUPER if self.is_super else NORMAL,
            ENABLED if self.is_enabled else DISABLED,
        )


class AccessTable:
    """Users by name, and policies by user name.

    A table in use is not changed: AccessFile changes a copy, which then replaces the table.
    """

    def __init__(
        self, users: Mapping[str, User] | None = None, policies: Mapping[str, Policies] | None = None
    ) -> None:
        self.users = dict(users or {})
        self.policies = {name: dict(each) for name, each in (policies or {}).items()}

    def copy(self) -> AccessTable:
        """Return a copy, whose changes do not affect this table."""
        return AccessTable(self.users, self.policies)

    @classmethod
    def from_json(cls, content: object) -> AccessTable:
        """Return the table for the decoded JSON of the file.

        Raises ValueError if a value is invalid. The message does not contain secret keys.
        """
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004 - the content is invalid
        table = cls()
        try:
            for each in get_objects(content, "users"):
                table.add_user(UserInfo.of_content(each))
            for each in get_objects(content, "acls"):
                table.set_policies(AclInfo.from_json(each))
        except Refused as error:
            raise ValueError(error.remark) from None
        return table

    @classmethod
    def decode(cls, body: bytes) -> AccessTable:
        """Return the table in the response of GET_ALL_USERS.

        Raises ValueError if it is not a whole table. The message does not contain secret keys.
        """
        content = orjson.loads(body)
        if not isinstance(content, dict) or not {"users", "acls"} <= content.keys():
            raise ValueError("the body does not have users and acls")
        return cls.from_json(content)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for the file, including the secret keys.

        Policies of unknown users are left out: a replica may not have been able to decrypt the user's key.
        """
        return {
            "users": [to_builtins(self.users[name].to_info(with_secret=True)) for name in sorted(self.users)],
            "acls": [to_builtins(self.acl(name)) for name in sorted(self.policies) if name in self.users],
        }

    def add_user(self, info: UserInfo) -> None:
        """Add a user. Raises Refused if the user exists or a field is missing or invalid."""
        name, secret_key = info.username or "", info.password or ""
        if not name.strip():
            raise Refused(ResponseCode.INVALID_PARAMETER, "The username is blank")
        if len(self.users) >= USERS.limit:
            raise _refused(f"there are {USERS.limit:,} users, which is the limit: delete some first")
        if name in self.users:
            raise _refused(f"The user is existed: {name[:100]!r}; use updateUser to change it")
        if len(name) > TEXT_CHARS_MAX or not name.isprintable():
            raise _refused(
                f"user name {name[:100]!r} is not valid: use up to {TEXT_CHARS_MAX} printable characters"
            )
        if not secret_key.strip():
            raise _refused(f"password can not be blank: set one for user {name[:100]!r}")
        is_super = _one_of(_TYPES, info.user_type, NORMAL, "user type") == SUPER
        is_enabled = _one_of(_STATUSES, info.user_status, ENABLED, "user status") == ENABLED
        self.users[name] = User(name, secret_key, is_super, is_enabled)

    def has_user(self, info: UserInfo) -> bool:
        """Return True if the user exists with the same key, type and status.

        Raises Refused if its type or status is invalid.
        """
        user = self.users.get(info.username or "")
        if user is None or not compare_digest(user.secret_key.encode(), (info.password or "").encode()):
            return False
        is_super = _one_of(_TYPES, info.user_type, NORMAL, "user type") == SUPER
        is_enabled = _one_of(_STATUSES, info.user_status, ENABLED, "user status") == ENABLED
        return (user.is_super, user.is_enabled) == (is_super, is_enabled)

    def update_user(self, info: UserInfo) -> None:
        """Change a user; fields that are missing in `info` keep their values.

        Raises Refused if the user does not exist, or its type or status is invalid.
        """
        user = self.users.get(info.username or "")
        if user is None:
            raise _refused(f"The user is not exist: {(info.username or '')[:100]!r}")
        type_text = info.user_type or (SUPER if user.is_super else NORMAL)
        status = info.user_status or (ENABLED if user.is_enabled else DISABLED)
        secret_key = info.password or ""
        self.users[user.name] = replace(
            user,
            secret_key=secret_key if secret_key.strip() else user.secret_key,
            is_super=_one_of(_TYPES, type_text, NORMAL, "user type") == SUPER,
            is_enabled=_one_of(_STATUSES, status, ENABLED, "user status") == ENABLED,
        )

    def delete_user(self, name: str) -> None:
        """Delete a user and its policies. Does nothing if the user does not exist."""
        self.users.pop(name, None)
        self.policies.pop(name, None)

    def set_policies(self, acl: AclInfo) -> None:
        """Add rules to a user's policies. A new rule replaces the rule of the same resource.

        Raises Refused if the user does not exist or a rule is invalid.
        """
        name = self.existing_user(acl.subject)
        changed = dict(self.policies.get(name, {}))
        for type_name, rules in parse_policies(acl.policies).items():
            changed[type_name] = merged(changed.get(type_name, []), rules)
        if (count := count_rules(changed)) > RULES.limit:
            raise _refused(
                f"{acl.subject} would have {count:,} rules, the limit is {RULES.limit:,}: use prefixes such "
                "as Topic:shop-*"
            )
        self.policies[name] = changed

    def delete_policies(self, subject: str, type_name: str | None, resource: str | None) -> None:
        """Delete the rule of a resource, or all policies of the user if `resource` is empty.

        Raises Refused if the user or its policies do not exist.
        """
        name = self.existing_user(subject)
        present = self.policies.get(name)
        if present is None:
            raise _refused("The acl is not exist.")
        if not resource:
            del self.policies[name]
            return
        pattern, type_name = ResourcePattern.parse(resource), type_name or CUSTOM
        kept = [rule for rule in present.get(type_name, []) if rule.resource != pattern]
        present.pop(type_name, None)
        if kept:
            present[type_name] = kept
        if not present:
            del self.policies[name]

    def acl(self, name: str) -> AclInfo | None:
        """Return the JSON form of a user's policies, or None if the user has no policies."""
        present = self.policies.get(name)
        return None if present is None else AclInfo(SUBJECT_PREFIX + name, to_infos(present))

    def existing_user(self, subject: str | None) -> str:
        """Return the user name of a subject such as `User:alice`.

        Raises Refused if the subject is malformed or the user does not exist.
        """
        text = subject or ""
        name = text[len(SUBJECT_PREFIX) :]
        if text[: len(SUBJECT_PREFIX)].lower() != SUBJECT_PREFIX.lower() or not name:
            raise _refused(f"subject {text[:100]!r} is not valid: use {SUBJECT_PREFIX} and the user's name")
        if name not in self.users:
            raise _refused(f"The subject of {text[:100]} is not exist.")
        return name


def _one_of(names: Mapping[str, str], text: str | None, default: str, what: str) -> str:
    found = names.get((text or default).lower())
    if found is None:
        known = " or ".join(names.values())
        raise _refused(f"{what} {(text or '')[:100]!r} is not valid: use {known}")
    return found


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.NO_PERMISSION, remark)
