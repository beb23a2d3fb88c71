"""Access control within a cluster: the inner user, with which its processes authenticate to each other.

All processes of a cluster read the inner user's credentials from a file (setting `inner_credentials_file`)
and sign the requests that they send to each other, and their responses to these:

    rebalancer   accepts only requests of the inner user; clients never connect to it
    nameserver   serves routes and the kv config to every client, as in RocketMQ; the rest needs the inner
                 user or a user of its `access_file`
    broker       accepts the inner user as a super user, and the users of its AccessFile
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import AliasChoices, Field

from actors.access.signatures import SignatureCheck
from actors.bounds import Use
from actors.host.cluster_tls import TlsSettings, client_tls
from actors.transport.chain import Step
from actors.transport.client import RemotingClient, SigningClient
from actors.transport.clients.proofs import Demand
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow
from actors.transport.table import RequestTable
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.settings_text import Addresses
from actors.wire.signing import ACCESS_KEY, RECEIVER, CredentialsInvalid, Signer, read_credentials
from store.common.clock import Clock
from store.common.logs import get_logger
from store.store_errors import StoreError

_log = get_logger(__name__)

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
    receiver_addresses: Addresses = Field(default_factory=list)
    """Further addresses (`host:port`) by which the other processes of the cluster reach this one, if they are
    translated on the way (NAT, load balancer). A request that was sent to another address is refused. A
    process knows its addresses in the topology (`advertised_host`) without it.
    """
    accept_unsigned_responses: bool = False
    """Whether the other processes of the cluster may be of a version that does not sign its responses, or
    RocketMQ's brokers: while a cluster is upgraded, or mixed. They get no secret keys, and decide no login.
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


def signature_check(settings: AccessSettings, clock: Clock, addresses: Sequence[str] = ()) -> SignatureCheck:
    """Return the check of signatures of a process that others reach at these addresses too."""
    return SignatureCheck(clock, settings.signature_window_ms, (*addresses, *settings.receiver_addresses))


def cluster_client(
    settings: AccessSettings,
    inner: Signer | None,
    clock: Clock,
    nameservers: Collection[str],
    table: RequestTable | None = None,
) -> RemotingClient:
    """Return the client with which a process sends requests to the others of its cluster.

    With access control they must prove that they are of the cluster, except nameservers, which may have no
    access control. `table` handles requests that they push.

    Raises StoreError if a certificate of the settings is invalid.
    """
    tls = client_tls(settings)
    if inner is None:
        return RemotingClient(clock, table, tls=tls)
    demand = Demand.NOTHING
    if settings.authentication_enabled:
        demand = Demand.PROOF_OF_NEWER if settings.accept_unsigned_responses else Demand.PROOF
    if demand is Demand.PROOF_OF_NEWER:
        _log.warning("unsigned_responses_accepted", remedy="omit accept_unsigned_responses after the upgrade")
    return SigningClient(clock, inner, table, tls=tls, demand=demand, nameservers=lambda: nameservers)


def prove(context: RequestContext) -> RemotingCommand:
    """Handle PROVE_PEER: the signature of the response is the proof."""
    return RemotingCommand.response()


PROVE_ROW: Final = RequestRow(
    RayMQRequestCode.PROVE_PEER, prove, None, cost=Cost.CLIENT, on_slave=OnSlave.SERVED
)
"""The row of PROVE_PEER, which every process has."""


class Proving:
    """Step that signs the responses to requests of the inner user, also to those that need no signature.

    It refuses no request: a requester that demands a proof gets none if its signature is wrong.
    """

    def __init__(self, inner: Signer, check: SignatureCheck) -> None:
        self._inner = inner
        self._check = check

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return self._check.bounds()

    def __call__(self, context: RequestContext) -> None:
        """Let the response be signed if the inner user has signed the request and named this receiver."""
        ext, name = context.command.ext, self._inner.access_key
        if RECEIVER in ext and ext.get(ACCESS_KEY) == name:
            with suppress(Refused):
                self._check(context, name, self._inner, True, _INNER_REQUIRED)


class InnerUserOnly:
    """Step of the request chain that rejects requests which are not signed by the inner user."""

    def __init__(self, inner: Signer, check: SignatureCheck) -> None:
        self._inner = inner
        self._check = check

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return self._check.bounds()

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused (NO_PERMISSION) unless the inner user has signed the request."""
        name = context.command.ext.get(ACCESS_KEY)
        if not name:
            raise Refused(ResponseCode.NO_PERMISSION, _INNER_REQUIRED)
        signer = self._inner if name == self._inner.access_key else None
        self._check(context, name, signer, True, _INNER_REQUIRED)


def inner_user_steps(settings: AccessSettings, inner: Signer | None, clock: Clock) -> tuple[Step, ...]:
    """Return the chain steps of a rebalancer; they refuse nothing if authentication is disabled."""
    if inner is None:
        return ()
    check = signature_check(settings, clock)
    return ((InnerUserOnly if settings.authentication_enabled else Proving)(inner, check),)
