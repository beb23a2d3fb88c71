"""The work of each turn of the broker's event loop, and the threads for work that would block the loop."""
