"""The rebalancer: membership of consumer groups and assignment of queues to their members.

Only brokers connect to it. Requests and responses:

    7202 FORWARD_SYNC        A member's SYNC_GROUP request and its response, bodies unchanged
                             (`SyncGroupRequest`, `SyncGroupReply`), error codes too: SUBSCRIPTION_DIFFERS
                             7002, INVALID_PARAMETER.
    7201 FORWARD_HEARTBEAT   Header: brokerName, language, version. Body: a client's HEART_BEAT. Response:
                             SUCCESS. A client whose language is not PYTHON assigns queues to itself, and
                             then its whole group must.
    7203 FORWARD_UNREGISTER  Header: brokerName, clientId, consumerGroup, connectionClosed. Response: SUCCESS.
                             If connectionClosed is "true", only the connection to this broker was closed;
                             the client may be alive and connected to another broker.
    7204 GROUP_MEMBERS       Header: consumerGroup. Response: `GroupMembers`.
    7205 GROUP_CHANGED       One-way, sent to every broker that has sent a request for the group. Header:
                             consumerGroup. Body: `GroupMembers`. The broker notifies its members with
                             NOTIFY_CONSUMER_IDS_CHANGED, and they send SYNC_GROUP immediately.
"""
