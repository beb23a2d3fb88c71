"""TLS contexts: `ssl.SSLContext` objects made from certificate files, and made again when the files change.

New connections use the new certificates; open connections keep theirs. Files that are invalid after a change
are logged (`tls_files_invalid`), and the previous certificates remain in use.
"""

import os
import ssl
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.common.logs import get_logger

_log = get_logger(__name__)

RELOAD_MS: Final = 1000
_HANDSHAKE_THREADS: Final = 2

_Versions = list[tuple[int, int, int] | None]


class TlsInvalid(ValueError):
    """A certificate, key or CA file is missing or invalid."""


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """The certificate that this side presents: PEM files of the certificate chain and of its private key."""

    certificate: Path
    key: Path

    def load_into(self, context: ssl.SSLContext) -> None:
        """Add the certificate to a context. Raises TlsInvalid."""
        try:
            if stat.S_IMODE(self.key.stat().st_mode) & stat.S_IRWXO:
                raise TlsInvalid(f"every user can access the private key {self.key}: run chmod o= on it")
            context.load_cert_chain(self.certificate, self.key, _refuse_password)
        except ssl.SSLError as error:
            raise TlsInvalid(
                f"{self.certificate} and {self.key} are not a PEM certificate and its private key: "
                f"{error.reason or error}"
            ) from None
        except OSError as error:
            raise TlsInvalid(
                f"certificate {self.certificate} or key {self.key}: {error.strerror or error}"
            ) from None


class TlsContext:
    """The present TLS context of this side, and the threads that compute handshakes with it."""

    def __init__(self, files: tuple[Path, ...], make: Callable[[], ssl.SSLContext]) -> None:
        """Create the context.

        Args:
            files: the files that `make` reads; see `reload`.
            make: returns a new context made from the files. Raises TlsInvalid.

        Raises TlsInvalid if a file is missing or invalid.
        """
        self._files = files
        self._make = make
        self._seen = _versions(files)
        self.current = make()
        self.executor = ThreadPoolExecutor(_HANDSHAKE_THREADS, "tls-handshake")

    def reload(self) -> None:
        """Make the context again if a file has changed; keep the present one if a file is invalid."""
        versions = _versions(self._files)
        if versions == self._seen:
            return
        self._seen = versions
        names = ", ".join(map(str, self._files))
        try:
            self.current = self._make()
        except TlsInvalid as error:
            _log.error(
                "tls_files_invalid", error=str(error), effect="the previous certificates remain in use"
            )
        else:
            _log.info("tls_files_reloaded", files=names)


class ServerTls(TlsContext):
    """TLS of a listener.

    With `is_enforced`, connections without TLS are refused; otherwise the first byte of a connection decides,
    as in RocketMQ's permissive mode.
    """

    def __init__(
        self,
        own: OwnCertificate,
        client_cas: Sequence[Path] = (),
        *,
        is_enforced: bool,
        protocols: Sequence[str] = (),
    ) -> None:
        """Create the TLS of a listener.

        Args:
            own: certificate of the server.
            client_cas: PEM files of CA certificates; if given, clients must present a certificate that one
                of them has signed.
            is_enforced: whether connections without TLS are refused.
            protocols: the application protocols that the server offers (ALPN), such as `h2`.

        Raises TlsInvalid if a file is missing or invalid.
        """
        self.is_enforced = is_enforced

        def make() -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.options |= ssl.OP_NO_RENEGOTIATION
            own.load_into(context)
            if protocols:
                context.set_alpn_protocols(protocols)
            for path in client_cas:
                load_ca(context, path)
                context.verify_mode = ssl.CERT_REQUIRED
            return context

        super().__init__((own.certificate, own.key, *client_cas), make)


class ClientTls(TlsContext):
    """TLS of a client: how it verifies servers, and the certificate that it presents, if any."""

    def __init__(
        self, ca_file: Path | None = None, own: OwnCertificate | None = None, *, verify: bool = True
    ) -> None:
        """Create the TLS of a client.

        Args:
            ca_file: PEM file of the CA certificates that servers' certificates are verified with. None: the
                CA certificates of the system.
            own: certificate of the client, for servers that require one.
            verify: verify the certificate and the host name of servers. Without it the connection is
                encrypted, but another machine may pose as the server.

        Raises TlsInvalid if a file is missing or invalid.
        """

        def make() -> ssl.SSLContext:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if not verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            elif ca_file is None:
                context.load_default_certs()
            else:
                load_ca(context, ca_file)
            if own is not None:
                own.load_into(context)
            return context

        super().__init__(_paths(own, ca_file if verify else None), make)


def load_ca(context: ssl.SSLContext, path: Path) -> None:
    """Trust the CA certificates of a PEM file. Raises TlsInvalid."""
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsInvalid(f"CA file {path} is not a PEM certificate: {error.reason or error}") from None
    except OSError as error:
        raise TlsInvalid(f"CA file {path}: {error.strerror or error}") from None


def _paths(own: OwnCertificate | None, ca: Path | None) -> tuple[Path, ...]:
    of_own = () if own is None else (own.certificate, own.key)
    return of_own if ca is None else (*of_own, ca)


def _versions(files: tuple[Path, ...]) -> _Versions:
    return [_version(path) for path in files]


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - follows links, such as those of Kubernetes secrets
    except OSError:
        return None
    return found.st_ctime_ns, found.st_ino, found.st_size


def _refuse_password() -> str:
    raise TlsInvalid("the private key is encrypted: store it without a password, mode 0600")
