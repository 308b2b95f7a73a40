"""Anyone's environment in our arrays: spaces there and back, where costs come from, how an environment is built."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import spacerl
from spacerl.envs.host.costs import MissingCost, cost_function, named_sources
from spacerl.envs.host.environment import HostedEnv
from spacerl.envs.host.single import BadStep, Recipe, SingleEnv, construct, parse_arguments, recipe_of_instance
from spacerl.envs.host.spaces import Observations, actions_of
from spacerl.envs.make import cost_texts, make_env, recipe_of_run, task_name
from spacerl.training.settings import resolve
from spacerl.types import ActionSpace, BatchEnv, EnvSpec, InputError
from support.environments import Line, Mixed, Numbers, Odd, Reused, SixValues, line, push_cost
from support.runs import assert_gone, processes

# ---------------------------------------------------------------- observations

U8 = {"low": 0, "high": 255, "dtype": np.uint8}
SEEN = {
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "matrix": spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
    "scalar": spaces.Box(-1.0, 1.0, (), np.float32),
    "doubles": spaces.Box(-1.0, 1.0, (2,), np.float64),
    "whole": spaces.Box(-9, 9, (4,), np.int64),
    "discrete": spaces.Discrete(4),
    "discrete from": spaces.Discrete(3, start=-2),
    "multidiscrete": spaces.MultiDiscrete([2, 5, 3]),
    "multidiscrete from": spaces.MultiDiscrete([2, 5], start=[3, -4]),
    "multidiscrete matrix": spaces.MultiDiscrete([[2, 5], [3, 4]]),
    "multibinary": spaces.MultiBinary(5),
    "multibinary matrix": spaces.MultiBinary((2, 3)),
    "HWC": spaces.Box(shape=(9, 12, 3), **U8),
    "CHW": spaces.Box(shape=(3, 9, 12), **U8),
    "frames": spaces.Box(shape=(4, 9, 12), **U8),
    "HW": spaces.Box(shape=(9, 12), **U8),
    "float HWC": spaces.Box(0.0, 1.0, (9, 12, 3), np.float32),
    "float CHW": spaces.Box(0.0, 2.0, (1, 9, 12), np.float32),
    "table": spaces.Box(shape=(3, 4), **U8),
    "dict": Mixed.observation_space,
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(0.0, 1.0, (2, 2), np.float32)]),
    "nested": spaces.Dict(
        {
            "b": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Dict({"x": spaces.Box(0.0, 1.0, (), np.float32)})]),
            "a": spaces.MultiBinary(2),
            "eyes": spaces.Dict(
                {"left": spaces.Box(shape=(8, 8, 1), **U8), "right": spaces.Box(shape=(3, 8, 8), **U8)}
            ),
        }
    ),
}


def assert_equal_values(one, other) -> None:
    """The same structure with the same numbers, leaf by leaf."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal_values(one[key], other[key])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal_values(a, b)
    else:
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape
        assert one.dtype.kind == other.dtype.kind
        assert np.array_equal(one.astype(np.float32), other.astype(np.float32))


def row_of(batch, i: int):
    if isinstance(batch, dict):
        return {key: row_of(value, i) for key, value in batch.items()}
    return tuple(row_of(value, i) for value in batch) if isinstance(batch, tuple) else batch[i]


@pytest.mark.parametrize("name", SEEN)
def test_observations_go_there_and_back(name):
    space = SEEN[name]
    space.seed(3)
    translation, samples = Observations(space), [space.sample() for _ in range(20)]
    rows = [translation.encode(sample) for sample in samples]
    for row in rows:
        assert row.shape == translation.shape
        assert row.dtype == translation.dtype
    batch = translation.decode(np.stack(rows))
    for i, sample in enumerate(samples):
        assert_equal_values(row_of(batch, i), sample)
    if not isinstance(space, spaces.Dict | spaces.Tuple | spaces.Discrete):
        assert batch.dtype == space.dtype


