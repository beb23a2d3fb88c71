"""Producer and consumer groups: members, subscriptions, queue locks, assignments and committed offsets."""
