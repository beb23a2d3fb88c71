"""`python -m cluster.autoscale FILE`: runs an experiment of `benchmarks/experiments`, in a clone."""

import runpy
import sys
from importlib.util import find_spec

if find_spec("benchmarks") is None:
    sys.exit("error: the experiments are not installed: run this command in a clone of the repository")
runpy.run_module("benchmarks.experiments", run_name="__main__", alter_sys=True)