def test_single_images_keep_their_bytes_and_their_shape():
    shapes = {name: Observations(SEEN[name]) for name in ("HWC", "CHW", "frames", "HW", "float CHW", "table", "matrix")}
    assert shapes["HWC"].shape == shapes["CHW"].shape == (9, 12, 3)
    assert shapes["frames"].shape == (9, 12, 4)
    assert shapes["HW"].shape == shapes["float CHW"].shape == (9, 12, 1)
    assert all(shapes[name].dtype == np.uint8 for name in ("HWC", "CHW", "frames", "HW"))
    assert shapes["float CHW"].dtype == shapes["table"].dtype == np.float32
    assert shapes["HWC"].images == ((0, (9, 12, 3), 1 / 255.0),)
    assert shapes["float CHW"].images == ((0, (9, 12, 1), 0.5),)
    assert shapes["table"].images == shapes["matrix"].images == ()
    image = np.arange(3 * 9 * 12, dtype=np.uint8).reshape(3, 9, 12)
    assert np.array_equal(shapes["CHW"].encode(image), image.transpose(1, 2, 0))


def test_leaves_lie_one_after_the_other_with_discrete_ones_as_one_hot_vectors():
    translation = Observations(Mixed.observation_space)
    view = np.arange(72, dtype=np.uint8).reshape(1, 8, 9)
    row = translation.encode({"place": np.array([0.5, -2.0]), "kind": 3, "view": view})
    # Gymnasium sorts no keys here: kind, place and view are in the order the space was given.
    order = list(Mixed.observation_space.spaces)
    parts = {"place": [0.5, -2.0], "kind": [0.0, 0.0, 1.0], "view": list(range(72))}
    assert row.tolist() == [number for key in order for number in parts[key]]
    offset = sum(len(parts[key]) for key in order[: order.index("view")])
    assert translation.images == ((offset, (8, 9, 1), 1 / 255.0),)
    assert translation.dtype == np.float32

    translation = Observations(spaces.MultiDiscrete([2, 5], start=[3, -4]))
    assert translation.encode(np.array([4, -4])).tolist() == [0, 1, 1, 0, 0, 0, 0]
    assert Observations(spaces.Discrete(3, start=-2)).encode(np.int64(-2)).tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Discrete(3), 3),
        (spaces.Discrete(3), -1),
        (spaces.Discrete(3, start=5), 2),
        (spaces.MultiDiscrete([3, 4]), np.array([3, 0])),  # would be the second list's first value
        (spaces.MultiDiscrete([3, 4]), np.array([0, -1])),
        (spaces.MultiDiscrete([3, 4]), np.array([0, 1, 1])),
        (spaces.Box(0.0, 1.0, (3,)), np.zeros(4)),
        (spaces.Box(0.0, 1.0, (2, 3)), np.zeros((3, 2))),
        (spaces.MultiBinary(3), np.zeros(2, np.int8)),
    ],
)
def test_an_observation_outside_its_space_is_no_other_observation(space, value):
    with pytest.raises(ValueError):
        Observations(space).encode(value)


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (spaces.Text(5), "observation space is Text"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Sequence(spaces.Discrete(2))}), "at 'b' is Sequence"),
        (spaces.Graph(spaces.Discrete(2), spaces.Discrete(2)), "is Graph"),
        (spaces.Dict({}), "is empty"),
    ],
)
def test_spaces_that_cannot_be_observed_are_named(space, named):
    with pytest.raises(InputError, match=named):
        Observations(space)


# ---------------------------------------------------------------- actions

BOXES = {
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    "matrix": spaces.Box(-1.0, 3.0, (2, 2), np.float32),
    "scalar": spaces.Box(-1.0, 3.0, (), np.float32),
    "whole": spaces.Box(-2, 3, (2,), np.int32),
    "dict": spaces.Dict({"z": spaces.Box(-1.0, 0.0, (1,)), "a": spaces.Box(0.0, 4.0, (2,), np.float64)}),
    "tuple": spaces.Tuple([spaces.Box(-1.0, 1.0, (1,)), spaces.Box(5.0, 6.0, ())]),
}
DISCRETE = {
    "discrete": (spaces.Discrete(3), 1),
    "discrete from": (spaces.Discrete(3, start=7), 1),
    "multidiscrete": (spaces.MultiDiscrete([2, 3]), 2),
    "multidiscrete from": (spaces.MultiDiscrete([2, 3], start=[1, -5]), 2),
    "multidiscrete matrix": (spaces.MultiDiscrete([[2, 3], [4, 2]]), 4),
    "multibinary": (spaces.MultiBinary(3), 3),
    "multibinary matrix": (spaces.MultiBinary((2, 2)), 4),
    "dict": (spaces.Dict({"b": spaces.Discrete(2, start=1), "a": spaces.MultiDiscrete([3, 3])}), 3),
    "tuple": (spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(4)]), 3),
}


