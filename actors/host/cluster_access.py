"""Access control within a cluster: the inner user, with which its processes authenticate to each other.

All processes of a cluster read the inner user's credentials from a file (setting `inner_credentials_file`)
and sign the requests that they send to each other:

    rebalancer   accepts only requests of the inner user; clients never connect to it
    nameserver   serves routes and other reads to every client, as in RocketMQ; changes need the inner user or
                 a user of its `access_file`
    broker       accepts the inner user as a super user, and the users of its AccessFile
"""

from __future__ import annotations

from pathlib import Path

from pydantic import AliasChoices, Field

from actors.host.cluster_tls import TlsSettings
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from actors.signing import ACCESS_KEY, CredentialsInvalid, Signer, read_credentials
from store.store_errors import StoreError


class AccessSettings(TlsSettings):
    """Settings of access control and TLS that brokers, nameservers and rebalancers have in common."""

    authentication_enabled: bool = Field(
        default=False, validation_alias=AliasChoices("authentication_enabled", "authenticationEnabled")
    )
    """Whether requests must be signed by a known user (RocketMQ's AccessKey and Signature). A nameserver
    requires signatures only for changes, a rebalancer for all requests.
    """
    inner_credentials_file: Path | None = None
    """Absolute path of a file of mode 0600 with the lines `AccessKey=…` and `SecretKey=…`. The processes of
    the cluster sign their requests to each other as this user, and the brokers accept it as a super user.
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

    def __init__(self, inner: Signer) -> None:
        self._inner = inner

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused (NO_PERMISSION) unless the inner user has signed the request."""
        command = context.command
        if command.ext.get(ACCESS_KEY) != self._inner.access_key or not self._inner.has_signed(command):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                "this request needs a valid signature of the cluster's inner user: sign it with the keys of "
                "inner_credentials_file",
            )


def inner_user_steps(settings: AccessSettings, inner: Signer | None) -> tuple[InnerUserOnly, ...]:
    """Return the chain steps of a rebalancer; empty if authentication is disabled."""
    return () if not settings.authentication_enabled or inner is None else (InnerUserOnly(inner),)
