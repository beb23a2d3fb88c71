"""What both faces stand on. Plain state machines, and the parts that run on an asyncio loop."""