def flat_of(value) -> list[float]:
    if isinstance(value, dict):
        return [number for inner in value.values() for number in flat_of(inner)]
    if isinstance(value, tuple):
        return [number for inner in value for number in flat_of(inner)]
    return np.ravel(value).tolist()


@pytest.mark.parametrize("name", BOXES)
def test_boxes_are_scaled_to_their_bounds_and_clipped(name):
    space, translation = BOXES[name], actions_of(BOXES[name])
    described = translation.space
    assert described.kind == "box"
    assert described.scaled
    low, high = np.array(described.low), np.array(described.high)
    assert described.size == low.size == high.size
    for number, expected in ((-1.0, low), (0.0, (low + high) / 2), (1.0, high), (-7.0, low), (1e9, high)):
        action = translation.decode(np.full(described.size, number, np.float32))
        assert space.contains(action)
        expected = np.rint(expected) if name == "whole" else expected
        assert flat_of(action) == pytest.approx(expected.tolist(), abs=1e-6)
    rng = np.random.default_rng(0)
    for row in rng.normal(size=(200, described.size)).astype(np.float32):
        assert space.contains(translation.decode(row))


def test_every_corner_of_random_boxes_is_inside():
    """Rounding of low + (high - low) must not leave the space, in either precision."""
    rng = np.random.default_rng(1)
    for dtype in (np.float32, np.float64):
        low = rng.normal(size=400).astype(dtype)
        space = spaces.Box(low, low + rng.uniform(1e-3, 3.0, size=400).astype(dtype), dtype=dtype)
        for number in (-1.0, 0.3, 1.0):
            assert space.contains(actions_of(space).decode(np.full(400, number)))


def test_whole_numbers_are_rounded_and_not_cut_off():
    decode = actions_of(spaces.Box(-2, 2, (1,), np.int64)).decode
    assert [int(decode(np.array([x]))[0]) for x in (-1.0, -0.8, -0.6, 0.2, 0.3, 0.7, 0.8, 1.0)] == [
        -2, -2, -1, 0, 1, 1, 2, 2,
    ]  # fmt: skip


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_actions_are_in_their_space_and_every_one_can_be_taken(name):
    space, count = DISCRETE[name]
    translation = actions_of(space)
    sizes = translation.space.nvec or (translation.space.size,)
    assert len(sizes) == count
    assert translation.space.size == sum(sizes)
    assert translation.space.kind == ("discrete" if isinstance(space, spaces.Discrete) else "multidiscrete")
    made = [set() for _ in sizes]
    for number in range(max(sizes)):
        row = np.array([number % size for size in sizes], np.int32)
        action = translation.decode(row if translation.space.nvec else row[0])
        assert space.contains(action), action
        for i, chosen in enumerate(flat_of(action)):
            made[i].add(chosen)
    assert [len(each) for each in made] == list(sizes)


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (spaces.Box(-np.inf, np.inf, (3,)), "3 of 3 action dimensions have infinite bounds"),
        (
            spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
            "1 of 2 action dimensions have infinite bounds",
        ),
        (spaces.Box(np.array([-1.0, 2.0]), np.array([1.0, 2.0]), dtype=np.float64), "lower bound that is not below"),
        (spaces.Text(3), "holds Text"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0.0, 1.0)}), "holds Box, Discrete"),
        (spaces.Dict({}), "holds Dict"),
    ],
)
def test_action_spaces_that_cannot_be_used_are_named(space, named):
    with pytest.raises(InputError, match=named):
        actions_of(space)


def test_a_space_that_cannot_be_used_is_said_with_the_environments_name():
    class Endless(Line):
        action_space = spaces.Box(-np.inf, np.inf, (1,))

    with pytest.raises(InputError, match="environment 'Endless': 1 of 1 action dimensions have infinite bounds"):
        SingleEnv(Recipe(Endless, named_sources("none")))


# ---------------------------------------------------------------- where costs come from


def a_cost(obs, action, next_obs, info):
    return 1.0


