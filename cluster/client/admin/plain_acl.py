"""Converts an access control file of RocketMQ 4.x (`conf/plain_acl.yml`) to users and policies of RocketMQ 5.

    accounts:
      - accessKey, secretKey      the user; `admin: true` makes it a super user
        topicPerms: [orders=PUB|SUB]    a Custom rule for Topic:orders
        groupPerms: [billing=SUB]       a Custom rule for Group:billing
        defaultTopicPerm: DENY          a Default rule for Topic:*
        defaultGroupPerm: SUB           a Default rule for Group:*

RocketMQ 5 has no equivalent for addresses whose clients need no signature (`globalWhiteRemoteAddresses`,
`whiteRemoteAddress`). They are ignored with a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from actors.wire.bodies.access import PolicyEntryInfo, PolicyInfo
from cluster.client.errors import ConfigInvalid
from store.common.text_file import read_text

_PERMISSIONS = {
    "PUB": (["Pub"], "Allow"),
    "SUB": (["Sub"], "Allow"),
    "PUB|SUB": (["Pub", "Sub"], "Allow"),
    "SUB|PUB": (["Pub", "Sub"], "Allow"),
    "ANY": (["Pub", "Sub"], "Allow"),
    "DENY": (["All"], "Deny"),
}


@dataclass(frozen=True, slots=True)
class Account:
    """One account of the file. Its `repr` omits the secret key, so that logs do not contain it."""

    name: str
    secret_key: str = field(repr=False)
    is_super: bool
    policies: list[PolicyInfo]


@dataclass(slots=True)
class PlainAcl:
    """The accounts of a file, and a warning for each entry that was ignored."""

    accounts: list[Account] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_plain_acl(path: Path) -> PlainAcl:
    """Read the accounts of a plain_acl.yml.

    Raises ConfigInvalid if the file cannot be read or is invalid. The error text contains no secret key.
    """
    content = _load(path)
    found = PlainAcl()
    if content.get("globalWhiteRemoteAddresses"):
        found.warnings.append(
            f"{path}: globalWhiteRemoteAddresses is ignored: all clients must sign their requests"
        )
    accounts = content.get("accounts") or []
    if not isinstance(accounts, list):
        raise ConfigInvalid(f"{path}: `accounts` is not a list")
    for number, account in enumerate(accounts):
        where = f"{path}: accounts[{number}]"
        if not isinstance(account, dict):
            raise ConfigInvalid(f"{where} is not a map")
        name, secret_key = account.get("accessKey"), account.get("secretKey")
        if not name or not secret_key:
            raise ConfigInvalid(f"{where}: accessKey and secretKey are required")
        if account.get("whiteRemoteAddress"):
            found.warnings.append(
                f"{where}: whiteRemoteAddress is ignored: all clients must sign their requests"
            )
        policies = list(_policies(where, account))
        found.accounts.append(Account(str(name), str(secret_key), account.get("admin") is True, policies))
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        # The text of the YAML error is not used: it quotes the invalid line, which may contain a secret key.
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark is not None else ""
        raise ConfigInvalid(f"{path} is not valid YAML{place}") from None
    if not isinstance(content, dict):
        raise ConfigInvalid(
            f"{path} has no `accounts` at its top level: give a plain_acl.yml of RocketMQ 4.x"
        )
    return content


def _policies(where: str, account: dict[str, Any]) -> Iterator[PolicyInfo]:
    custom = [
        _entry(f"{where}.{key}", f"{kind}:{resource}", permission)
        for key, kind in (("topicPerms", "Topic"), ("groupPerms", "Group"))
        for resource, permission in _pairs(where, account, key)
    ]
    defaults = [
        _entry(f"{where}.{key}", f"{kind}:*", str(account[key]))
        for key, kind in (("defaultTopicPerm", "Topic"), ("defaultGroupPerm", "Group"))
        if account.get(key)
    ]
    if custom:
        yield PolicyInfo("Custom", custom)
    if defaults:
        yield PolicyInfo("Default", defaults)


def _pairs(where: str, account: dict[str, Any], key: str) -> Iterator[tuple[str, str]]:
    given = account.get(key) or []
    if not isinstance(given, list):
        raise ConfigInvalid(f"{where}.{key} is not a list")
    for text in given:
        name, equals, permission = str(text).partition("=")
        if not equals or not name.strip():
            raise ConfigInvalid(f"{where}.{key}: {text!r} does not have the form name=PUB|SUB")
        yield name.strip(), permission.strip()


def _entry(where: str, resource: str, permission: str) -> PolicyEntryInfo:
    found = _PERMISSIONS.get(permission.strip().replace(" ", ""))
    if found is None:
        known = ", ".join(_PERMISSIONS)
        raise ConfigInvalid(f"{where}: permission {permission!r} of {resource} is not one of {known}")
    actions, decision = found
    return PolicyEntryInfo(resource, list(actions), None, decision)
