"""Access control within a cluster: the inner user, with which its processes authenticate to each other.

All processes of a cluster read the inner user's credentials from a file (setting `inner_credentials_file`)
and sign the requests that they send to each other:

    rebalancer   accepts only requests of the inner user; clients never connect to it
    nameserver   serves routes and the kv config to every client, as in RocketMQ; the rest needs the inner
                 user or a user of its `access_file`
    broker       accepts the inner user as a super user, and the users of its AccessFile
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import AliasChoices, Field

from actors.access.signatures import SignatureCheck
from actors.host.cluster_tls import TlsSettings
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from actors.remoting.signing import ACCESS_KEY, CredentialsInvalid, Signer, read_credentials
from store.clock import Clock
from store.store_errors import StoreError

_INNER_REQUIRED: Final = (
    "this request needs a valid signature of the cluster's inner user: sign it with the keys of "
    "inner_credentials_file"
)


class AccessSettings(TlsSettings):
    """Settings of access control and TLS that brokers, nameservers and rebalancers have in common."""

    authentication_enabled: bool = Field(
        default=False, validation_alias=AliasChoices("authentication_enabled", "authenticationEnabled")
    )
    """Whether requests must be signed by a known user (RocketMQ's AccessKey and Signature). A nameserver
    requires signatures for changes and its settings, a rebalancer for all requests.
    """
    inner_credentials_file: Path | None = None
    """Absolute path of a file of mode 0600 with the lines `AccessKey=…` and `SecretKey=…`. The processes of
    the cluster sign their requests to each other as this user, and the brokers accept it as a super user.
    """
    signature_window_ms: int = Field(default=300_000, ge=1_000)
    """Maximum difference between the time in a signature of RayMQ's clients and processes, and the server's
    clock. A captured request can be repeated within this time. RocketMQ's signatures contain no time.
    """


def inner_signer(settings: AccessSettings) -> Signer | None:
    """Return the signer of the inner user, or None if no credentials file is set.

    Raises StoreError if the file is missing or invalid, or if authentication is enabled without it.
    """
    path = settings.inner_credentials_file
    if path is None:
        if settings.authentication_enabled:
            raise StoreError(
                "authentication_enabled needs inner_credentials_file: create the file with "
                "`raymq user credentials FILE` and give the same file to all processes of the cluster"
            )
        return None
    if not path.is_absolute():
        raise StoreError(f"inner_credentials_file {path} is a relative path: use an absolute one")
    try:
        return Signer(read_credentials(path))
    except CredentialsInvalid as error:
        raise StoreError(str(error)) from error


class InnerUserOnly:
    """Step of the request chain that rejects requests which are not signed by the inner user."""

    def __init__(self, inner: Signer, check: SignatureCheck) -> None:
        self._inner = inner
        self._check = check

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused (NO_PERMISSION) unless the inner user has signed the request."""
        name = context.command.ext.get(ACCESS_KEY)
        if not name:
            raise Refused(ResponseCode.NO_PERMISSION, _INNER_REQUIRED)
        signer = self._inner if name == self._inner.access_key else None
        self._check(context, name, signer, True, _INNER_REQUIRED)


def inner_user_steps(
    settings: AccessSettings, inner: Signer | None, clock: Clock
) -> tuple[InnerUserOnly, ...]:
    """Return the chain steps of a rebalancer; empty if authentication is disabled."""
    if not settings.authentication_enabled or inner is None:
        return ()
    return (InnerUserOnly(inner, SignatureCheck(clock, settings.signature_window_ms)),)