class ACost:
    def __call__(self, obs, action, next_obs, info):
        return 2.0


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, ["cost"]),
        ((), ["cost"]),
        ([], ["cost"]),
        ({}, ["cost"]),
        ("info", ["cost"]),
        ("step", ["cost"]),
        ("none", ["cost"]),
        ("info:crash", ["crash"]),
        ("near=info:distance.min", ["near"]),
        ("costs.py:speeding", ["speeding"]),
        ("some/where=else/costs.py:speeding", ["speeding"]),
        ("my.module:speeding", ["speeding"]),
        ("slow=my.module:speeding", ["slow"]),
        (a_cost, ["a_cost"]),
        (ACost(), ["ACost"]),
        (lambda o, a, n, i: 0.0, ["cost"]),
        ([a_cost, "info:crash", "x=info"], ["a_cost", "crash", "x"]),
        ({"one": a_cost, "two": "info:crash"}, ["one", "two"]),
    ],
)
def test_costs_and_their_names(given, names):
    assert [name for name, _ in named_sources(given)] == names


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["info", "step"], "cost 'cost' was given twice"),
        ([a_cost, a_cost], "cost 'a_cost' was given twice"),
        ("inof", "cost 'inof' is unknown: allowed are info, info:KEY"),
        ("x=inof", "cost 'inof' is unknown"),
        ("info:a b", "cost 'a b' is not a usable name"),
        ({"a b": "info"}, "cost 'a b' is not a usable name"),
        ({"a": 3.0}, "cost 'a' is float"),
        (3.0, "a cost is float"),
        ([None], "a cost is NoneType"),
    ],
)
def test_costs_that_cannot_be_meant(given, said):
    with pytest.raises(InputError, match=said):
        named_sources(given)


def played(env, cost=None, steps: int = 3, **settings) -> tuple[SingleEnv, np.ndarray]:
    """Costs (steps, K) of an environment pushed by half."""
    single = SingleEnv(Recipe(env, named_sources(cost), **settings))
    single.reset(0)
    return single, np.array([single.step(np.array([0.5], np.float32))[2] for _ in range(steps)])


def test_every_source_gives_its_cost():
    _, own = played(line)
    assert set(np.unique(own)) <= {0.0, 1.0}
    assert np.array_equal(played(line, "info")[1], own)
    assert np.array_equal(played(line, "info:push")[1], np.ones((3, 1)))  # half of 2
    assert np.array_equal(played(line, "none")[1], np.zeros((3, 1)))
    assert np.array_equal(played(SixValues)[1], 2.0 * own)
    assert np.array_equal(played(SixValues, "step")[1], 2.0 * own)
    assert np.array_equal(played(line, ACost())[1], np.full((3, 1), 2.0))
    _, several = played(line, {"b": "info:push", "a": ACost(), "c": "info"})
    assert np.array_equal(several, np.hstack([np.ones((3, 1)), np.full((3, 1), 2.0), own]))


@pytest.mark.parametrize("factory", [Line, Reused])
def test_cost_functions_see_both_observations_the_action_in_its_units_and_the_info(factory):
    """Also where the environment hands out one array again and again."""
    seen = []

    def look(obs, action, next_obs, info):
        seen.append((np.array(obs), np.array(action), np.array(next_obs), dict(info)))
        return 0.0

    single = SingleEnv(Recipe(factory, named_sources(look)))
    before = np.array(single.reset(5))
    for k in range(4):
        following = np.array(single.step(np.array([0.25], np.float32))[0])
        obs, action, next_obs, info = seen[k]
        assert np.array_equal(obs, before)
        assert np.array_equal(next_obs, following)
        assert obs[1] == k
        assert next_obs[1] == k + 1
        assert action.tolist() == [0.5]  # in [-2, 2]
        assert info["push"] == 0.5
        before = following
    single.reset(6)
    single.step(np.array([0.0], np.float32))
    assert seen[-1][0][1] == 0, "after a reset the observation before is the reset's"


def test_a_cost_function_gets_observations_as_the_environment_gives_them():
    def look(obs, action, next_obs, info):
        assert obs.keys() == next_obs.keys() == {"place", "kind"}
        assert obs["place"].dtype == np.float64
        assert action in (-1, 0, 1)
        return obs["kind"]

    single = SingleEnv(Recipe(Numbers, named_sources(look)))
    row = single.reset(1)
    kinds = row[2:] if next(iter(Numbers.observation_space.spaces)) == "place" else row[:3]
    assert single.step(np.int32(0))[2][0] == 1 + int(np.argmax(kinds))


