"""PromotionEpochs: which master of a pair is the newest one.

Each promotion gives the pair a greater epoch (`group_epoch`). Every replica keeps the list of epochs, with
the CommitLog offsets at which they begin, in `epochFileCheckpoint`. So a former master is recognized:

    nameservers     refuse its registration, because its stateVersion is its lower epoch
    slaves          do not follow a master whose epoch is lower than the greatest one that they know
    its own store   cannot be opened as the master of a lower epoch than the last one in its list, or of the
                    epoch in which a nameserver refused it (`fenced.json`)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec
import orjson

from actors.broker.broker_settings import BrokerSettings, broker_id_of
from actors.raft.epoch_file import (
    EPOCH_FILE_CHECKPOINT,
    FENCED_FILE,
    epoch_file_text,
    is_increasing,
    read_epochs,
)
from actors.transport.client import RemotingClient
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import ProtocolError, Refused
from actors.wire.targets import Action, on_cluster
from store.common.logs import get_logger
from store.disk.files import replace_file, sync_directory
from store.store_errors import StoreError

_log = get_logger(__name__)

REQUEST_TIMEOUT_MS = 5_000
LONG_MAX = 2**63 - 1
"""The end of the last epoch, as RocketMQ encodes it."""


class StaleMaster(Exception):
    """A master has a lower epoch than its slave knows: a newer master was promoted."""


class _EpochEntry(msgspec.Struct):
    epoch: int
    offset: int = msgspec.field(name="startOffset")


class _EpochCache(msgspec.Struct):
    epochs: list[_EpochEntry] = msgspec.field(name="epochList")


class _Fence(msgspec.Struct):
    epoch: int
    reason: str


class PromotionEpochs:
    """The epochs of a pair that one replica knows."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Load the list. Without `group_epoch` the pair has no epochs, and the list is not read.

        Raises:
            StoreError: the list is damaged.
            OSError: the list cannot be read.
        """
        self._settings = settings
        self._path = settings.store_root / EPOCH_FILE_CHECKPOINT
        self._fenced_path = settings.store_root / FENCED_FILE
        self.epochs = read_epochs(self._path) if settings.group_epoch else []
        """(epoch, CommitLog offset) pairs, in increasing order."""

    @property
    def greatest(self) -> int:
        """The greatest epoch that this replica knows; 0: none."""
        return max(self._settings.group_epoch, self.epochs[-1][0] if self.epochs else 0)

    def begin(self, log_end: int) -> None:
        """Begin the epoch of the settings as its master, whose log ends at the CommitLog offset `log_end`.

        A master that restarts continues its epoch.

        Raises:
            StoreError: the list has a greater epoch, or this epoch was fenced, so this is a former master.
            OSError: the list cannot be written.
        """
        epoch = self._settings.group_epoch
        fence = self._fence()
        if fence is not None and fence.epoch >= epoch:
            raise StoreError(
                f"this broker was fenced as the master of group_epoch {fence.epoch}: {fence.reason} (if it "
                "is to be the master again, raise group_epoch on all replicas)",
                self._fenced_path,
            )
        last = self.epochs[-1][0] if self.epochs else 0
        if last > epoch:
            raise StoreError(
                f"group_epoch {epoch} is lower than epoch {last} of this store: another replica was promoted "
                "since; start this broker with role: slave and the group_epoch of the present master",
                self._path,
            )
        if last < epoch:
            # An epoch that begins at or after the end of the log has no record here.
            self._replace([*(each for each in self.epochs if each[1] < log_end), (epoch, log_end)])
            _log.info("epoch_begun", epoch=epoch, offset=log_end)
        if fence is not None:
            self._fenced_path.unlink()
            sync_directory(self._fenced_path.parent)

    async def save_fence(self, reason: str) -> None:
        """Record that this master was fenced, for its next starts. Raises OSError."""
        fence = _Fence(self._settings.group_epoch, reason)
        await asyncio.to_thread(replace_file, self._fenced_path, msgspec.json.encode(fence))

    def _fence(self) -> _Fence | None:
        try:
            return msgspec.json.decode(self._fenced_path.read_bytes(), type=_Fence)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise StoreError(
                f"is damaged: {error} (this broker was fenced, because another replica was promoted: start "
                "it with role: slave; delete the file only if it is to be the master again)",
                self._fenced_path,
            ) from error

    async def of_master(self, client: RemotingClient, master: str) -> Sequence[tuple[int, int]]:
        """Return the epochs of the master at an address; none if this group has no epochs.

        Raises:
            StaleMaster: the master's epoch is lower than the greatest one known here.
            ProtocolError: the response is not a list of epochs.
            Refused, RemotingError: the master does not return its epochs.
        """
        if not self._settings.group_epoch:
            return []
        command = RemotingCommand(RequestCode.GET_BROKER_EPOCH_CACHE)
        response = await client.ask(master, command, REQUEST_TIMEOUT_MS)
        try:
            entries = msgspec.json.decode(bytes(response.body), type=_EpochCache).epochs
        except msgspec.DecodeError as error:
            raise ProtocolError(f"the master {master} returned no list of epochs: {error}") from error
        epochs = [(each.epoch, each.offset) for each in entries]
        if not is_increasing(epochs) or any(min(each) < 0 for each in epochs):
            raise ProtocolError(f"the epochs of the master {master} do not increase: {epochs[:10]}")
        epoch = epochs[-1][0] if epochs else 0
        if epoch < self.greatest:
            raise StaleMaster(
                f"the master {master} has epoch {epoch}, but epoch {self.greatest} is known: it is a former "
                "master; stop it, or start it as a slave"
            )
        return epochs

    async def adopt(self, epochs: Sequence[tuple[int, int]]) -> None:
        """Save the epochs of a master whose log this replica's is a part of. Raises OSError."""
        if epochs and list(epochs) != self.epochs:
            await asyncio.to_thread(self._replace, list(epochs))

    def _replace(self, epochs: list[tuple[int, int]]) -> None:
        replace_file(self._path, epoch_file_text(epochs).encode())
        self.epochs = epochs


class EpochRequests:
    """Request handler for the list of epochs."""

    def __init__(self, settings: BrokerSettings, epochs: PromotionEpochs, log_end: Callable[[], int]) -> None:
        """Create the handler; `log_end` returns the end of the CommitLog."""
        self._settings = settings
        self._epochs = epochs
        self._log_end = log_end

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, get = RequestCode.GET_BROKER_EPOCH_CACHE, on_cluster(Action.GET)
        return (RequestRow(code, self.epochs, None, get, on_slave=OnSlave.SERVED),)

    def epochs(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_BROKER_EPOCH_CACHE: return the epochs and the end of the log (EpochEntryCache)."""
        settings, epochs = self._settings, self._epochs.epochs
        if not settings.group_epoch:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"broker {settings.broker_name} has no epochs: group_epoch is not set",
            )
        ends = [*(offset for _, offset in epochs[1:]), LONG_MAX]
        body = {
            "brokerId": broker_id_of(settings.role, settings.replica),
            "brokerName": settings.broker_name,
            "clusterName": settings.cluster_name,
            "epochList": [
                {"endOffset": end, "epoch": epoch, "startOffset": offset}
                for (epoch, offset), end in zip(epochs, ends, strict=False)
            ],
            "maxOffset": self._log_end(),
        }
        return RemotingCommand.response(body=orjson.dumps(body))
