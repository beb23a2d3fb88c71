"""JSON bodies with users and access control lists, for the requests AUTH_CREATE_USER to AUTH_LIST_ACL."""

from typing import Any

import orjson

from actors.wire.bodies.body import Body, wire
from actors.wire.codes import ResponseCode
from actors.wire.command import Buffer
from actors.wire.header import ListOf, Name, Text
from actors.wire.remoting_errors import Refused


class UserInfo(Body, omit_defaults=True):
    """A user. `password` is the secret key; `repr` does not show it."""

    title = "user"
    values_max = 1_000

    username: Name | None = None
    password: Name | None = None
    user_type: Name | None = None
    user_status: Name | None = None

    def __repr__(self) -> str:
        return f"UserInfo({self.username!r}, {self.user_type}, {self.user_status})"

    @classmethod
    def of_request(cls, body: Buffer) -> "UserInfo":
        """Decode the user in the body of a request. Raises Refused if a field is invalid.

        The error does not quote the body, which may contain a secret key.
        """
        try:
            content = orjson.loads(body)
        except (ValueError, RecursionError):
            content = None
        return cls.of_content(content)

    @classmethod
    def of_content(cls, content: object) -> "UserInfo":
        """Return the user for a decoded JSON object. Raises Refused if a field is invalid.

        The error does not quote the values, which may contain a secret key.
        """
        if not isinstance(content, dict):
            raise Refused(ResponseCode.INVALID_PARAMETER, "the user is not a valid JSON object")
        values: dict[str, Any] = {}
        for name, key in _USER_KEYS.items():
            value = content.get(key)
            if value is not None and (not isinstance(value, str) or len(value) > TEXT_CHARS_MAX):
                raise Refused(
                    ResponseCode.INVALID_PARAMETER,
                    f"field `{key}` of the user must be a string, the limit is {TEXT_CHARS_MAX} characters",
                )
            values[name] = value
        return cls(**values)


TEXT_CHARS_MAX = 512
"""Maximum length of a user's name and secret key."""
_USER_KEYS = {
    "username": "username",
    "password": "password",
    "user_type": "userType",
    "user_status": "userStatus",
}


class PolicyEntryInfo(Body, omit_defaults=True):
    """One rule: allows or denies actions on a resource, optionally only from some source addresses."""

    title = "policy entry"

    resource: Text | None = None
    actions: ListOf[Name] = wire(default_factory=list)
    source_ips: ListOf[Name] | None = None
    decision: Name | None = None


class PolicyInfo(Body, omit_defaults=True):
    """The rules of one policy type, Custom or Default."""

    title = "policy"

    policy_type: Name | None = None
    entries: ListOf[PolicyEntryInfo] = wire(default_factory=list)


class AclInfo(Body, omit_defaults=True):
    """The policies of one user. `subject` is `User:` and the user's name."""

    title = "access control list"
    values_max = 50_000

    subject: Text | None = None
    policies: ListOf[PolicyInfo] = wire(default_factory=list)