@pytest.mark.parametrize("function", ["support.environments:push_cost", "FILE:push_cost"])
def test_cost_functions_by_name(function):
    from support import environments

    _, costs = played(line, function.replace("FILE", environments.__file__))
    _, same = played(line, push_cost)
    assert np.array_equal(costs, same)


@pytest.mark.parametrize(
    ("env", "cost", "said"),
    [
        (SixValues, "info", r"info\['cost'\] is missing \(info holds push, x\)"),
        (line, "info:crash", r"info\['crash'\] is missing"),
        (line, "step", "step returns five values"),
        ("Pendulum-v1", None, r"'Pendulum-v1': it gives no cost: info\['cost'\] is missing \(info holds nothing\)"),
    ],
)
def test_a_cost_that_is_not_there_is_said_before_anything_is_made(env, cost, said):
    with pytest.raises(MissingCost, match=said):
        played(env, cost)
    with pytest.raises(InputError, match=said):
        HostedEnv(Recipe(env, named_sources(cost)))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("support.environments:push_csot", "did you mean 'push_cost'"),
        ("suport.environments:push_cost", "no module 'suport'.*did you mean 'support'"),
        ("support.environmenst:push_cost", "no module 'support.environmenst'.*did you mean 'support.environments'"),
        ("nowhere/costs.py:push", "no file 'nowhere/costs.py'"),
        ("support.environments:a_number", "is float: a function is expected"),
    ],
)
def test_cost_functions_that_are_not_there(source, said):
    with pytest.raises(InputError, match=said):
        cost_function("x", source)


@pytest.mark.parametrize(
    ("what", "value", "said"),
    [
        ("cost", "nan", "step 3 of an episode gave the cost nan, which is not finite"),
        ("cost", "much", "step 3 of an episode gave the cost 'much', which is not a number"),
        ("cost", None, "gave the cost None, which is not a number"),
        ("reward", "nan", "step 3 of an episode gave the reward nan, which is not finite"),
        ("reward", float("inf"), "gave the reward inf, which is not finite"),
        ("reward", np.zeros(2), "gave the reward array.*, which is not a number"),
        ("obs", "nan", "step 3 of an episode gave an observation with a number that is not finite"),
        ("obs", np.ones((2, 1)), r"not in its space: .* shape \(2, 3\), its space says \(3,\)"),
        ("nothing", None, "step returned 3 values"),
    ],
)
def test_steps_no_run_can_go_on_with_are_one_sentence(what, value, said):
    with pytest.raises(BadStep, match=said) as stop:
        played(lambda: Odd(what, value=value), steps=5)
    assert "\n" not in str(stop.value)
    assert isinstance(stop.value, InputError), "before a run has begun it is bad input like any other"


def test_rewards_and_costs_may_be_arrays_of_one_number():
    single = SingleEnv(Recipe(lambda: Odd("reward", at=1, value=np.array([2.5])), named_sources(None)))
    single.reset(0)
    assert single.step(np.zeros(1))[1] == 2.5


def test_a_reset_without_its_info_is_said():
    class Old(Line):
        def reset(self, **arguments):
            return super().reset(**arguments)[0]

    with pytest.raises(BadStep, match="reset returned something that is not the pair"):
        SingleEnv(Recipe(Old, named_sources(None))).reset(0)


# ---------------------------------------------------------------- limits of several costs


def limits(given, costs=("a", "b"), **settings):
    draft = resolve({"task": "env:X", "algorithm": "pcpo", "cost_limit": given, **settings})
    return draft.config(EnvSpec("X", (1,), ActionSpace("box", 1), 1, costs)).cost_limit


