"""Registers the URLs `raymq://` with kombu, which has entry points for serializers, but none for transports.

kombu loads this module as an entry point of the group `kombu.serializers`, before it opens a connection. The
serializer is JSON by another name; nothing uses it.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.json import dumps, loads

TRANSPORT_ALIASES["raymq"] = "jobs.tasks.kombu_transport:Transport"
SERIALIZER = (dumps, loads, "application/x-raymq-json", "utf-8")
