"""SealedSecrets: encrypts the secret keys of users for a log that the replicas of a group share.

    key  = HKDF-SHA256(secret key of the cluster's inner user, salt: the group's name)
    text = base64(AES-SIV(key, secret key, associated data: the user's name))

AES-SIV (RFC 5297) needs no nonce: the same secret key of a user has the same text on all replicas, so that
tables can be compared. The inner user's key decrypts all of them: use a random one.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from actors.wire.signing import Credentials

_KEY_BYTES: Final = 64
_PURPOSE: Final = b"raymq users of a raft group"


class SealedSecrets:
    """Encrypts and decrypts with a key that is derived from the inner user's credentials."""

    def __init__(self, inner: Credentials, group: str) -> None:
        """Derive the key of the group of this name."""
        derivation = HKDF(SHA256(), _KEY_BYTES, salt=group.encode(), info=_PURPOSE)
        self._cipher = AESSIV(derivation.derive(inner.secret_key.encode()))

    def seal(self, user: str, secret_key: str) -> str:
        """Return the encrypted secret key of a user."""
        return b64encode(self._cipher.encrypt(secret_key.encode(), [user.encode()])).decode()

    def open(self, user: str, sealed: str) -> str:
        """Return the secret key. Raises ValueError if it was not encrypted for this user with this key."""
        try:
            return self._cipher.decrypt(b64decode(sealed, validate=True), [user.encode()]).decode()
        except (InvalidTag, ValueError):
            raise ValueError(
                f"the secret key of user {user[:100]!r} cannot be decrypted: replicas have different keys in "
                "inner_credentials_file; use the same on all, and set the password of the user again"
            ) from None
