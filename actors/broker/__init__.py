"""The broker: one event loop, one store, and the handlers of its requests.

    core         what every broker has
        sending, reading   the requests of producers and consumers
        group              consumer groups: members, subscriptions, offsets, queue locks
        metadata           the tables of topics, groups and offsets, and their files
        auth               access control of requests
        loop               the work of each turn of the event loop, and the threads for blocking work
        compat             work-arounds for single versions of RocketMQ's clients
        capability         what a feature can add to a broker
    features     pop, timer, delay, transactions, retry, metrics; `built_in` lists them in order
    replication  masters and slaves (`ha`), Raft groups (`raft`), and the tables that both copy (`tables`)
    admin        the requests of administrators

`build` creates all objects of a broker, `service` starts and stops them, `actor` is the Ray actor.
"""
