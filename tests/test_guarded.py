"""Guarded SPACE: every rule by hand (`support.guarded`), and proof that each of these checks can fail."""

from __future__ import annotations

import types
from pathlib import Path

import jax.numpy as jnp
import pytest

import spacerl.algorithms.space as guarded
from spacerl.training.assemble import assemble
from spacerl.training.measure import measure_baselines
from spacerl.training.programs import single_program
from spacerl.training.settings import resolve
from spacerl.training.update import initial_state
from support.guarded import CHECKS

SOURCE = Path(guarded.__file__ or "").read_text()

# Deliberate faults, by the check that must find them: what stands in the module, and what stands there instead.
FAULTS: dict[str, dict[str, tuple[str, str]]] = {
    "the_safe_step_stops_at_the_margin": {
        "no margin for noise": ("options.cost_margin * jnp.sqrt(variance)", "0.0 * jnp.sqrt(variance)"),
        "margin on the wrong side": ("state.cost.mean - inputs.h_C + margin", "state.cost.mean - inputs.h_C - margin"),
    },
    "the_margin_grows_with_what_predictions_leave_out": {
        "no margin for what predictions leave out": ("+ jnp.maximum(state.bias, 0.0)", "+ 0.0 * state.bias"),
        "a margin that predictions can loosen": ("jnp.maximum(state.bias, 0.0)", "state.bias"),
    },
    "no_margin_asks_for_less_than_a_cost_can_be": {
        "a margin below what a cost can be": (
            "jnp.minimum(margin, LARGEST_MARGIN * jnp.maximum(-inputs.d_least, 0.0))",
            "margin",
        ),
        "a margin below zero": ("jnp.maximum(-inputs.d_least, 0.0)", "-inputs.d_least"),
    },
    "an_unknown_error_is_no_margin": {
        "an unknown error in the margin": (
            "jnp.where(jnp.isnan(state.cost.variance), 0.0, state.cost.variance)",
            "state.cost.variance",
        ),
    },
    "recovery_is_bounded": {
        "unbounded recovery": ("within_kl(recovery, inputs, recovery_kl)", "recovery"),
        "recovery as far along noise": ("state.recovery * jnp.min(model.share) *", "state.recovery *"),
        "recovery that is not earned": ("state.recovery * jnp.min(model.share) *", "jnp.min(model.share) *"),
    },
    "the_way_to_a_margin_is_no_longer_than_a_reward_step": {
        "as long as back to a limit": (
            "jnp.where(above, recovery_kl, jnp.minimum(recovery_kl, inputs.delta))",
            "recovery_kl",
        ),
        "no longer back to a limit": ("jnp.where(above, recovery_kl, ", "jnp.where(False, recovery_kl, "),
    },
    "recovery_follows_its_promises": {
        "recovery by nothing": ("jnp.clip(state.recovery * recovered, LEAST_RECOVERY, 1.0)", "state.recovery"),
        "lost by chance": ("beyond_doubt > (1.0 - FAILED)", "surprise > (1.0 - FAILED)"),
        "lost below the limit": ("tried = was_above & ", "tried = "),
        "never regained": ("REGAINED, 1.0))", "1.0, 1.0))"),
        "regained by half of it alone": ("jnp.any(came) | ~jnp.any(was_above)", "jnp.any(came)"),
        "less than the least": ("LEAST_RECOVERY, 1.0)", "0.0, 1.0)"),
        "whether trust is earned or not": (
            "LEAST_RECOVERY, 1.0) if options.earned_trust",
            "LEAST_RECOVERY, 1.0) if True",
        ),
    },
    "only_the_reliable_share_of_a_gradient_takes_cost_away": {
        "all of it": ("1.0 - noise / jnp.maximum(length, TINY)", "1.0 - 0.0 * noise"),
        "nothing": (
            "1.0 - noise / jnp.maximum(length, TINY), LEAST_SHARE",
            "1.0 - noise / jnp.maximum(length, TINY), 0.0",
        ),
        "nothing of no gradient": ("jnp.where(length > TINY, jnp.clip(", "jnp.where(length > -1.0, jnp.clip("),
        "shrunken whatever was asked": ("if options.shrink_cost_gradients:\n", "if True:\n"),
    },
    "what_reward_and_pull_add_to_a_cost_counts_in_full": {
        "a share of what reward adds": ("within_reach + besides, metric=metric", "within_reach, metric=metric"),
        "a share of what the pull adds": ("model.taken @ safe.step + besides, b)", "model.taken @ safe.step, b)"),
        "a promise of a share": ("Move(safe, model.taken @ safe + besides)", "Move(safe, model.taken @ safe)"),
        "as much of a step of another length": ("factor * ascent, factor * besides", "factor * ascent, besides"),
    },
    "errors_that_reward_and_cost_have_in_common_add_no_cost": {
        "they add to it": ("model.besides(ascent) - length * model.seeming", "model.besides(ascent)"),
        "they take it away twice": ("- length * model.seeming", "- 2.0 * length * model.seeming"),
        "of a step of another length": ("- length * model.seeming", "- model.seeming"),
    },
    "trust_begins_small_at_a_baseline": {
        "trust in advance": ("FIRST_TRUST if options.earned_trust and baseline.begun else 1.0", "1.0"),
        "no trust where none is to be earned": ("if options.earned_trust and baseline.begun", "if baseline.begun"),
        "no trust for who has nothing to lose": (
            "if options.earned_trust and baseline.begun",
            "if options.earned_trust",
        ),
    },
    "a_reward_step_never_undoes_recovery": {
        "a reward step that may use what recovery left": (
            "model.ways, within_reach + besides, metric=metric",
            "model.ways, within_reach + besides - 1.0, metric=metric",
        ),
        "a limit that is out of reach": ("limits - jnp.maximum(model.taken @ recovery + limits, 0.0)", "limits"),
    },
    "the_reward_step_spends_delta_along_the_limit": {
        "a step that is never lengthened": ("if metric is not None and options.ascent_factor > 1.0:", "if False:"),
        "a step that is always lengthened": ("*costs, delta, inputs.fisher", "*costs, 9.0 * delta, inputs.fisher"),
    },
    "steps_are_as_long_as_trust_allows": {
        "a trust region that is given": (
            "inputs.d.shape[0], state.trust * inputs.delta",
            "inputs.d.shape[0], inputs.delta",
        ),
        "a pull that needs no trust": ("budget = state.trust * jnp.where", "budget = jnp.where"),
    },
    "a_baseline_that_is_reached_is_sought_no_longer": {
        "held at a baseline": ("jnp.where(seeks & ~far, 0.0, state.seek_kl)", "state.seek_kl"),
        "given up before it is reached": (
            "jnp.where(seeks & ~far, 0.0, state.seek_kl)",
            "jnp.where(~far, 0.0, state.seek_kl)",
        ),
    },
    "a_baseline_that_stays_away_is_given_up": {
        "seeking for ever": ("(state.seek_kl > GIVEN_UP * options.pull_kl_max)", "(state.seek_kl > 0.0)"),
    },
    "the_pull_goes_toward_the_baseline_within_its_budget": {
        "unbounded pull": ("pull = within_kl(whole, inputs, kl)", "pull = whole"),
        "pull away from the baseline": (
            "safe.step + follows * pull.step, info",
            "safe.step - follows * pull.step, info",
        ),
        "a pull that must lose": ("pays = (pull_gain > 0.0)", "pays = (pull_gain < 0.0)"),
        "no pull": ("safe.step + follows * pull.step, info", "safe.step, info"),
    },
    "a_pull_that_loses_reward_is_not_made": {
        "a pull whatever it promises": ("pays = (pull_gain > 0.0)", "pays = far"),
    },
    "a_baseline_that_earns_less_does_not_pull": {
        "it does": ("(pull_gain > 0.0) & ~(inputs.J_R > state.baseline_J_R)", "pull_gain > 0.0"),
        "one that earns more does not": ("~(inputs.J_R > state.baseline_J_R)", "(inputs.J_R > state.baseline_J_R)"),
        "nor one of which nothing is known": (
            "~(inputs.J_R > state.baseline_J_R)",
            "(inputs.J_R <= state.baseline_J_R)",
        ),
        "one that keeps the limit does": (
            "baseline_J_R=better,",
            "baseline_J_R=jnp.where(safe, jnp.nan, better),",
        ),
    },
    "a_baseline_is_followed_up_to_what_it_earns_within_the_limits": {
        "up to all that it earns": ("1.0 / (1.0 + jnp.nan_to_num(jnp.maximum(baseline.excess, 0.0)))", "1.0"),
        "farther where it is far within them": (
            "nan_to_num(jnp.maximum(baseline.excess, 0.0))",
            "nan_to_num(baseline.excess)",
        ),
        "less in every update": (
            "jnp.where(jnp.isnan(state.previous_J_R), jnp.minimum(worth, state.baseline_J_R), state.baseline_J_R)",
            "jnp.minimum(worth, state.baseline_J_R)",
        ),
        "up to what a better policy earns": ("jnp.minimum(worth, state.baseline_J_R)", "worth"),
        "of the reward alone": ("inputs.J_R + state.baseline_share * (", "0.0 * inputs.J_R + state.baseline_share * ("),
        "better by chance": ("jnp.where(baseline.better, ", "jnp.where(True, "),
    },
    "where_there_is_no_reward_a_better_baseline_is_followed": {
        "nobody is": ("pays |= ~jnp.any(inputs.gain) &", "pays |= False &"),
        "where there is some": ("pays |= ~jnp.any(inputs.gain) & (", "pays |= ("),
        "one that earns as little": (
            "(inputs.J_R < state.baseline_J_R)",
            "(inputs.J_R <= state.baseline_J_R)",
        ),
    },
    "a_baseline_that_is_near_enough_does_not_pull": {
        "a pull by rounding": (
            "far = jnp.dot(inputs.a, safe.step) + b > 0.0",
            "far = jnp.dot(inputs.a, safe.step) + b > -1.0",
        ),
    },
    "the_pull_starts_at_the_step_that_is_taken": {
        "pull from a step that is not taken": (
            "whole = project(safe.step, normals, ways, values",
            "whole = project(0.0 * safe.step, normals, ways, values",
        ),
    },
    "a_better_baseline_is_sought_downhill": {
        "promise of a step that seeks": ("pays & ~seeks, pull_gain", "pays | seeks, pull_gain"),
        "never seeking": ("(state.target_J_R > inputs.J_R)", "(state.target_J_R > jnp.inf)"),
        "seeking within the grown region": ("state.h_D - options.divergence_threshold, 0.0", "0.0, 0.0"),
        "seeking with the other budget": ("jnp.where(seeks, state.seek_kl, state.kappa)", "state.kappa"),
        "the budget for seeking by steps that did not": (
            "jnp.where(last.sought > 0.0, jnp.where(nearer, PROGRESS, SETBACK), 1.0)",
            "jnp.where(nearer, PROGRESS, SETBACK)",
        ),
    },
    "which_baselines_are_sought": {
        "an unsafe baseline sought": ("(baseline.excess <= TOLERANCE)", "(baseline.excess <= 9.0)"),
    },
    "the_budget_for_seeking_follows_the_way_that_was_made": {
        "the budget for seeking frozen": ("state.seek_kl * way_made", "state.seek_kl"),
        "seeking rewarded for going away": (
            "jnp.where(nearer, PROGRESS, SETBACK)",
            "jnp.where(nearer, SETBACK, PROGRESS)",
        ),
        "seeking rewarded for noise": ("J_D < NEARER * state.nearest_J_D", "J_D < state.nearest_J_D"),
        "the least divergence never remembered": ("nearest_J_D=jnp.fmin(state.nearest_J_D, J_D),", ""),
    },
    "what_a_step_promises": {
        "promise of the whole step": ("safe_gain=safe_gain", "safe_gain=0.0 * safe_gain"),
        "promise of the cost without the pull": (
            "cost_change=safe.costs + follows * pull.costs",
            "cost_change=safe.costs",
        ),
    },
    "a_promise_is_of_the_step_that_was_accepted": {
        "promise of another step's size": ("taken * change", "1.0 * change"),
        "promise of no step": ("nothing = ~(taken > 0.0)", "nothing = jnp.isnan(taken)"),
        "reward never remembered": ("previous_J_R=measured.J_R,", ""),
    },
    "kappa_follows_what_pulls_deliver": {
        "kappa frozen": ("kappa=trust_radius(state.kappa, kept, options.pull_kl_max)", "kappa=state.kappa"),
    },
    "a_kept_promise_below_zero_is_kept": {
        "a promise of the rest that nobody keeps": (
            "last.safe_gain + last.pull_gain - change",
            "last.pull_gain - change",
        ),
        "losses that cancel gains": ("jnp.abs(last.safe_gain) + last.pull_gain", "last.safe_gain + last.pull_gain"),
    },
    "a_pull_is_judged_where_it_is_a_good_part_of_its_step": {
        "a pull judged by the rest of its step": ("says = last.pull_gain > SMALL_PART", "says = last.pull_gain > 0.0"),
        "averages of what says nothing": (
            "moved = jnp.where(says, jnp.abs(last.safe_gain) + last.pull_gain, jnp.nan)",
            "moved = jnp.abs(last.safe_gain) + last.pull_gain",
        ),
        "a loss that is no part of a step": ("SMALL_PART * jnp.abs(last.safe_gain)", "SMALL_PART * last.safe_gain"),
    },
    "no_reward_is_given_back_as_promised_at_a_limit": {
        "a loss promised at the limit": ("safe_gain, jnp.maximum(safe_gain, 0.0))", "safe_gain, safe_gain)"),
        "no loss promised anywhere": (
            "jnp.where(jnp.any(certainly_above(state.cost, inputs.h_C)), safe_gain, ",
            "jnp.where(False, safe_gain, ",
        ),
        "outside by noise": ("jnp.maximum(2.0 * jnp.sqrt(cost.variance), NEGLIGIBLE", "jnp.maximum(0.0, NEGLIGIBLE"),
        "outside by a trifle": ("jnp.sqrt(cost.variance), NEGLIGIBLE * h_C)", "jnp.sqrt(cost.variance), 0.0 * h_C)"),
    },
    "costs_are_what_all_batches_say": {
        "the newest batch alone": ("error, least, options.filter_costs)", "error, least, False)"),
        "all batches whatever was asked": ("error, least, options.filter_costs)", "error, least, True)"),
        "limits by the newest batch": ("limits = state.cost.mean - inputs.h_C + margin", "limits = inputs.d + margin"),
        "a margin for the newest batch's noise": (
            "options.cost_margin * jnp.sqrt(variance)",
            "options.cost_margin * inputs.d_error",
        ),
        "trust by the newest batch": ("& (cost.mean > allowed)", "& (inputs.d > 0.0)"),
    },
    "promises_are_averaged": {
        "promises not averaged": (
            "kept = jnp.where(jnp.isnan(change), jnp.nan, 1.0 - shortfall / jnp.maximum(promised, TINY))",
            "kept = (change - last.safe_gain) / jnp.maximum(last.pull_gain, TINY)",
        ),
    },
    "trust_follows_what_costs_do": {
        "trust lost for nothing": ("jnp.maximum(2.0 * noise, NEGLIGIBLE * allowed)", "2.0 * noise"),
        "trust frozen": ("jnp.clip(state.trust * earned, LEAST, 1.0)", "state.trust"),
        "trust without bounds": ("jnp.clip(state.trust * earned, LEAST, 1.0)", "state.trust * earned"),
        "trust that cannot be asked to stay": ("if options.earned_trust else state.trust", ""),
        "trust by nothing": (
            "jnp.where(jnp.any(jnp.isnan(surprise)), 1.0, jnp.where(broken, BROKEN, KEPT))",
            "jnp.where(broken, BROKEN, KEPT)",
        ),
        "outward in small steps": ("broken = jnp.any(overshot | stays_above)", "broken = jnp.any(overshot)"),
        "above the limit as was predicted": ("stays_above = (surprise > 0.0) & ", "stays_above = "),
        "an overshoot far below the limit": ("(surprise > doubt) & (cost.mean > allowed)", "(surprise > doubt)"),
        "a cost that surprises backwards": (
            "doubt = jnp.maximum(2.0 * noise",
            "surprise = -surprise\n    doubt = jnp.maximum(2.0 * noise",
        ),
    },
    "what_is_tolerated_costs_no_trust": {
        "a tolerance that is forgotten": ("allowed = inputs.h_C + inputs.tolerance", "allowed = inputs.h_C"),
    },
    "both_batches_err": {
        "an overshoot of any size": (
            "overshot = (surprise > doubt) & (cost.mean > allowed)",
            "overshot = cost.mean > allowed",
        ),
        "perhaps above the limit": (
            "jnp.maximum(2.0 * jnp.sqrt(cost.variance), NEGLIGIBLE * h_C)",
            "NEGLIGIBLE * h_C",
        ),
        "one batch's error": ("doubt = jnp.maximum(2.0 * noise,", "doubt = jnp.maximum(2.0 * error,"),
        "the other batch's error": (
            "doubt = jnp.maximum(2.0 * noise,",
            "doubt = jnp.maximum(2.0 * jnp.sqrt(state.cost.variance),",
        ),
        "an error that is never remembered": ("        cost=cost,\n", ""),
    },
    "the_margin_learns_from_surprises": {
        "a margin that never learns": (
            "bias=running_mean(state.bias, jnp.where(far_above, jnp.nan, surprise), options.margin_rate)",
            "bias=state.bias",
        ),
        "of what happens far above": ("jnp.where(far_above, jnp.nan, surprise)", "surprise"),
        "less where trust is lost": ("bias=running_mean(", "bias=jnp.minimum(earned, 1.0) * running_mean("),
        "more where it is won": ("bias=running_mean(", "bias=jnp.maximum(earned, 1.0) * running_mean("),
    },
    "no_prediction_is_below_what_a_cost_can_be": {
        "a prediction below what a cost can be": (
            "jnp.asarray(inputs.d_least + inputs.h_C)",
            "jnp.array([-jnp.inf])",
        ),
    },
    "a_step_is_shortened_to_the_size_that_was_planned": {
        "accept always": ("judge(scale).kl <= OVERSHOT * planned", "judge(scale).kl <= jnp.inf"),
        "accept without the pull's budget": (' + info["pull_kl_bound"]', ""),
        "accept without recovery's": ('+ info["recovery_kl_bound"] ', ""),
        "accept what is not earned": ('info["trust"] * inputs.delta', "inputs.delta"),
    },
    "what_a_pull_promises_is_in_units_of_J_R": {
        "promise of the direction": (
            "pull_gain, safe_gain = inputs.gain @ pull.step",
            "pull_gain, safe_gain = inputs.g @ pull.step",
        ),
    },
    "a_baseline_is_sought_as_long_as_it_is_better_than_this_batch": {
        "seeking by the batch before": (
            "(state.target_J_R > inputs.J_R)",
            "(state.target_J_R > state.previous_J_R)",
        ),
    },
    "two_costs_are_kept_by_the_pull": {
        "pull that may use up a broken limit": ("limits - jnp.maximum(safe.costs + limits, 0.0)", "limits - 1e9"),
    },
    "h_D_follows_the_lemma": {
        "cost never remembered": ("previous_J_C=measured.J_C,", ""),
    },
}


