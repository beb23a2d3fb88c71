"""Timer messages: messages that are delivered at a time that their producer has set."""