def test_limits_by_order_and_by_name():
    assert limits((1.0, 2.0)) == (1.0, 2.0)
    assert limits([1, 2]) == (1, 2)
    assert limits({"b": 2.0, "a": 1.0}) == (1.0, 2.0)
    assert limits({"b": np.float32(2.0), "a": np.int64(1)}) == (1.0, 2.0)
    assert limits(3.0, ("a",)) == (3.0,)
    assert limits({"a": 3.0}, ("a",)) == (3.0,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": 1.0, "bb": 2.0}, "unknown cost in cost-limit 'bb': allowed are a, b; did you mean 'b'"),
        ({"a": 1.0}, r"cost-limit says nothing about 'b': give one per cost \(a, b\)"),
        ({}, "cost-limit"),
        ((1.0,), "1 cost limits were given and task 'env:X' has 2 costs"),
        (1.0, "1 cost limits were given"),
        ((1.0, 2.0, 3.0), "3 cost limits were given"),
        (None, "cost-limit was not given"),
        ({"a": 1.0, "b": -2.0}, "cost-limit is -2.0"),
        ({"a": 1.0, "b": math.inf}, "cost-limit is inf"),
        ({"a": 1.0, "b": None}, "cost-limit"),
        ((None, 1.0), "cost-limit"),
        ({"a": "much", "b": 1.0}, "cost-limit is 'much'"),
    ],
)
def test_limits_that_do_not_fit_the_costs(given, said):
    with pytest.raises(InputError, match=said):
        limits(given)


def test_algorithms_for_one_cost_refuse_two_limits_by_name():
    with pytest.raises(InputError, match="'cpo' handles one cost and 2 limits"):
        resolve({"task": "env:X", "algorithm": "cpo", "cost_limit": {"a": 1.0, "b": 1.0}})


def test_what_a_config_says_about_costs_leads_back_to_them():
    assert cost_texts(None) == cost_texts(()) == cost_texts([]) == ()
    assert cost_texts("info:push") == ("push=info:push",)
    assert named_sources(cost_texts(["x=info", "info:push", "m:f"])) == (
        ("x", "info"),
        ("push", "info:push"),
        ("f", "m:f"),
    )
    texts = cost_texts({"speed": a_cost, "push": "info:push"})
    draft = resolve({"task": "env:X", "algorithm": "pcpo", "cost_limit": (1.0, 1.0), "cost": texts})
    with pytest.raises(InputError, match="the cost 'speed' of this run is a Python function: use it in Python"):
        recipe_of_run(draft.task, draft.env_settings())
    given = {"speed": a_cost, "push": "info:push"}
    assert recipe_of_run(draft.task, draft.env_settings(), cost=given).costs[0] == ("speed", a_cost)


# ---------------------------------------------------------------- how an environment is built


def built(env, **arguments):
    return construct(Recipe(env, named_sources("none"), tuple(arguments.items())))


def test_every_way_to_name_an_environment(tmp_path, monkeypatch):
    from support import environments

    assert built("CartPole-v1").spec.id == "CartPole-v1"
    assert built("Pendulum-v1", g=2.5).unwrapped.g == 2.5
    assert type(built("support.environments:line")) is Line
    assert built("support.environments:line", edge=9.0).edge == 9.0
    assert built("support.environments:Line", own_limit=4).own_limit == 4
    assert type(built(f"{environments.__file__}:line")).__name__ == "Line"
    assert type(built(line)) is Line
    assert built(lambda edge: Line(edge), edge=2.0).edge == 2.0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "room.py").write_text(
        "import gymnasium\nfrom support.environments import Line\n"
        "gymnasium.register('Room-v3', Line, max_episode_steps=7)\n"
        "def room(size=1.0):\n    return Line(size)\n"
    )
    assert built(f"{tmp_path}/mine/room.py:room", size=4.5).edge == 4.5
    try:
        named = SingleEnv(Recipe(f"{tmp_path}/mine/room.py:Room-v3", named_sources(None)))
        assert (named.horizon, type(named.env.unwrapped)) == (7, Line)
    finally:
        gymnasium.registry.pop("Room-v3", None)
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert built("mine.room:room").edge == 1.0
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("env", "arguments", "said"),
    [
        ("CartPol-v1", {}, "'CartPol-v1' is unknown: .*did you mean 'CartPole-v1'"),
        ("CartPole-v77", {}, "'CartPole-v77' is unknown: .*did you mean 'CartPole-v1'"),
        ("nowhere/Thing-v0", {}, "'nowhere/Thing-v0' is unknown"),
        ("no_module_here:factory", {}, "no module 'no_module_here'"),
        ("support.environments:lnie", {}, "did you mean 'line'"),
        ("support.environments:xyzzy", {}, r"has no 'xyzzy'; it has (?!Any)[A-Z]\w+, .*, \.\.\.$"),
        ("nowhere.py:factory", {}, "no file 'nowhere.py'"),
        (__file__, {}, r"is a file: name what makes the environment in it, as in .*test_hosted\.py:make"),
        ("SafetyPointGoal1-v0", {}, r"one of Safety-Gymnasium.*--env-args id=SafetyPointGoal1-v0 python=PATH \(docs"),
        ("support.environments:broken_factory", {}, "cannot be built: FileNotFoundError: no map called 'nowhere'"),
        ("support.environments:not_an_environment", {}, "is dict and has no reset"),
        ("support.environments:a_number", {}, "is float without reset and step"),
        ("CartPole-v1", {"colour": "red"}, "cannot be built: TypeError: .*colour"),
        ("support.environments:line", {"colour": "red"}, "cannot be built: TypeError: .*colour"),
        (dict, {}, "is dict and has no reset"),
    ],
)
def test_environments_that_cannot_be_built_are_one_sentence(env, arguments, said):
    with pytest.raises(InputError, match=said) as stop:
        built(env, **arguments)
    assert "\n" not in str(stop.value)


