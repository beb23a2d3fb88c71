"""The broker's service: one event loop, one store, the requests that reach both.

    sending, reading   what producers and consumers ask
    group              consumer groups: members, subscriptions, offsets, locks
    tools              what administrators ask
    loop               what is done once a turn, and the threads for what must not be done in one

`requests` is the table of all that is answered, `service` puts the parts together, `actor` is its Ray shell.
"""
