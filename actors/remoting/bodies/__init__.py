"""The bodies of requests and answers, a file for what they are about."""
