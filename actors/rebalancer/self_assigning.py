"""SelfAssigning: members of a group that assign queues to themselves, as RocketMQ's clients do."""

from collections.abc import Iterator, Mapping


class SelfAssigning:
    """The self-assigning members, the time of their last heartbeat to each broker, and their subscriptions.

    Times are monotonic nanoseconds, passed in by the caller.
    """

    def __init__(self) -> None:
        self._heartbeats_ns: dict[str, dict[str, int]] = {}  # client → broker → last heartbeat
        self._subscriptions: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._heartbeats_ns)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._heartbeats_ns

    def __iter__(self) -> Iterator[str]:
        return iter(self._heartbeats_ns)

    def record_heartbeat(self, client_id: str, broker: str, now_ns: int) -> None:
        """Record a heartbeat that a client sent to `broker`."""
        self._heartbeats_ns.setdefault(client_id, {})[broker] = now_ns

    def subscribe(self, subscriptions: Mapping[str, str]) -> bool:
        """Set the subscriptions of the group; return False if they have changed.

        As in RocketMQ, the last heartbeat wins.
        """
        is_same = not self._subscriptions or self._subscriptions == dict(subscriptions)
        self._subscriptions = dict(subscriptions)
        return is_same

    def remove_broker(self, client_id: str, broker: str) -> bool:
        """Remove the last heartbeat of a client to `broker`.

        Returns True if no broker has a heartbeat of the client any more.
        """
        brokers = self._heartbeats_ns[client_id]
        brokers.pop(broker, None)
        return not brokers

    def expire_heartbeats(self, oldest_ns: int) -> list[str]:
        """Remove heartbeats older than `oldest_ns`; return the clients that have none left."""
        for brokers in self._heartbeats_ns.values():
            for broker in [
                broker for broker, last_heartbeat_ns in brokers.items() if last_heartbeat_ns < oldest_ns
            ]:
                del brokers[broker]
        return [client_id for client_id, brokers in self._heartbeats_ns.items() if not brokers]

    def forget(self, client_id: str) -> None:
        """Remove a member."""
        del self._heartbeats_ns[client_id]
        if not self._heartbeats_ns:
            self._subscriptions = {}
