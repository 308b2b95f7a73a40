"""Policy-update rules: one small file each, all of them values of `spacerl.types.Algorithm`."""

from __future__ import annotations

from spacerl.algorithms.cpo import cpo
from spacerl.algorithms.guarded import guarded
from spacerl.algorithms.lagrangian import trpo_lagrangian
from spacerl.algorithms.pcpo import pcpo
from spacerl.algorithms.pretrain import pretrain
from spacerl.algorithms.space import space
from spacerl.algorithms.trpo import trpo
from spacerl.algorithms.weighted import d_cpo, d_pcpo, f_cpo, f_pcpo
from spacerl.types import Algorithm


def any_space(config) -> Algorithm:
    """SPACE in the form the config names; the guarded one has a file of its own."""
    return guarded(config) if config.combine == "guarded" else space(config)


ALGORITHMS = {
    "trpo": trpo,
    "trpo-lagrangian": trpo_lagrangian,
    "cpo": cpo,
    "pcpo": pcpo,
    "f-cpo": f_cpo,
    "f-pcpo": f_pcpo,
    "d-cpo": d_cpo,
    "d-pcpo": d_pcpo,
    "pretrain": pretrain,
    "space": any_space,
}


def make_algorithm(config) -> Algorithm:
    return ALGORITHMS[config.algorithm](config)
