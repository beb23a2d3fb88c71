"""Registration: registers the broker's topics with every nameserver, every 30 s and on every change.

Nameservers do not talk to each other, so the broker registers all topics with each of them. If a nameserver
does not respond or its connection closes, the broker retries every second, without delaying the registration
with the others. Changes within `GATHER_MS` are sent in one request. If few topics have changed, it has only
these, as in RocketMQ: the time to create a topic does not grow with their number. As in RocketMQ, the broker
acknowledges the creation of a topic after the nameservers have registered it, because clients request the
route next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from actors.supervisor import Supervisor
from actors.transport.client import RemotingClient
from actors.transport.connection import Connection
from actors.wire.bodies.routes import MASTER_ID, decode_kv_table
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerHeader, RegisterBrokerResponse
from actors.wire.remoting_errors import Refused, RemotingError
from store.common.logs import get_logger

_log = get_logger(__name__)

WhenRegistered = Callable[[Callable[[], None]], None]
"""Calls its argument when all changes so far are registered (`Registration.when_registered`)."""

PARTIAL = "partial"
"""Header field of each part of a registration (RegisterBrokerHeader)."""
REGISTER_TIMEOUT_MS = 6000
UNREGISTER_TIMEOUT_MS = 1000
RETRY_MS = 1000
GATHER_MS = 2
CHANGED_TOPICS_MAX = 100
"""Most topics that are registered without the others, in one request."""
ALL_TOPICS = ""
"""Stands for a change of all topics, among the names of changed topics."""
# The longest time that `when_registered` waits for a nameserver that has not responded yet.
SETTLE_TIMEOUT_MS = 1000


class _Waiting:
    """A callback that is due when all changes up to `changes` are registered, or after SETTLE_TIMEOUT_MS."""

    def __init__(self, changes: int, call: Callable[[], None]) -> None:
        self.changes = changes
        self._call: Callable[[], None] | None = call
        self._timer = asyncio.get_running_loop().call_later(SETTLE_TIMEOUT_MS / 1000, self.release)

    def release(self) -> None:
        self._timer.cancel()
        call, self._call = self._call, None
        if call is not None:
            call()


class Registration:
    """Keeps one broker registered with all nameservers until `stop`."""

    def __init__(
        self,
        client: RemotingClient,
        nameservers: Sequence[str],
        interval_ms: int,
        header: Callable[[int], RegisterBrokerHeader],
        body: Callable[[Collection[str] | None], Iterator[bytes]],
        on_ordered: Callable[[Iterable[str]], None],
        supervisor: Supervisor,
    ) -> None:
        """Create the registration.

        Args:
            client: connects to the nameservers.
            nameservers: their addresses, `host:port`.
            interval_ms: time between registrations if nothing changes.
            header: returns the names and addresses of the broker, for the broker id of its role.
            body: returns the current RegisterBrokerBody, encoded: in one part with the topics of these
                names, or in one or several parts with all topics.
            on_ordered: called with the topics in a nameserver's order configuration (ORDER_TOPIC_CONFIG).
            supervisor: runs one task for each nameserver.
        """
        self._client = client
        self._interval_ms = interval_ms
        self._header = header
        self._body = body
        self._on_ordered = on_ordered
        self._on_fenced: Callable[[str], None] | None = None
        self._supervisor = supervisor
        self._changed = {address: asyncio.Event() for address in nameservers}
        self._tasks: list[asyncio.Task[None]] = []
        self._failing: set[str] = set()
        self._changes = 0
        self._registered = dict.fromkeys(nameservers, 0)
        self._changed_topics: dict[str, set[str]] = {address: set() for address in nameservers}
        # The connections of the nameservers that have all topics except the changed ones.
        self._complete: dict[str, Connection] = {}
        self._waiting: deque[_Waiting] = deque()
        self._watched: dict[str, Connection] = {}
        self._broker_id = MASTER_ID
        self._registered_id: int | None = None
        self.master = RegisterBrokerResponse()
        """For a slave, the addresses of its master; None before a nameserver has returned them."""
        self.fenced_because = ""
        """Why this is a former master: a nameserver has registered a master of a greater epoch."""

    def when_fenced(self, on_fenced: Callable[[str], None]) -> None:
        """Call `on_fenced` with the reason when a nameserver refuses this master.

        Then it has registered a master of a greater epoch. Without this call, the master finds that out by
        itself.
        """
        self._on_fenced = on_fenced

    @property
    def is_fenced(self) -> bool:
        """True if a nameserver has refused this master, because another replica was promoted."""
        return bool(self.fenced_because)

    async def start(self, broker_id: int, delay_ms: int = 0) -> None:
        """Register this id with all nameservers, then start the tasks that repeat the registration.

        With `delay_ms`, the tasks make the first registration, after this time.
        """
        self._broker_id = broker_id
        self._complete.clear()
        if not delay_ms:
            await asyncio.gather(*map(self._register, self._changed))
        self._tasks = [
            self._supervisor.start(f"registration-{address}", partial(self._run, address, changed, delay_ms))
            for address, changed in self._changed.items()
        ]

    @property
    def is_master(self) -> bool:
        """True if the last registration was that of the master."""
        return self._registered_id == MASTER_ID

    def changed(self, topic: str = ALL_TOPICS) -> None:
        """Report that a topic was created or changed, or any other change of the topics or settings.

        All nameservers get it within a few milliseconds.
        """
        self._changes += 1
        for address, changed in self._changed.items():
            self._changed_topics[address].add(topic)
            changed.set()

    def when_registered(self, call: Callable[[], None]) -> None:
        """Call `call` when every responding nameserver has registered all changes so far.

        Waits SETTLE_TIMEOUT_MS at most. If there is nothing to wait for, `call` runs before this returns.
        """
        if self._registered_changes() >= self._changes:
            call()
            return
        self._waiting.append(_Waiting(self._changes, call))

    def _registered_changes(self) -> int:
        return min(
            (changes for address, changes in self._registered.items() if address not in self._failing),
            default=self._changes,
        )

    def _release_registered(self) -> None:
        registered = self._registered_changes()
        while self._waiting and self._waiting[0].changes <= registered:
            self._waiting.popleft().release()

    async def stop(self, *, leave_routes: bool = True) -> None:
        """Stop the tasks and unregister the id that was registered.

        `leave_routes` is False if another process serves the broker now and has registered it: then the
        registration is kept.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if leave_routes:
            await asyncio.gather(*map(self._unregister, self._changed))
        self._failing.update(self._changed)  # nothing is registered any more, so nothing waits for it
        self._release_registered()

    async def _run(self, address: str, changed: asyncio.Event, delay_ms: int) -> None:
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
            changed.set()
        while True:
            try:
                wait_ms = RETRY_MS if address in self._failing else self._interval_ms
                async with asyncio.timeout(wait_ms / 1000):
                    await changed.wait()
                    await asyncio.sleep(GATHER_MS / 1000)  # further changes are sent in the same request
            except TimeoutError:
                pass
            try:
                await self._register(address)
            except Exception:
                changed.set()  # the restarted task registers immediately, not after the interval
                raise

    async def _register(self, address: str) -> None:
        self._changed[address].clear()
        changes = self._changes
        topics = self._take_changed_topics(address)
        await self._register_parts(address, self._body(topics), is_partial=topics is not None)
        self._registered[address] = changes
        self._release_registered()
        connection = self._client.connection(address)
        if connection is None:
            return
        if address not in self._failing:
            self._complete[address] = connection
        if connection is not self._watched.get(address):
            # A restarted nameserver has lost all registrations: register again as soon as it listens.
            self._watched[address] = connection
            connection.on_close(lambda _: self._changed[address].set())

    def _take_changed_topics(self, address: str) -> Collection[str] | None:
        """Return the topics to register with a nameserver, or None to register all.

        The caller must send them before it awaits anything else: a restarted nameserver needs all topics.
        """
        topics, self._changed_topics[address] = self._changed_topics[address], set()
        complete = self._complete.pop(address, None)  # set again when the registration has succeeded
        if complete is None or complete is not self._client.connection(address):
            return None
        return None if ALL_TOPICS in topics or not 0 < len(topics) <= CHANGED_TOPICS_MAX else topics

    async def _register_parts(self, address: str, parts: Iterator[bytes], *, is_partial: bool) -> None:
        self._registered_id = self._broker_id
        header, part = self._header(self._broker_id).to_ext(), next(parts, None)
        while part is not None:
            following = next(parts, None)
            if is_partial or following is not None:
                header[PARTIAL] = "true"
            command = RemotingCommand(RequestCode.REGISTER_BROKER, dict(header), part)
            response = await self._send(address, command, REGISTER_TIMEOUT_MS)
            if response is not None:
                self._note_master(response)
            part = None if address in self._failing else following

    async def _unregister(self, address: str) -> None:
        header = self._header(self._registered_id or MASTER_ID).to_ext()
        command = RemotingCommand(RequestCode.UNREGISTER_BROKER, header)
        await self._send(address, command, UNREGISTER_TIMEOUT_MS)

    def _note_master(self, response: RemotingCommand) -> None:
        """Keep the addresses of the master; a nameserver without a live master returns none."""
        master = RegisterBrokerResponse.from_ext(response.ext)
        if master.master_addr and master != self.master:
            self.master = master
            _log.info("master_found", address=master.master_addr, ha_address=master.ha_server_addr)

    def _fence(self, remark: str) -> None:
        if self._on_fenced is not None and not self.is_fenced:
            reason = f"another replica was promoted, restart this one with role: slave: {remark}"
            self.fenced_because = reason
            _log.error("master_fenced", reason=reason)
            self._on_fenced(reason)

    async def _send(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand | None:
        """Send a request; return its response if that is a success, else log the problem once."""
        response = None
        try:
            response = await self._client.invoke(address, command, timeout_ms)
            if response.code == ResponseCode.SUCCESS:
                self._on_ordered(decode_kv_table(response.body))
                problem = None
            else:
                problem = f"code {response.code}: {response.remark}"
                if response.code == ResponseCode.FENCED_MASTER_EPOCH and self._broker_id == MASTER_ID:
                    self._fence(str(response.remark))
                response = None
        except (RemotingError, Refused) as error:
            problem = str(error)
        if problem is not None and address not in self._failing:
            self._failing.add(address)
            _log.warning("registration_failed", nameserver=address, error=problem)
        elif problem is None and address in self._failing:
            self._failing.discard(address)
            _log.info("registration_resumed", nameserver=address)
        return response
