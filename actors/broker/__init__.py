"""The broker: one event loop, one store, and the handlers of its requests.

    sending, reading   the requests of producers and consumers
    group              consumer groups: members, subscriptions, offsets, queue locks
    admin              the requests of administrators
    metadata           the tables of topics, groups and offsets, and their files
    loop               the work of each turn of the event loop, and the threads for blocking work
    compat             work-arounds for single versions of RocketMQ's clients

`build` creates all objects of a broker, `service` starts and stops them, `actor` is the Ray actor.
"""
