"""Topics as Iceberg tables: the table, its catalog, and the rounds that copy queues into it.

This package needs PyIceberg, which is an optional dependency: `pip install 'raymq[lake]'`.
"""

from importlib.util import find_spec

from jobs.job_errors import LakeNotInstalled

if find_spec("pyiceberg") is None:
    raise LakeNotInstalled("tables of topics need PyIceberg: pip install 'raymq[lake]'")
