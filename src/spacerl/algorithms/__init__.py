"""Policy-update rules: one small file each, all of them values of `spacerl.algorithms.contract.Algorithm`."""

from __future__ import annotations

import dataclasses

from spacerl.algorithms import cpo, lagrangian, pcpo, pretrain, space, space_printed, trpo, weighted
from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Needs

__all__ = ["ALGORITHMS", "Algorithm", "AlgorithmEntry", "AnyOptions", "Needs"]

ALGORITHMS: dict[str, AlgorithmEntry] = {
    "space": space.ENTRY,
    "space-alone": space.ALONE,
    "space-printed": space_printed.PRINTED,
    "space-sequential": space_printed.SEQUENTIAL,
    "space-joint": space_printed.JOINT,
    "trpo": trpo.ENTRY,
    "trpo-lagrangian": lagrangian.ENTRY,
    "trpo-pid": lagrangian.PID,
    "cpo": cpo.ENTRY,
    "pcpo": pcpo.ENTRY,
    "f-cpo": weighted.F_CPO,
    "f-pcpo": weighted.F_PCPO,
    "d-cpo": weighted.D_CPO,
    "d-pcpo": weighted.D_PCPO,
    "pretrain": pretrain.ENTRY,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnyOptions(
    space.SpaceOptions,
    lagrangian.LagrangianOptions,
    lagrangian.PIDOptions,
    weighted.ScheduledWeightOptions,
    pretrain.PretrainOptions,
):
    """The options of all rules above in one record, as editors and type checkers know them."""
