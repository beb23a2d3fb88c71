"""What both faces of the producer share: how one message, a batch and a table of rows are sent."""
