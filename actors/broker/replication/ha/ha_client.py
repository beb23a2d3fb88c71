"""HaClient: follows the master of a slave: receives its CommitLog and appends it to the slave's own.

    find the master (nameserver) ──> its bounds ──> connect ──> report, compare ──> joined: append, report …
              └──────────<── back-off ──<── any failure ───────────────────┘
                                                                  logs differ ──> stopped

A report acknowledges what the slave has confirmed: under sync flush, what is flushed to its disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from actors.broker.core.loop.reads import Reads
from actors.broker.replication.ha.ha_frames import HaFrameReader, encode_report
from actors.broker.replication.ha.ha_requests import HA_ADDRESS
from actors.broker.replication.ha.log_copy import LogBounds, LogCopy, LogDiverged, join_offset
from actors.broker.replication.promotion_epochs import PromotionEpochs, StaleMaster
from actors.transport.client import RemotingClient, parse_address
from actors.transport.tls.contexts import ClientTls
from actors.wire.bodies.routes import decode_kv_table
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerResponse
from actors.wire.raymq_requests import FOLLOWING, STOPPED
from actors.wire.remoting_errors import ProtocolError, Refused, RemotingError
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.disk.files import explain
from store.message.json_text import parse_rocketmq_json
from store.message_store import MessageStore
from store.ownership.divergence import Divergence, remove_divergence, write_divergence
from store.ownership.first_copy import begin_first_copy
from store.store_errors import StoreError

_log = get_logger(__name__)

READ_BYTES: Final = 1 << 20
REPORT_INTERVAL_MS: Final = 5_000
"""The longest time between two reports (RocketMQ's haSendHeartbeatInterval)."""
SILENCE_MAX_MS: Final = 20_000
"""A connection on which nothing arrives for this long is closed (RocketMQ's haHousekeepingInterval)."""
CONNECT_TIMEOUT_MS: Final = 5_000
REQUEST_TIMEOUT_MS: Final = 5_000
FIRST_BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 5_000
FILE_SIZE_KEY: Final = "mappedFileSizeCommitLog"
UNDISPATCHED_MAX_BYTES: Final = 64 << 20
"""The slave reads no more from its connection while so many bytes wait for dispatch."""
DISPATCH_PAUSE_MS: Final = 2


_REMEDY: Final = (
    "to copy the master's log again, stop this broker, run `raymq replica resync {}` on its machine, and "
    "start it"
)


class _NoMaster(Exception):
    """The slave has no master that it can follow; the message is the reason."""


_INTERRUPTIONS: Final = (
    _NoMaster, StaleMaster, OSError, EOFError, ProtocolError, Refused, RemotingError, StoreError,
)  # fmt: skip
"""Failures after which a slave looks for its master again."""


class HaClient:
    """Follows one master after the other until it is stopped, or until its log differs from the master's."""

    def __init__(
        self,
        store: MessageStore,
        reads: Reads,
        clock: Clock,
        client: RemotingClient,
        find_master: Callable[[], RegisterBrokerResponse],
        request_tick: Callable[[], None],
        on_joined: Callable[[], None],
        epochs: PromotionEpochs,
        tls: ClientTls | None = None,
    ) -> None:
        """Create the client.

        Args:
            store: the slave's store.
            reads: reads the end of the slave's log.
            clock: measures silence.
            client: sends requests to the master.
            find_master: returns the last known addresses of the master, and looks for new ones.
            request_tick: requests a turn, which flushes, confirms and dispatches.
            on_joined: called when the slave has found that its log is a part of the master's.
            epochs: the epochs of the group; a master of a lower one is not followed.
            tls: TLS of the connection to the HA port, if it uses TLS.
        """
        self._store = store
        self._reads = reads
        self._clock = clock
        self._client = client
        self._find_master = find_master
        self._request_tick = request_tick
        self._on_joined = on_joined
        self._epochs = epochs
        self._tls = tls
        self._backoff_ms = FIRST_BACKOFF_MS
        self._problem = ""
        self._epoch = 0
        self.state = "not started"
        """`following`, or why the slave does not follow a master."""
        self.master = ""
        """The address of the master that the slave follows, or has followed last."""
        self.joined = ""
        """The address of the master while the slave follows it; else empty."""
        self.bytes_received = 0

    async def run(self) -> None:
        """Follow the master until the task is cancelled. Returns if the logs differ."""
        while True:
            try:
                await self._follow()
            except LogDiverged as error:
                await self._stop(error)
                return
            except _INTERRUPTIONS as error:
                self._note_failure(error)
            await asyncio.sleep(self._backoff_ms / 1000)
            self._backoff_ms = min(2 * self._backoff_ms, MAX_BACKOFF_MS)

    async def _stop(self, error: LogDiverged) -> None:
        """Save where the logs differ, for `raymq replica resync`, and report it."""
        root = self._store.root
        file_bytes = error.file_bytes or self._store.settings.commit_log_file_bytes
        divergence = Divergence(error.position, self.master, self._epoch, file_bytes, str(error))
        try:
            await asyncio.to_thread(write_divergence, root, divergence)
        except OSError as failure:
            _log.error("divergence_not_saved", root=str(root), error=explain(failure))
        self.state = f"{STOPPED}: {error}; {_REMEDY.format(root)}"
        _log.error("replication_stopped", master=self.master, error=self.state)

    def _note_failure(self, error: Exception) -> None:
        problem = str(error) or type(error).__name__
        self.state = f"waiting: {problem}"
        if problem != self._problem:
            _log.warning("replication_interrupted", master=self.master, error=problem)
        self._problem = problem

    async def _follow(self) -> None:
        """Connect to the master and append its log until the connection fails."""
        master = self._find_master()
        if not master.master_addr:
            raise _NoMaster("no nameserver knows a master of this broker")
        self.master = master.master_addr
        ha_address = await self._ha_address(master)
        if not ha_address:
            raise _NoMaster(f"the master {self.master} has no HA port: set `replication` on it")
        store = self._store
        epochs = await self._epochs.of_master(self._client, self.master)
        self._epoch = epochs[-1][0] if epochs else 0
        await self._check_file_size(self.master)
        bounds = await bounds_of(self._client, self.master)
        held = LogBounds(store.positions.min, store.positions.written)
        begin = join_offset(held, bounds, store.settings.commit_log_file_bytes)
        tail = await self._reads.read(partial(self._tail, begin, held.end))
        copy = LogCopy(store, begin, tail, bounds.end)
        if not held.end:
            await asyncio.to_thread(begin_first_copy, store.root)
        host, port = parse_address(ha_address)
        context = None if self._tls is None else self._tls.current
        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            reader, writer = await asyncio.open_connection(host, port, limit=READ_BYTES, ssl=context)
        try:
            await self._receive(copy, epochs, reader, writer)
        finally:
            self.joined = ""
            writer.close()

    async def _ha_address(self, master: RegisterBrokerResponse) -> str:
        """Return the address of the master's HA port: from the master if it has proved itself."""
        if not (await self._client.connect(self.master)).is_proven:
            return master.ha_server_addr or ""
        command = RemotingCommand(RequestCode.GET_BROKER_HA_STATUS)
        response = await self._client.ask(self.master, command, REQUEST_TIMEOUT_MS)
        return str(parse_rocketmq_json(response.body).get(HA_ADDRESS, ""))

    async def _check_file_size(self, master: str) -> None:
        """Raise LogDiverged if the files of the master's log have another size."""
        command = RemotingCommand(RequestCode.GET_BROKER_CONFIG)
        response = await self._client.ask(master, command, REQUEST_TIMEOUT_MS)
        lines = bytes(response.body).decode(errors="replace").splitlines()
        found = dict(line.partition("=")[::2] for line in lines).get(FILE_SIZE_KEY, "")
        file_bytes = self._store.settings.commit_log_file_bytes
        if found.isdigit() and int(found) != file_bytes:
            raise LogDiverged(
                f"the master's log files have {int(found):,} bytes, this slave's {file_bytes:,}: "
                f"set commit_log_file_bytes: {found}",
                self._store.positions.min,
                int(found),
            )

    def _tail(self, begin: int, end: int) -> bytes:
        return bytes(self._store.log_bytes(begin, end - begin)) if begin < end else b""

    async def _receive(
        self,
        copy: LogCopy,
        epochs: Sequence[tuple[int, int]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        store, frames = self._store, HaFrameReader()
        writer.write(encode_report(copy.first_report))
        if copy.is_compared:  # this log is empty
            await self._join(epochs)
        heard_ns = self._clock.monotonic_ns()

        def report(error: StoreError | None = None) -> None:
            if error is None and not writer.is_closing():
                writer.write(encode_report(min(copy.end, max(store.positions.confirmed, copy.first_report))))

        while True:
            data = await _read(reader)
            if data is None:
                if self._clock.monotonic_ns() - heard_ns > SILENCE_MAX_MS * NS_PER_MS:
                    raise EOFError(f"nothing received from the master for {SILENCE_MAX_MS} ms")
                report()
                continue
            if not data:
                raise EOFError("the master has closed the connection")
            heard_ns = self._clock.monotonic_ns()
            self.bytes_received += len(data)
            received = frames.received(data)
            if received and copy.take(received):
                store.on_confirmed(store.positions.written, report, 0)
                self._request_tick()
            elif received:
                report()
            if copy.is_compared and not self.joined:
                await self._join(epochs)
            await self._wait_for_dispatch()

    async def _join(self, epochs: Sequence[tuple[int, int]]) -> None:
        await self._epochs.adopt(epochs)
        remove_divergence(self._store.root)
        self._backoff_ms = FIRST_BACKOFF_MS
        self._problem = ""
        self.state, self.joined = FOLLOWING, self.master
        _log.info("replication_joined", master=self.master, end=self._store.positions.written)
        self._on_joined()

    async def _wait_for_dispatch(self) -> None:
        """Let other requests run, and wait while dispatch is far behind."""
        positions = self._store.positions
        await asyncio.sleep(0)
        while positions.written - positions.dispatched > UNDISPATCHED_MAX_BYTES:
            self._request_tick()
            await asyncio.sleep(DISPATCH_PAUSE_MS / 1000)


async def bounds_of(client: RemotingClient, master: str) -> LogBounds:
    """Return the bounds of the log of the master at the address `master`.

    Raises Refused or RemotingError; ProtocolError if the response has no bounds.
    """
    command = RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO)
    response = await client.ask(master, command, REQUEST_TIMEOUT_MS)
    table = decode_kv_table(response.body)
    try:
        return LogBounds(int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"]))
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"the master reports no bounds of its CommitLog: {error!r}") from error


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    """Return received bytes; b"" at the end of the connection, None if nothing arrives for a while."""
    try:
        async with asyncio.timeout(REPORT_INTERVAL_MS / 1000):
            return await reader.read(READ_BYTES)
    except TimeoutError:
        return None
