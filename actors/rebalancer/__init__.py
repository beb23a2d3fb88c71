"""The rebalancer: who is in which consumer group, and which of them has which queue.

Only brokers talk to it. What they send, and get:

    7202 FORWARD_SYNC        a member's SYNC_GROUP and its answer, bodies as they are (`SyncGroupRequest`,
                             `SyncGroupReply`); refusals too: SUBSCRIPTION_DIFFERS 7002, INVALID_PARAMETER
    7201 FORWARD_HEARTBEAT   ext brokerName, language, version; body: a client's HEART_BEAT. Answer: SUCCESS.
                             A client whose language is not PYTHON assigns itself queues, and then so does
                             its whole group
    7203 FORWARD_UNREGISTER  ext brokerName, clientId, consumerGroup, connectionClosed ("true": the broker
                             saw the connection end; the client may be alive and connected elsewhere).
                             Answer: SUCCESS
    7204 GROUP_MEMBERS       ext consumerGroup. Answer: `GroupMembers`
    7205 GROUP_CHANGED       one-way, to every broker that sent something of the group: ext consumerGroup,
                             body `GroupMembers`. The broker tells its members of it
                             (NOTIFY_CONSUMER_IDS_CHANGED), and they sync at once
"""
