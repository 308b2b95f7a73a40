"""TRPO: the trust-region step for reward, blind to costs and to the baseline."""

from __future__ import annotations

from spacerl.algorithms.contract import Algorithm, AlgorithmEntry, Needs
from spacerl.algorithms.line_search import line_search, reward_objective
from spacerl.algorithms.options import LineSearchOptions
from spacerl.core.steps import natural_step
from spacerl.types import Proposal, StepInputs


def trpo(options: LineSearchOptions) -> Algorithm:
    def step(inputs: StepInputs, state) -> Proposal:
        x_g = inputs.solve(inputs.g[None])[0]
        return Proposal(natural_step(inputs.g, x_g, inputs.delta))

    needs = Needs(cost=False, baseline=False)
    return Algorithm(needs, step, accept=line_search(reward_objective, False, options))


ENTRY = AlgorithmEntry("trust-region step for reward; ignores costs and the baseline", LineSearchOptions, trpo)
