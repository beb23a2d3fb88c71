"""What both faces stand on. Plain state machines, and the parts that run on an asyncio loop.

    producer, consumer   what each of them does; they know nothing of each other
    group                a consumer's place in its group

What every client is made of – connections, routes, heartbeats – stands beside these.
"""
