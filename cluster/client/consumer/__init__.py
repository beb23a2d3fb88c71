"""What both faces of the consumers share: fetching, giving out, running listeners, and telling tools."""
