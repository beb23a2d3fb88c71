"""Checks that a CA of clients is not one of the cluster's processes: a client must not pass for a process."""

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from actors.transport.tls.contexts import TlsInvalid


def check_separate(ca: Path, client_ca: Path) -> None:
    """Raise TlsInvalid if every CA of `client_ca` is trusted with `ca`: no CA signs only for clients.

    A CA is trusted if it is there, also with a renewed certificate, or if one there has signed it.
    """
    if ca == client_ca or _are_trusted(_certificates(client_ca), _certificates(ca)):
        raise TlsInvalid(
            f"tls_ca {ca} also trusts the CA of clients, tls_client_ca {client_ca}: with ha_tls every client "
            "could read the whole log. Sign the certificates of clients with a CA of their own"
        )


def _certificates(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError as error:
        raise TlsInvalid(f"CA file {path} is not a PEM certificate: {error}") from None
    except OSError as error:
        raise TlsInvalid(f"CA file {path}: {error.strerror or error}") from None


def _are_trusted(certificates: list[x509.Certificate], trusted: list[x509.Certificate]) -> bool:
    return all(
        any(_key(each) == _key(known) or _is_signed(each, known) for known in trusted)
        for each in certificates
    )


def _is_signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):  # another name, kind of key, or key
        return False
    return True


def _key(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
