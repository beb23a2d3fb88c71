"""The demo: sends real flights through a cluster, kills a broker, and compares three counts."""
