"""Masters and slaves: the HA stream of the log, and the tables that a slave copies."""
