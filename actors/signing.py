"""Credentials, and signatures of requests as RocketMQ's AclClientRPCHook computes them.

The header fields of a signed request contain `AccessKey` and `Signature`:

    signature = base64(HMAC-SHA1(secret key, content))
    content   = the values of all header fields but `Signature`, in the order of their names, then the body

A signature does not cover the request code, and a copy of the request is valid too.

A credentials file holds an access key and its secret key:

    AccessKey=alice
    SecretKey=…

`=` or `:` separates name and value, and the case of the names is ignored, so RocketMQ's `conf/tools.yml` is a
valid file too. Only the owner may be able to read the file (mode 0600).
"""

import hmac
import os
import re
import stat
from base64 import b64encode
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from actors.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"

_NOT_SIGNED: Final = frozenset({SIGNATURE})
# Clients up to 4.9.3 add this field after they have signed the request.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_NOT_SIGNED_BY_OLD: Final = frozenset({SIGNATURE, _UNIQUE_KEY_QUERY})
_VERSION_4_9_3: Final = 399

PRIVATE_MODE: Final = 0o600
_OTHERS: Final = 0o077
_LINE: Final = re.compile(r"\s*(access_?key|secret_?key)\s*[=:]\s*(.*?)\s*", re.IGNORECASE)


class CredentialsInvalid(ValueError):
    """A credentials file or a key is invalid. The message never contains a secret."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key (the user's name) and its secret key, which is not part of the repr."""

    access_key: str
    secret_key: str = field(repr=False)

    def __post_init__(self) -> None:
        """Raise CredentialsInvalid if one of the keys is empty."""
        if not self.access_key or not self.secret_key:
            raise CredentialsInvalid("access_key or secret_key is empty: set both")


def read_credentials(path: Path) -> Credentials:
    """Return the credentials in a file.

    Raises CredentialsInvalid if it is missing, malformed or readable by other users.
    """
    try:
        check_private(path)
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise CredentialsInvalid(f"credentials file {path}: {reason}") from None
    found = {
        match[1].lower().replace("_", ""): match[2].strip("\"'")
        for line in text.splitlines()
        if (match := _LINE.fullmatch(line))
    }
    if not found.get("accesskey") or not found.get("secretkey"):
        raise CredentialsInvalid(
            f"credentials file {path}: the lines AccessKey=… and SecretKey=… are both required"
        )
    return Credentials(found["accesskey"], found["secretkey"])


def check_private(path: Path) -> None:
    """Raise CredentialsInvalid if other users can read or write a file, OSError if it does not exist."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        raise CredentialsInvalid(
            f"{path} has mode {mode:04o}, so other users can read the secrets in it: run chmod 600 {path}"
        )


def write_credentials(path: Path, credentials: Credentials) -> None:
    """Create a credentials file with mode 0600. Raises OSError, such as FileExistsError."""
    text = f"AccessKey={credentials.access_key}\nSecretKey={credentials.secret_key}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


class Signer:
    """Computes the signatures of one user. Thread-safe; the repr does not contain the secret."""

    __slots__ = ("_mac", "access_key")

    def __init__(self, credentials: Credentials) -> None:
        self.access_key = credentials.access_key
        self._mac = hmac.new(credentials.secret_key.encode(), digestmod="sha1")

    def sign(self, command: RemotingCommand) -> None:
        """Add the fields `AccessKey` and `Signature` to a request, or replace them."""
        command.ext[ACCESS_KEY] = self.access_key
        command.ext[SIGNATURE] = self._signature(command, _NOT_SIGNED)

    def has_signed(self, command: RemotingCommand) -> bool:
        """Return True if the signature of a received request is valid."""
        ext = command.ext
        is_old = _UNIQUE_KEY_QUERY in ext and command.version <= _VERSION_4_9_3
        expected = self._signature(command, _NOT_SIGNED_BY_OLD if is_old else _NOT_SIGNED)
        return hmac.compare_digest(expected.encode(), ext.get(SIGNATURE, "").encode())

    def _signature(self, command: RemotingCommand, skipped: Container[str]) -> str:
        mac, ext = self._mac.copy(), command.ext
        mac.update("".join([ext[name] for name in sorted(ext) if name not in skipped]).encode())
        mac.update(command.body)
        for part in command.parts:
            mac.update(part)
        return b64encode(mac.digest()).decode()
