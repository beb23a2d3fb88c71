"""Objects of a former service are collected when the process starts another one."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import weakref
from actors.host.garbage import freeze, unfreeze

class Service:
    pass

service = Service()
service.itself = service
found = weakref.ref(service)
freeze()
del service
unfreeze()
freeze()
print(found())
"""


def test_former_service_is_collected_at_the_next_start() -> None:
    """In a process of its own, because it concerns all objects of the process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
