"""TLS of the processes of a cluster: their listeners, and their connections to each other.

`tls`, `tls_certificate` and `tls_key` make a process accept TLS connections. `tls_ca` makes it connect to the
other processes by TLS, so all of them must accept TLS by then:

    plain cluster ──► tls: permissive everywhere ──► tls_ca everywhere ──► tls: enforced everywhere
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import AliasChoices, Field, model_validator

from actors.supervisor import Supervisor
from actors.transport.tls.contexts import (
    RELOAD_MS,
    ClientTls,
    OwnCertificate,
    ServerTls,
    TlsContext,
    TlsInvalid,
)
from store.common.settings_model import SettingsModel
from store.store_errors import StoreError


class TlsSettings(SettingsModel):
    """Settings of TLS that all processes of a cluster have. Changed files take effect within a second."""

    tls: Literal["disabled", "permissive", "enforced"] = Field(
        default="disabled", validation_alias=AliasChoices("tls", "tls.server.mode")
    )
    """`disabled`: refuse TLS connections. `permissive`: accept TLS and plain connections. `enforced`: refuse
    plain connections.
    """
    tls_certificate: Path | None = Field(
        default=None, validation_alias=AliasChoices("tls_certificate", "tls.server.certPath")
    )
    """PEM file of the process's certificate, followed by the certificates of intermediate CAs. It must be
    valid for the advertised host. An absolute path. The process also presents it to the other processes.
    """
    tls_key: Path | None = Field(default=None, validation_alias=AliasChoices("tls_key", "tls.server.keyPath"))
    """PEM file of the certificate's private key, without a password. An absolute path."""
    tls_client_ca: Path | None = Field(
        default=None, validation_alias=AliasChoices("tls_client_ca", "tls.server.trustCertPath")
    )
    """PEM file of CA certificates. If set, peers that use TLS must present a certificate signed by one of
    them, or as a process of the cluster by `tls_ca`. With `ha_tls` it must be another CA than `tls_ca`. An
    absolute path.
    """
    tls_ca: Path | None = Field(
        default=None, validation_alias=AliasChoices("tls_ca", "tls.client.trustCertPath")
    )
    """PEM file of the CA certificates that have signed the certificates of the cluster's processes. If set,
    the process connects to the others by TLS and verifies them. An absolute path.
    """

    @property
    def makes_certificate(self) -> bool:
        """True if the process makes its own certificate when it starts."""
        return False

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        has_certificate = self.tls_certificate is not None and self.tls_key is not None
        if self.tls != "disabled" and not has_certificate and not self.makes_certificate:
            raise ValueError(f"tls: {self.tls} needs tls_certificate and tls_key: set both to PEM files")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together: set both or neither")
        for name in ("tls_certificate", "tls_key", "tls_client_ca", "tls_ca"):
            path: Path | None = getattr(self, name)
            if path is not None and not path.is_absolute():
                raise ValueError(f"{name} {path} is a relative path: use an absolute one")
        return self


def server_tls(
    settings: TlsSettings, protocols: Sequence[str] = (), made: OwnCertificate | None = None
) -> ServerTls | None:
    """Return the TLS of a process's listeners, or None if it is disabled.

    `protocols` are those that the listener offers (ALPN); `made` is the certificate that the process has made
    for itself, if any. Raises StoreError if a file is missing or invalid.
    """
    own = made or _own_certificate(settings)
    if settings.tls == "disabled" or own is None:
        return None
    cas = (settings.tls_client_ca, settings.tls_ca) if settings.tls_client_ca else ()
    try:
        return ServerTls(
            own, [each for each in cas if each], is_enforced=settings.tls == "enforced", protocols=protocols
        )
    except TlsInvalid as error:
        raise StoreError(str(error)) from error


def peer_tls(settings: TlsSettings) -> ServerTls:
    """Return the TLS of a port for other processes of the cluster only: those that `tls_ca` has signed.

    Raises StoreError if a file is missing or invalid.
    """
    own = _own_certificate(settings)
    if own is None or settings.tls_ca is None:
        raise StoreError("a port for processes of the cluster needs tls_certificate, tls_key and tls_ca")
    try:
        return ServerTls(own, [settings.tls_ca], is_enforced=True)
    except TlsInvalid as error:
        raise StoreError(str(error)) from error


def check_peer_ca(settings: TlsSettings) -> None:
    """Raise StoreError if `tls_ca`, with which processes know each other, has signed for clients too."""
    if settings.tls_ca is not None and settings.tls_client_ca is not None:
        try:
            from actors.transport.tls.authorities import check_separate  # cryptography takes long

            check_separate(settings.tls_ca, settings.tls_client_ca)
        except TlsInvalid as error:
            raise StoreError(str(error)) from None


def client_tls(settings: TlsSettings) -> ClientTls | None:
    """Return the TLS of a process's connections to other processes, or None if they are plain.

    Raises StoreError if a file is missing or invalid, or if `tls: enforced` has no `tls_ca`.
    """
    if settings.tls_ca is None:
        if settings.tls == "enforced":
            raise StoreError(
                "tls: enforced needs tls_ca, the CA file with which the processes of the cluster verify each "
                "other: without it they could not connect"
            )
        return None
    try:
        return ClientTls(settings.tls_ca, _own_certificate(settings))
    except TlsInvalid as error:
        raise StoreError(str(error)) from error


def reload_tls(supervisor: Supervisor, *contexts: TlsContext | None) -> None:
    """Start the task that loads changed certificate files."""
    present = [each for each in contexts if each is not None]

    def reload() -> None:
        for each in present:
            each.reload()

    if present:
        supervisor.every("tls-reload", lambda: RELOAD_MS, reload)


def _own_certificate(settings: TlsSettings) -> OwnCertificate | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return OwnCertificate(settings.tls_certificate, settings.tls_key)
