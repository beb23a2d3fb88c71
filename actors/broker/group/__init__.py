"""Consumer groups: their settings, who is in them, what they subscribe to, and how far they have come."""
