"""The members of a group that assign queues to themselves, as RocketMQ's clients do."""

from collections.abc import Iterator, Mapping


class SelfAssigning:
    """Who they are, which brokers hear of them, and what they subscribe to; times are the caller's."""

    def __init__(self) -> None:
        self._heard_ns: dict[str, dict[str, int]] = {}  # client → broker → when
        self._subscriptions: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._heard_ns)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._heard_ns

    def __iter__(self) -> Iterator[str]:
        return iter(self._heard_ns)

    def heard(self, client_id: str, broker: str, now_ns: int) -> None:
        """A heartbeat has come by this broker."""
        self._heard_ns.setdefault(client_id, {})[broker] = now_ns

    def subscribe(self, subscriptions: Mapping[str, str]) -> bool:
        """RocketMQ's rule: the last heartbeat wins; False where it has changed what the group wants."""
        is_same = not self._subscriptions or self._subscriptions == dict(subscriptions)
        self._subscriptions = dict(subscriptions)
        return is_same

    def lost(self, client_id: str, broker: str) -> bool:
        """A broker has it no more; says whether none has."""
        brokers = self._heard_ns[client_id]
        brokers.pop(broker, None)
        return not brokers

    def silent_since(self, moment_ns: int) -> list[str]:
        """Those of whom no broker has heard since; brokers that have not are left out from now on."""
        for brokers in self._heard_ns.values():
            for broker in [
                broker for broker, last_heartbeat_ns in brokers.items() if last_heartbeat_ns < moment_ns
            ]:
                del brokers[broker]
        return [client_id for client_id, brokers in self._heard_ns.items() if not brokers]

    def forget(self, client_id: str) -> None:
        """It is no member any more."""
        del self._heard_ns[client_id]
        if not self._heard_ns:
            self._subscriptions = {}