def test_a_file_with_an_error_in_it_is_one_sentence(tmp_path):
    (tmp_path / "bad.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(InputError, match="ModuleNotFoundError: No module named 'nothing_of_that_name'"):
        built(f"{tmp_path}/bad.py:factory")
    (tmp_path / "bad.py").write_text("def factory(:\n")
    with pytest.raises(InputError, match="SyntaxError") as stop:
        built(f"{tmp_path}/bad.py:factory")
    assert "\n" not in str(stop.value)


@pytest.mark.parametrize(
    ("texts", "parsed"),
    [
        (("n=3", "x=2.5", "on=true"), {"n": 3, "x": 2.5, "on": True}),
        (("name=circle", "path=/a=b"), {"name": "circle", "path": "/a=b"}),
        (("sizes=[1, 2]", 'deep={"a": null}'), {"sizes": [1, 2], "deep": {"a": None}}),
    ],
)
def test_arguments_from_texts(texts, parsed):
    assert dict(parse_arguments(texts)) == parsed


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 100_000])
def test_more_json_than_python_reads_is_a_text(value):
    assert parse_arguments((f"x={value}",)) == (("x", value),)


@pytest.mark.parametrize("text", ["n", "=3", "a b=3", ""])
def test_arguments_that_are_none(text):
    with pytest.raises(InputError, match="is not NAME=VALUE"):
        parse_arguments((text,))


class WithCost(gymnasium.Wrapper):
    """A wrapper as users write them: it does not record its arguments."""

    def __init__(self, env, weight):
        super().__init__(env)
        self.weight = weight

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "cost": self.weight}


def test_an_environment_given_as_an_object_is_made_again_from_its_spec():
    env = gymnasium.wrappers.TimeAwareObservation(gymnasium.make("Pendulum-v1", g=3.0, max_episode_steps=50))
    single = SingleEnv(recipe_of_instance(env, named_sources("none")))
    assert single.recipe.name == "Pendulum-v1"
    assert single.env is not env
    assert single.env.unwrapped is not env.unwrapped
    assert single.env.unwrapped.g == 3.0
    assert single.horizon == 50
    assert single.observations.shape == (4,)


def test_an_environment_in_a_wrapper_of_the_users_own_is_copied():
    env = WithCost(gymnasium.make("Pendulum-v1", g=3.0), 0.25)
    single = SingleEnv(recipe_of_instance(env, named_sources(None)))
    assert single.env is not env
    assert single.env.unwrapped is not env.unwrapped
    assert single.env.unwrapped.g == 3.0
    single.reset(0)
    assert single.step(np.zeros(1))[2] == [0.25]


def test_an_environment_without_a_spec_is_copied_as_it_is():
    env = Line(edge=7.0)
    env.reset(seed=0)
    first, second = (SingleEnv(recipe_of_instance(env, named_sources(None))) for _ in range(2))
    assert first.recipe.name == "Line"
    assert first.env.edge == 7.0
    assert first.horizon is None
    assert np.array_equal(first.reset(4), second.reset(4))
    first.step(np.ones(1))
    assert (second.env.steps, env.steps) == (0, 0), "copies must not share what moves"


