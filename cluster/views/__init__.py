"""Views of a cluster: functions from an `Admin` to dataclasses, for the command line and a web console."""
