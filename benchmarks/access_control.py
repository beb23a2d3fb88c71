"""RayMQ with access control, and the JVM options of a Java client that signs its requests as a user of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from actors.wire.signing import PRIVATE_MODE, Credentials, write_credentials
from tests.compat.raymq import RayMQ

USER: Final = Credentials("producer", "producer-secret")
USER_OPTIONS: Final = (f"-Dcompat.accessKey={USER.access_key}", f"-Dcompat.secretKey={USER.secret_key}")


def protected_raymq(root: Path, settings: Mapping[str, str]) -> RayMQ:
    """Return a RayMQ that requires signatures, with one user that may use all topics, groups and clusters."""
    inner = root / "inner.key"
    write_credentials(inner, Credentials("inner", "inner-secret"))
    raymq = RayMQ(root, settings, ("--inner-credentials-file", str(inner)))
    entries = [
        {"resource": f"{kind}:*", "actions": ["All"], "decision": "Allow"}
        for kind in ("Topic", "Group", "Cluster")
    ]
    content = {
        "users": [{"username": USER.access_key, "password": USER.secret_key}],
        "acls": [
            {
                "subject": f"User:{USER.access_key}",
                "policies": [{"policyType": "Custom", "entries": entries}],
            }
        ],
    }
    path = raymq.store_root / "config" / "raymqAccess.json"
    path.parent.mkdir(parents=True)
    path.touch(PRIVATE_MODE)
    path.write_text(json.dumps(content))
    return raymq
