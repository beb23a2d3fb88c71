"""Log files of the processes of a cluster, also those on other nodes."""
