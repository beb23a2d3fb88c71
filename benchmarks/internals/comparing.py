"""Comparison of two configurations that are measured in pairs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

CALM_SHARE = 0.03
"""Share of stolen CPU time up to which a measurement counts as undisturbed; runs vary by more than that."""
CALM_AT_LEAST = 3


def calm_median(values: Sequence[float], stolen: Sequence[float]) -> tuple[float, int]:
    """Return the median of the undisturbed values and the number of values used.

    `stolen` holds the share of stolen CPU time (0 to 1) during each measurement; a value is undisturbed if
    the share is at most `CALM_SHARE`. All values are used if fewer than `CALM_AT_LEAST` are undisturbed.
    """
    calm = [value for value, share in zip(values, stolen, strict=True) if share <= CALM_SHARE]
    used = calm if len(calm) >= CALM_AT_LEAST else values
    return round(statistics.median(used), 3), len(used)


def compared(name: str, ratios: Sequence[float], stolen: Sequence[float]) -> dict[str, object]:
    """Return result parameters that compare two configurations measured in pairs.

    `ratios` has one ratio per pair, `stolen` the share of stolen CPU time during that pair. The parameters
    are the median of the undisturbed ratios under `name`, the number of ratios in it, and all ratios.
    """
    ratio, comparisons = calm_median(ratios, stolen)
    return {
        name: ratio,
        "comparisons": comparisons,
        f"{name}_each": [round(each, 2) for each in ratios],
        "stolen_each": [round(each, 2) for each in stolen],
    }
