"""config.json of earlier versions, read as this version names its settings."""

from __future__ import annotations

from typing import Any

from spacerl.types import InputError

FORMAT = 2  # of config.json; files without one are of format 1

_FORMS = {"printed": "space-printed", "sequential": "space-sequential", "joint": "space-joint", "guarded": "space"}
# Every algorithm's options stood in one record; which of them an algorithm has is now said by the algorithm.
_OPTIONS_OF_FORMAT_1: dict[str, tuple[str, ...]] = {
    "line search": ("backtrack_factor", "backtrack_tries"),
    "projection": ("projection", "projection_kl_bound"),
    "divergence": ("divergence_gradient",),
    "threshold": ("divergence_threshold", "threshold_rule", "threshold_constant"),
    "pull": ("pull_kl", "pull_kl_max", "cost_margin", "margin_rate", "seek_baseline", "promise_rate"),
    "fixed": ("divergence_weight",),
    "schedule": ("weight_schedule", "weight_decay"),
    "multiplier": ("multiplier_rate",),
    "pretrain": ("pretrain_tolerance", "pretrain_updates", "pretrain_delta"),
}
_HAD = {
    "trpo": ("line search",),
    "trpo-lagrangian": ("line search", "multiplier"),
    "cpo": ("line search",),
    "pcpo": ("projection",),
    "f-cpo": ("line search", "divergence", "fixed"),
    "f-pcpo": ("projection", "divergence", "fixed"),
    "d-cpo": ("line search", "divergence", "fixed", "schedule"),
    "d-pcpo": ("projection", "divergence", "fixed", "schedule"),
    "pretrain": ("projection", "divergence", "pretrain"),
    "space-printed": ("projection", "divergence", "threshold"),
    "space-sequential": ("projection", "divergence", "threshold"),
    "space-joint": ("projection", "divergence", "threshold"),
    "space": ("line search", "projection", "divergence", "threshold", "pull"),
}
_YOUNGER_SETTINGS = {"start": "fresh", "preset": "paper", "cost_tolerance": 0.0}
_YOUNGER_OPTIONS: dict[str, dict[str, Any]] = {
    "space": {
        "ascent_factor": 1.0,
        "earned_trust": False,
        "shrink_cost_gradients": False,
        "filter_costs": False,
        "cost_margin": 0.5,
        "mean_cost_gradients": False,
    },
    "space-alone": {"mean_cost_gradients": False},
}


def upgraded(raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of a config.json, whatever version wrote it, as this version names them."""
    if "format" in raw:
        if raw["format"] != FORMAT:
            raise InputError(f"its format is {raw['format']!r} and this version of spacerl reads up to {FORMAT}")
        return _before_younger_options({name: value for name, value in raw.items() if name != "format"})
    given = dict(raw)
    form = given.pop("combine", "guarded")
    if given.get("algorithm") == "space":
        given["algorithm"] = _FORMS.get(form, "space")
    baseline = given.get("baseline")
    given["baseline"] = [] if baseline is None else [baseline] if isinstance(baseline, str) else baseline
    unbounded = given.get("pull_kl_max", 0.05) if given.get("algorithm") == "space" else "inf"
    for name, value in (("workers", "auto"), ("pretrain_delta", "delta"), ("projection_kl_bound", unbounded)):
        if name in given and given[name] is None:
            given[name] = value
    had = _HAD.get(str(given.get("algorithm")), ())
    gone = {name for group, names in _OPTIONS_OF_FORMAT_1.items() if group not in had for name in names}
    return _before_younger_options({name: value for name, value in given.items() if name not in gone})


def _before_younger_options(given: dict[str, Any]) -> dict[str, Any]:
    """What came after a config was written, with the values that leave its run as it was."""
    return _YOUNGER_SETTINGS | _YOUNGER_OPTIONS.get(str(given.get("algorithm")), {}) | given