@pytest.mark.parametrize("rule", CHECKS)
def test_rule(rule):
    CHECKS[rule](guarded)


def test_every_rule_has_a_fault_to_find():
    assert FAULTS.keys() == CHECKS.keys()


@pytest.mark.parametrize(("rule", "fault"), [(rule, fault) for rule in FAULTS for fault in FAULTS[rule]])
def test_a_fault_does_not_survive(rule, fault):
    right, wrong = FAULTS[rule][fault]
    assert SOURCE.count(right) == 1, f"what this fault replaces stands {SOURCE.count(right)} times in the module"
    module = types.ModuleType("space_with_a_fault")
    module.__dict__["__name__"] = guarded.__name__  # dataclasses look their module up
    exec(compile(SOURCE.replace(right, wrong), f"space.py with {fault}", "exec"), module.__dict__)
    with pytest.raises(AssertionError):
        CHECKS[rule](module)


def test_no_pull_costs_linearised_safety_with_the_solves_of_a_real_run():
    """Ten conjugate-gradient iterations on a fifth of the batch, as by default: the predicted cost with the pull is at
    most what it is without it, or the limit less its margin, to a thousandth of a standard error."""
    draft = resolve({"task": "point-circle", "algorithm": "space", "baseline": "near", "batch_size": 5000, "seed": 3})
    parts = assemble(draft)
    plain = parts.learner.algorithm

    def step(inputs, state):
        pulled = plain.step(inputs, state)
        alone = plain.step(inputs, state._replace(kappa=jnp.zeros(()), seek_kl=jnp.zeros(())))
        limits = pulled.info["cost_estimate"] - inputs.h_C + pulled.info["cost_margin"]
        with_pull, without = (inputs.c @ each.step + limits for each in (pulled, alone))
        raised = jnp.max((with_pull - jnp.maximum(without, 0.0)) / inputs.d_error)
        return pulled._replace(info=pulled.info | {"raised": raised})

    # Gradients of the newest batch, as the predictions above.
    needs = plain.needs._replace(mean_gradients=False)
    learner = parts.learner._replace(algorithm=plain._replace(step=step, needs=needs))
    program = single_program(parts._replace(learner=learner))
    state, rows = initial_state(learner, 3, measure_baselines(parts)[0]), []
    for _ in range(12):
        state, metrics, *_ = program.step(state)
        rows += metrics
    followed = [float(row["raised"]) for row in rows if row["follows"]]
    assert len(followed) >= 6
    assert max(followed) <= 1e-3