class Ticking(Line):
    """Counts in an attribute whose name is also that of a method of ours."""

    tick = 0
    observe = None


def test_names_of_runs_and_what_they_are_built_from(tmp_path):
    assert task_name("CartPole-v1") == "env:CartPole-v1"
    assert task_name(line) == "own:line"
    assert task_name(Line()) == "own:Line"
    assert task_name(gymnasium.make("CartPole-v1")) == "own:CartPole-v1"
    assert task_name(Ticking()) == "own:Ticking"
    assert not isinstance(Ticking(), BatchEnv)
    for bad in (3, {"a": 1}, None):
        with pytest.raises(InputError, match="allowed are a Gymnasium id"):
            task_name(bad)
    wanted = {"task": "own:line", "algorithm": "pcpo", "cost_limit": 1.0, "environments": 2, "workers": 0}
    settings = resolve(wanted).env_settings()
    with pytest.raises(InputError, match="'own:line' needs your environment again"):
        make_env("own:line", settings)
    for given in (line, Line(), Ticking(), "support.environments:line"):
        with make_env("own:line", settings, given) as env:
            assert isinstance(env, BatchEnv)
            assert (env.lanes, env.spec.obs_shape, env.spec.cost_names) == (2, (3,), ("cost",))


class NearlyAnEnvironment:
    """Steps, but says nothing about its spaces."""

    def reset(self, key):
        return 0.0

    def observe(self, state):
        return state

    def step(self, state, action):
        return state, 0.0, 0.0, False


def test_what_steps_without_being_an_environment_is_told_what_it_could_be(tmp_path):
    said = r"env is NearlyAnEnvironment, which has reset and step but .* is a subclass of spacerl\.JaxEnv with a spec"
    with pytest.raises(InputError, match=said) as stop:
        spacerl.train(env=NearlyAnEnvironment(), algorithm="pcpo", cost_limit=1.0, out=tmp_path / "run")
    assert "\n" not in str(stop.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match=said):
        task_name(NearlyAnEnvironment())


# ---------------------------------------------------------------- who steps them


def started(folder: Path, workers, lanes: int = 5) -> set[int]:
    """Processes that hold the environments of a run with this setting."""
    (folder / "well").touch()
    env_args = ("kind=exit", f"folder={folder}")
    given = {"task": "env:support.environments:Faulty", "algorithm": "pcpo", "cost_limit": 1.0, "env_args": env_args}
    draft = resolve({**given, "environments": lanes} | ({} if workers is None else {"workers": workers}))
    with make_env(draft.task, draft.env_settings()):
        return set(processes(folder))


def test_no_worker_means_the_runs_own_process_and_thread(tmp_path):
    assert started(tmp_path, 0) == {os.getpid()}
    threads = []

    class Watched(Line):
        def step(self, action):
            threads.append(threading.get_ident())
            return super().step(action)

    settings = resolve({"task": "own:x", "algorithm": "pcpo", "cost_limit": 1.0, "workers": 0}).env_settings()
    with make_env("own:x", settings, Watched):
        assert set(threads) == {threading.get_ident()}  # it is looked at as soon as it is made


@pytest.mark.parametrize(("workers", "count"), [("auto", 3), (None, 3), (2, 2), (9, 5)])
def test_workers_are_processes_one_per_core_unless_said_otherwise(workers, count, tmp_path, monkeypatch):
    """Five environments and three cores; never more processes than environments."""
    monkeypatch.setattr("spacerl.envs.host.environment.usable_cores", lambda: 3)
    pids = started(tmp_path, workers)
    assert len(pids) == count
    assert os.getpid() not in pids
    assert_gone(tmp_path)


def test_an_environment_that_cannot_travel_is_one_sentence_and_stays_possible_in_one_process():
    env = Line()
    env.lock = threading.Lock()

    def factory():
        assert env.lock is not None
        return Line()

    recipe = Recipe(factory, named_sources(None))
    with pytest.raises(InputError, match=r"'factory' cannot be sent to worker processes .*workers 0"):
        HostedEnv(recipe, 2, workers=1)
    with HostedEnv(recipe, 2, workers=0) as hosted:
        assert hosted.lanes == 2
