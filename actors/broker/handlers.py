"""Who answers a broker's requests: the handlers, made of the broker's parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from actors.broker.admin.broker_info import BrokerInfo
from actors.broker.admin.cleaning import Cleaning
from actors.broker.admin.client_admin import ClientAdmin
from actors.broker.admin.offset_admin import OffsetAdmin
from actors.broker.admin.progress_requests import ProgressRequests
from actors.broker.admin.replica_requests import ReplicaRequests
from actors.broker.admin.topic_admin import AdminRequests
from actors.broker.broker_settings import BrokerSettings
from actors.broker.broker_settings_text import as_properties, by_field
from actors.broker.group.assignments import Assignments
from actors.broker.group.client_requests import ClientRequests
from actors.broker.group.offset_requests import OffsetRequests
from actors.broker.group.queue_locks import QueueLocks
from actors.broker.group.request_modes import RequestModes
from actors.broker.parts import BrokerParts
from actors.broker.reading.pull import Puller
from actors.broker.reading.queues import QueueQueries
from actors.broker.sending.replies import Replies
from actors.broker.sending.send import Sender
from actors.broker.sending.send_back import SendBack
from actors.host.settings_requests import SettingsRequests
from store.live_settings import LiveSettings


@dataclass(frozen=True, slots=True)
class Handlers:
    """The parts of a broker that answer requests."""

    sender: Sender
    replies: Replies
    send_back: SendBack
    puller: Puller
    queues: QueueQueries
    offsets: OffsetRequests
    clients: ClientRequests
    locks: QueueLocks
    admin: AdminRequests
    cleaning: Cleaning
    progress: ProgressRequests
    offset_admin: OffsetAdmin
    client_admin: ClientAdmin
    info: BrokerInfo
    modes: RequestModes
    assignments: Assignments
    replicas: ReplicaRequests
    config: SettingsRequests[BrokerSettings]


def make_handlers(
    parts: BrokerParts,
    sender: Sender,
    clients: ClientRequests,
    assignments: Assignments,
    live: LiveSettings[BrokerSettings],
    describe: Callable[[], Mapping[str, object]],
) -> Handlers:
    """All of one broker; `describe` gives the fields of DESCRIBE_BROKER."""
    cleaning = Cleaning(parts)
    return Handlers(
        sender,
        Replies(sender, parts),
        SendBack(parts),
        Puller(parts),
        QueueQueries(parts),
        OffsetRequests(parts),
        clients,
        parts.locks,
        AdminRequests(parts, cleaning.remove_queues),
        cleaning,
        ProgressRequests(parts),
        OffsetAdmin(parts),
        ClientAdmin(parts),
        BrokerInfo(parts, describe),
        parts.tables.request_modes,
        assignments,
        ReplicaRequests(parts.store, parts.tables),
        SettingsRequests(live, as_properties, by_field, parts.clock),
    )
