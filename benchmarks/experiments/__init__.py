"""Autoscaling experiments: load profiles against the controller, measured or simulated."""
