"""What all packages share: clock, logs, models of settings, JSON files, background tasks and caches."""
