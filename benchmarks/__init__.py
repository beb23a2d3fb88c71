"""Measurements against other systems; they need more than this project to run."""
