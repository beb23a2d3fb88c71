"""The nameserver: brokers register their topics with it, clients request the routes of topics."""
