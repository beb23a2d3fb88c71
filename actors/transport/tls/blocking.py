"""TLS over a blocking socket, for callers without an event loop."""

import socket
import ssl

from actors.transport.tls.contexts import TlsContext
from actors.transport.tls.transport import describe_tls_error


def secured(plain: socket.socket, tls: TlsContext, host: str) -> ssl.SSLSocket:
    """Make the TLS handshake with the server `host` on a connected socket, within the socket's timeout.

    Raises OSError, and closes the socket, if the handshake fails.
    """
    try:
        return tls.current.wrap_socket(plain, server_hostname=host)
    except TimeoutError:
        raise
    except OSError as error:
        raise OSError(f"the TLS handshake failed: {describe_tls_error(error)}") from error
    except ValueError as error:  # after OSError: a failed verification is both
        raise OSError(f"TLS cannot verify the host name {host!r}: {error}") from error
