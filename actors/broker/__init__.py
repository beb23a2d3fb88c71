"""The broker's service: one event loop, one store, the requests that reach both.

    sending, reading   what producers and consumers request
    group              consumer groups: members, subscriptions, offsets, locks
    admin              what administrators request
    metadata           the tables of topics, groups and offsets, and their files
    loop               what is done once a turn, and the threads for what must not be done in one
    compat             work-arounds for single versions of RocketMQ's clients

`build` puts the parts together, `service` starts and stops them, `actor` is the Ray shell.
"""
