"""Control of a cluster: compares a topology with the running actors and applies the difference.

`topology` reads and checks topologies, `session` starts Ray or connects to it, `logs` finds log files.
"""
