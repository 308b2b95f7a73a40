"""pi_B made elsewhere: Stable-Baselines3, ONNX, TorchScript, Python functions by name, and files that are none of it.

What needs no further package runs always. The rest trains or builds real policies and compares with what the package
that made them says itself.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import sys
import warnings
import zipfile

import gymnasium
import numpy as np
import pytest

from spacerl.policies.foreign import Foreign, from_callable, load_foreign
from spacerl.policies.foreign.common import softmax
from spacerl.policies.foreign.stable_baselines3 import ALGORITHMS, STD_FLOOR, squashed_moments
from spacerl.types import ActionSpace, InputError

BOX = ActionSpace("box", 2, (-1.0, -1.0), (1.0, 1.0))
DISCRETE = ActionSpace("discrete", 3)
LISTS = ActionSpace("multidiscrete", 5, nvec=(2, 3))
TORQUE = ActionSpace("box", 1, (-2.0,), (2.0,), scaled=True)


def refusal(given, action=BOX, obs_shape=(4,), trust=True, raw=None) -> str:
    """The sentence a bad policy is refused with."""
    with pytest.raises(InputError) as caught:
        load_foreign(str(given), action, obs_shape, trust, raw)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert not sentence.endswith(".")
    return sentence


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def random_obs(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


# ---------------------------------------------------------------- what is foreign


@pytest.mark.parametrize(
    "given", ["near", "cost", "runs/mine", "policy.safetensors", "C:\\policies\\mine", "a b:c", "x:", ":y", "a:b:c"]
)
def test_other_names_are_left_to_the_caller(given):
    assert load_foreign(given, BOX, (4,), True) is None


def test_a_file_with_a_colon_in_its_name_is_no_function(here):
    (here / "mine:policy").write_text("")
    assert load_foreign("mine:policy", BOX, (4,), True) is None


@pytest.mark.parametrize("name", ["policy.zip", "policy.onnx", "policy.pt", "policy.pth", "policy.ts"])
def test_a_file_that_is_missing_names_the_nearest(name, here):
    assert refusal(name) == f"policy file '{name}' does not exist"
    (here / f"my-{name}").write_bytes(b"")
    assert refusal(name).endswith(f"did you mean 'my-{name}'?")
    (here / name).mkdir()
    assert "is a folder" in refusal(name)


# ---------------------------------------------------------------- Python functions by name

RULES = """
import dataclasses
import numpy as np
import helper

@dataclasses.dataclass
class Rule:
    gain: float
    def __call__(self, obs):
        return -self.gain * obs[:, :2]

rule = Rule(helper.GAIN)
number = 3

def spread(obs):
    return -obs[:, :2], 0.5

def nearest(obs):
    return np.argmax(obs[:, :3], axis=1)

def chances(obs):
    return np.tile([0.2, 0.3, 0.5], (len(obs), 1))

def faulty(obs):
    return {}["missing"]
"""


@pytest.fixture
def rules(here):
    (here / "my_rules.py").write_text(RULES)
    (here / "helper.py").write_text("GAIN = 2.0\n")
    yield here
    for name in ("my_rules", "helper"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("place", ["my_rules", "my_rules.py", "{here}/my_rules.py"])
def test_functions_of_a_module_and_of_a_file(place, rules):
    place, obs, path = place.format(here=rules), random_obs(7, 4), list(sys.path)
    policy = load_foreign(f"{place}:spread", BOX, (4,), trust=False)
    assert isinstance(policy, Foreign)
    assert (policy.name, policy.kind, policy.deterministic) == (f"{place}:spread", "python", False)
    mean, std = policy.function(obs)
    assert np.array_equal(mean, -obs[:, :2])
    assert np.array_equal(std, np.full((7, 2), 0.5))
    policy = load_foreign(f"{place}:rule.__call__", BOX, (4,), trust=False)
    assert policy.deterministic
    assert np.array_equal(load_foreign(f"{place}:rule", BOX, (4,), False).function(obs), -2.0 * obs[:, :2])
    assert sys.path == path


def test_functions_for_discrete_actions(rules):
    obs = random_obs(7, 4)
    policy = load_foreign("my_rules:nearest", DISCRETE, (4,), trust=False)
    assert policy.deterministic
    assert np.array_equal(policy.function(obs), np.argmax(obs[:, :3], 1))
    policy = load_foreign("my_rules:chances", DISCRETE, (4,), trust=False)
    assert not policy.deterministic
    assert policy.function(obs) == pytest.approx(np.tile([0.2, 0.3, 0.5], (7, 1)))


def test_a_file_replaces_no_module_of_the_same_name(here):
    (here / "json.py").write_text("def policy(obs):\n    return obs[:, :2]\n")
    load_foreign("json.py:policy", BOX, (4,), trust=False)
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("my_rule:spread", "there is no module 'my_rule' in this folder .* did you mean 'my_rules'?"),
        ("my_rules.deep:spread", "cannot be imported|there is no module 'my_rules.deep'"),
        ("my_rule.py:spread", "there is no file 'my_rule.py'; did you mean 'my_rules.py'?"),
        ("my_rules:spreads", "my_rules has no 'spreads'; did you mean 'spread'?"),
        ("my_rules:number", "is of type int and cannot be called"),
        ("my_rules:Rule", "is a class"),
        ("my_rules:faulty", r"raised KeyError: 'missing', given 3 observations of shape \(3, 4\)"),
        ("broken:policy", "cannot be imported: ModuleNotFoundError: No module named 'not_there'"),
        ("broken.py:policy", "cannot be imported: ModuleNotFoundError: No module named 'not_there'"),
        ("wrong.py:policy", "cannot be imported: SyntaxError: "),
        ("leaves.py:policy", "cannot be imported: SystemExit: 2"),
    ],
)
def test_what_cannot_be_called_is_one_sentence(given, told, rules):
    (rules / "broken.py").write_text("import not_there\n")
    (rules / "wrong.py").write_text("def policy(obs) return 1\n")
    (rules / "leaves.py").write_text("raise SystemExit(2)\n")
    assert re.search(told, refusal(given, trust=False))


@pytest.mark.parametrize(
    ("action", "output", "told"),
    [
        (BOX, np.zeros((3, 5)), r"actions of shape \(3, 5\) for 3 observations: \(3, 2\) is expected"),
        (BOX, (np.zeros((3, 2)), np.ones((3, 4))), "standard deviations of shape"),
        (BOX, None, "returned NoneType: numbers are expected"),
        (BOX, "left", "returned str: numbers are expected"),
        (BOX, {"mean": 1}, "returned dict: numbers are expected"),
        (DISCRETE, np.array([0, 1, 3]), r"whole numbers from 0 to below \[3\]"),
        (DISCRETE, np.zeros((3, 2), int), r"actions of shape \(3, 2\)"),
        (DISCRETE, (np.zeros(3), np.ones(3)), "returned a tuple"),
        (LISTS, np.zeros(3, int), r"\(3, 2\) is expected"),
        (LISTS, np.full((3, 2), 2), r"below \[2, 3\]"),
    ],
)
def test_a_function_that_returns_something_else_is_refused(action, output, told):
    with pytest.raises(InputError, match=told):
        from_callable(lambda obs: output, "f", action, (4,))


def test_lists_pairs_and_a_batch_of_two_are_not_confused():
    spread = from_callable(lambda obs: [obs[:, :2], np.ones((len(obs), 2))], "f", BOX, (4,))
    plain = from_callable(lambda obs: [list(row[:2]) for row in obs], "f", BOX, (4,))
    certain = from_callable(lambda obs: np.eye(3, dtype=int)[np.arange(len(obs)) % 3], "f", DISCRETE, (4,))
    lists = from_callable(lambda obs: np.tile([1, 2], (len(obs), 1)), "f", LISTS, (4,))
    obs = random_obs(2, 4)
    assert [policy.deterministic for policy in (spread, plain, certain, lists)] == [False, True, False, True]
    assert np.array_equal(spread.function(obs)[0], obs[:, :2])
    assert np.array_equal(plain.function(obs), obs[:, :2])
    assert np.array_equal(certain.function(obs), np.eye(3)[:2])
    assert np.array_equal(lists.function(obs), [[1, 2], [1, 2]])


def test_predict_of_a_model_is_a_function_of_its_actions():
    """It returns actions and a state, which is None: not means and deviations."""
    acts = from_callable(lambda obs: (obs[:, :2], None), "predict", BOX, (4,))
    chooses = from_callable(lambda obs: (np.full(len(obs), 2), None), "predict", DISCRETE, (4,))
    obs = random_obs(5, 4)
    assert acts.deterministic
    assert chooses.deterministic
    assert np.array_equal(acts.function(obs), obs[:, :2])
    assert np.array_equal(chooses.function(obs), [2] * 5)


def test_a_function_gets_what_the_environment_gives():
    seen = []

    def policy(obs):
        seen.append({key: value.shape for key, value in obs.items()})
        return obs["speed"]

    made = from_callable(policy, "f", BOX, (6,), raw=lambda x: {"place": x[:, :4].reshape(-1, 2, 2), "speed": x[:, 4:]})
    obs = random_obs(5, 6)
    assert np.array_equal(made.function(obs), obs[:, 4:])
    assert seen[-1] == {"place": (5, 2, 2), "speed": (5, 2)}


# ---------------------------------------------------------------- files: kinds, damage, trust, missing packages

SETTINGS = {
    "PPO": {"clip_range": 0.2, "n_epochs": 10, "gae_lambda": 0.9, "vf_coef": 0.5},
    "A2C": {"gae_lambda": 0.9, "vf_coef": 0.5},
    "SAC": {"target_entropy": -1.0},
    "TD3": {"policy_delay": 2, "target_noise_clip": 0.5},
    "DDPG": {"policy_delay": 1, "target_noise_clip": 0.0},
    "DQN": {"exploration_rate": 0.05},
}


def archive(path, settings, origin="stable_baselines3.common.policies", **members):
    data = {**settings, "policy_class": {":type:": "<class 'abc.ABCMeta'>", ":serialized:": "x", "__module__": origin}}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {"data": json.dumps(data), "policy.pth": "weights", **members}.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stable_baselines3_asks_for_trust_and_says_why(algorithm, tmp_path):
    path = archive(tmp_path / "model.zip", SETTINGS[algorithm])
    assert refusal(path, trust=False) == (
        f"'{path}' (Stable-Baselines3 {algorithm}) holds pickled Python objects, which can run any code when loaded: "
        "pass --trust (trust=True) if you trust its origin"
    )


def program(path):
    with zipfile.ZipFile(path, "w") as file:
        for name in ("m/data.pkl", "m/code/__torch__.py", "m/constants.pkl"):
            file.writestr(name, "x")
    return path


def test_torchscript_asks_for_trust_and_says_why(tmp_path):
    told = refusal(program(tmp_path / "m.pt"), trust=False)
    assert "is a TorchScript archive of code and pickled objects, which can run any code when loaded" in told
    assert "--trust" in told


def test_packages_that_are_missing_are_named_with_their_extra(tmp_path, monkeypatch):
    for module in ("stable_baselines3", "torch", "onnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "m.onnx").write_bytes(b"x")
    model = archive(tmp_path / "m.zip", SETTINGS["SAC"])
    assert refusal(model).endswith("install it with pip install 'spacerl[sb3]'")
    assert refusal(program(tmp_path / "m.pt")).endswith("install it with pip install 'spacerl[torch]'")
    assert refusal(tmp_path / "m.onnx").endswith("install it with pip install 'spacerl[onnx]'")


@pytest.mark.parametrize(
    ("settings", "origin", "named"),
    [
        (SETTINGS["PPO"], "sb3_contrib.common.recurrent.policies", "sb3_contrib.common.recurrent.policies"),
        (SETTINGS["SAC"], "sbx.sac.policies", "sbx.sac.policies"),
        (SETTINGS["A2C"] | {"cg_max_steps": 15}, "stable_baselines3.common.policies", "not supported"),  # TRPO
        ({"n_delta": 8}, "mine", "not supported"),
    ],
)
def test_other_algorithms_are_refused_with_those_that_load(settings, origin, named, tmp_path):
    told = refusal(archive(tmp_path / "model.zip", settings, origin))
    assert named in told
    assert "PPO, A2C, SAC, TD3, DDPG, DQN" in told


DAMAGES = {
    "empty": lambda whole: b"",
    "something else": lambda whole: b"this is a text " * 20,
    "truncated": lambda whole: whole[: len(whole) // 2],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_archives_are_refused(damage, tmp_path):
    change = DAMAGES[damage]
    model = archive(tmp_path / "model.zip", SETTINGS["PPO"])
    model.write_bytes(change(model.read_bytes()))
    assert "is damaged, cut short or no zip archive" in refusal(model)
    script = program(tmp_path / "model.pt")
    script.write_bytes(change(script.read_bytes()))
    assert "is damaged or was not written by torch" in refusal(script)


def test_archives_of_something_else_are_refused(tmp_path):
    model, script = tmp_path / "model.zip", tmp_path / "model.pt"
    for path in (model, script):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("readme.txt", "hello")
    assert "not one of Stable-Baselines3" in refusal(model)
    assert "without a TorchScript program" in refusal(script)
    flipped = bytearray(archive(model, SETTINGS["PPO"]).read_bytes())
    flipped[flipped.index(b"weights")] ^= 1
    model.write_bytes(flipped)
    assert "'policy.pth' inside of it cannot be read" in refusal(model)
    archive(model, {}, data="[1")
    assert "is damaged" in refusal(model)


def test_weights_alone_are_no_policy(tmp_path):
    modern, old = tmp_path / "modern.pth", tmp_path / "old.pth"
    with zipfile.ZipFile(modern, "w") as file:
        file.writestr("modern/data.pkl", "x")
    old.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    for path in (modern, old):
        told = refusal(path, trust=False)
        assert "holds weights without the network they belong to" in told
        assert "FILE.py:FUNCTION" in told


# ---------------------------------------------------------------- squashed Gaussians


def test_moments_of_a_squashed_gaussian_are_those_of_samples():
    rng = np.random.default_rng(0)
    mean, std = (x.ravel() for x in np.meshgrid([-6.0, -1.0, 0.0, 0.3, 2.0], [1e-3, 0.1, 0.5, 1.0, 3.0, np.exp(2.0)]))
    samples = np.tanh(mean + std * rng.normal(size=(200_000, 30)))
    first, second = squashed_moments(mean, std)
    assert first == pytest.approx(samples.mean(0), abs=0.012)  # five standard errors
    assert second == pytest.approx(samples.std(0), abs=0.012)
    # Against an integral of the same by many more nodes, which has no such errors.
    z = np.linspace(-9, 9, 20_001)
    weight = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    values = np.tanh(mean[:, None] + std[:, None] * z)
    assert first == pytest.approx(values @ weight, abs=1e-3)
    assert second == pytest.approx(np.sqrt((values - (values @ weight)[:, None]) ** 2 @ weight), abs=1e-3)


# ---------------------------------------------------------------- Stable-Baselines3, for real


class Toy(gymnasium.Env):
    """Any pair of spaces: random observations, no reward."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space, self.count = observation_space, action_space, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        return self.observation_space.sample(), 0.0, False, self.count >= 10, {}


FEW = {"learning_starts": 8, "policy_kwargs": {"net_arch": [16]}}
CONTINUOUS = {
    "PPO": {"n_steps": 32, "batch_size": 32, "n_epochs": 2},
    "A2C": {},
    "SAC": FEW,
    "TD3": FEW,
    "DDPG": FEW,
}


@pytest.fixture(scope="module")
def sb3():
    """One thread: networks this small are slower with more."""
    sb3, torch = pytest.importorskip("stable_baselines3"), pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield sb3
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(sb3, tmp_path_factory):
    """Models made once each: (algorithm, environment, options) -> (model, file)."""
    made, folder = {}, tmp_path_factory.mktemp("sb3")

    def make(algorithm, env, policy="MlpPolicy", steps=64, key="", **options):
        name = repr((algorithm, env if isinstance(env, str) else key, policy, options))
        if name not in made:
            path, options = f"{len(made)}.zip", copy.deepcopy(options)  # they are changed
            model = getattr(sb3, algorithm)(policy, env, seed=1, device="cpu", **options)
            model.learn(steps)
            model.save(folder / path)
            made[name] = model, folder / path
        return made[name]

    return make


def pendulum_obs(count: int) -> np.ndarray:
    rng = np.random.default_rng(5)
    angle, speed = rng.uniform(-np.pi, np.pi, count), rng.uniform(-8, 8, count)
    return np.stack([np.cos(angle), np.sin(angle), speed], 1).astype(np.float32)


def acted(model, obs, deterministic=True):
    return model.predict(obs, deterministic=deterministic)[0]


@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
@pytest.mark.parametrize("sde", [False, True])
def test_a_gaussian_of_ppo_and_a2c_is_that_of_its_policy(algorithm, sde, trained):
    import torch

    model, path = trained(algorithm, "Pendulum-v1", **CONTINUOUS[algorithm], use_sde=sde)
    policy, obs = load_foreign(str(path), TORQUE, (3,), True), pendulum_obs(200)
    assert (policy.kind, policy.deterministic) == (f"stable-baselines3 {algorithm}", False)
    mean, std = policy.function(obs)
    assert mean.shape == std.shape == (200, 1)
    assert np.clip(mean, -2, 2) == pytest.approx(acted(model, obs), abs=1e-6)
    with torch.no_grad():
        normal = model.policy.get_distribution(torch.as_tensor(obs)).distribution
    assert mean == pytest.approx(normal.mean.numpy(), abs=1e-6)
    assert std == pytest.approx(normal.stddev.numpy(), rel=1e-6)
    assert (np.ptp(std) > 1e-3) == sde
    json.dumps(policy.info)
    assert policy.info["algorithm"] == algorithm


def test_a_squashed_gaussian_of_ppo_is_in_units_of_the_environment(trained):
    model, path = trained(
        "PPO", "Pendulum-v1", n_steps=32, batch_size=32, use_sde=True, policy_kwargs={"squash_output": True}
    )
    mean, std = load_foreign(str(path), TORQUE, (3,), True).function(pendulum_obs(5))
    model.policy.reset_noise(5 * 5000)
    samples = acted(model, np.repeat(pendulum_obs(5), 5000, 0), deterministic=False).reshape(5, 5000, 1)
    assert np.all(np.abs(samples.mean(1) - mean) < 5 * std / np.sqrt(5000))
    assert samples.std(1) == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize("sde", [False, True])
def test_moments_of_sac_are_those_of_its_actions(sde, trained):
    model, path = trained("SAC", "Pendulum-v1", **FEW, use_sde=sde)
    policy, obs = load_foreign(str(path), TORQUE, (3,), True), pendulum_obs(6)
    assert not policy.deterministic
    mean, std = policy.function(obs)
    if sde:
        model.policy.reset_noise(6 * 5000)  # gSDE draws its noise apart from acting
    samples = acted(model, np.repeat(obs, 5000, 0), deterministic=False).reshape(6, 5000, 1)
    error = samples.std(1) / np.sqrt(5000)
    assert np.all(np.abs(samples.mean(1) - mean) < 5 * error)
    assert std == pytest.approx(np.maximum(samples.std(1), 2 * STD_FLOOR), rel=0.1)


@pytest.mark.parametrize("algorithm", ["TD3", "DDPG"])
def test_td3_and_ddpg_state_their_actions(algorithm, trained):
    model, path = trained(algorithm, "Pendulum-v1", **FEW)
    policy, obs = load_foreign(str(path), TORQUE, (3,), True), pendulum_obs(50)
    assert (policy.kind, policy.deterministic) == (f"stable-baselines3 {algorithm}", True)
    assert policy.function(obs) == pytest.approx(acted(model, obs), abs=1e-6)


CART = ActionSpace("discrete", 2)


@pytest.mark.parametrize("algorithm", ["PPO", "A2C"])
def test_discrete_actions_come_with_their_probabilities(algorithm, trained):
    import torch

    model, path = trained(algorithm, "CartPole-v1", **CONTINUOUS[algorithm])
    policy, obs = load_foreign(str(path), CART, (4,), True), random_obs(5000, 4)  # more than a chunk
    chances = policy.function(obs)
    with torch.no_grad():
        theirs = model.policy.get_distribution(torch.as_tensor(obs)).distribution.probs.numpy()
    assert chances == pytest.approx(theirs, abs=1e-6)
    assert np.array_equal(chances.argmax(1), acted(model, obs))
    assert not policy.deterministic


def test_dqn_states_its_actions(trained):
    model, path = trained("DQN", "CartPole-v1", learning_starts=8)
    policy, obs = load_foreign(str(path), CART, (4,), True), random_obs(50, 4)
    assert policy.deterministic
    assert np.array_equal(policy.function(obs), acted(model, obs))


def test_one_action_of_each_list(trained):
    import torch

    box = gymnasium.spaces.Box(-1, 1, (4,))
    model, path = trained("PPO", Toy(box, gymnasium.spaces.MultiDiscrete([2, 3])), key="lists", **CONTINUOUS["PPO"])
    policy, obs = load_foreign(str(path), LISTS, (4,), True), random_obs(30, 4)
    chances = policy.function(obs)
    with torch.no_grad():
        theirs = model.policy.get_distribution(torch.as_tensor(obs)).distribution
    assert chances == pytest.approx(np.concatenate([each.probs.numpy() for each in theirs], 1), abs=1e-6)
    assert np.array_equal(np.stack([chances[:, :2].argmax(1), chances[:, 2:].argmax(1)], 1), acted(model, obs))


def test_dictionaries_and_actions_that_are_matrices(trained):
    box = gymnasium.spaces.Box
    space = gymnasium.spaces.Dict({"place": box(-1, 1, (2, 2)), "kind": gymnasium.spaces.Discrete(3)})
    model, path = trained(
        "PPO", Toy(space, box(-3, 3, (2, 2))), "MultiInputPolicy", key="dict", n_steps=32, batch_size=32
    )
    action = ActionSpace("box", 4, (-3.0,) * 4, (3.0,) * 4)

    def raw(obs):
        return {"place": obs[:, 3:].reshape(-1, 2, 2), "kind": obs[:, :3].argmax(1)}

    policy, obs = load_foreign(str(path), action, (7,), True, raw), random_obs(20, 7)
    assert policy.function(obs)[0] == pytest.approx(acted(model, raw(obs)).reshape(20, 4), abs=1e-6)
    told = refusal(path, action, (7,))
    assert "takes observations Dict(" in told
    assert "this environment has shape (7,)" in told
    assert "{place: (4,)}" in refusal(path, action, (7,), raw=lambda obs: {"place": obs[:, 3:]})


def test_images(trained):
    images = gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8)
    options = {"policy_kwargs": {"features_extractor_kwargs": {"features_dim": 8}}, "n_steps": 16, "batch_size": 16}
    env = Toy(images, gymnasium.spaces.Discrete(3))
    model, path = trained("PPO", env, "CnnPolicy", 16, key="images", n_epochs=1, **options)
    policy = load_foreign(str(path), DISCRETE, (36, 36, 3), True)
    obs = np.random.default_rng(0).integers(0, 256, (10, 36, 36, 3), dtype=np.uint8)
    chances = policy.function(obs)
    assert np.array_equal(chances.argmax(1), acted(model, obs))
    # The same numbers as floats, and channels first, are the same images.
    assert np.allclose(policy.function(obs.astype(np.float32)), chances, atol=1e-6)
    first = load_foreign(str(path), DISCRETE, (3, 36, 36), True)
    assert np.allclose(first.function(obs.transpose(0, 3, 1, 2)), chances, atol=1e-6)


def test_statistics_of_vec_normalize_come_along(sb3, tmp_path):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    model = sb3.PPO("MlpPolicy", env, seed=1, device="cpu", **CONTINUOUS["PPO"])
    model.learn(64)
    model.save(tmp_path / "model.zip")
    env.save(str(tmp_path / "statistics.pkl"))
    obs = pendulum_obs(20)
    given = f"{tmp_path}/model.zip+{tmp_path}/statistics.pkl"
    assert "--trust" in refusal(given, TORQUE, (3,), trust=False)
    mean, _ = load_foreign(given, TORQUE, (3,), True).function(obs)
    plain, _ = load_foreign(f"{tmp_path}/model.zip", TORQUE, (3,), True).function(obs)
    assert np.clip(mean, -2, 2) == pytest.approx(acted(model, env.normalize_obs(obs)), abs=1e-6)
    assert np.abs(mean - plain).max() > 0.01
    (tmp_path / "statistics.pkl").write_bytes(b"nothing")
    assert "statistics.pkl' cannot be unpickled" in refusal(given, TORQUE, (3,))
    assert "does not exist" in refusal(f"{given}x", TORQUE, (3,))


@pytest.mark.parametrize(
    ("action", "obs_shape", "told"),
    [
        (TORQUE, (4,), r"takes observations Box\(.*\(3,\), float32\), and this environment has shape \(4,\)"),
        (ActionSpace("box", 2, (-2.0,) * 2, (2.0,) * 2), (3,), r"Box\(-2.0, 2.0, \(1,\).* takes 2 real numbers from"),
        (ActionSpace("box", 1, (-1.0,), (1.0,)), (3,), r"takes 1 real numbers from \[-1.0\] to \[1.0\]"),
        (DISCRETE, (3,), "this environment takes one of 3 actions"),
        (LISTS, (3,), r"takes one action out of each of \[2, 3\]"),
    ],
)
def test_a_model_of_another_environment_is_refused(action, obs_shape, told, trained):
    _, path = trained("PPO", "Pendulum-v1", **CONTINUOUS["PPO"], use_sde=False)
    assert re.search(told, refusal(path, action, obs_shape))


def test_loading_leaves_random_numbers_alone(trained):
    """Stable-Baselines3 seeds everything when it loads a model that had a seed."""
    _, path = trained("PPO", "Pendulum-v1", **CONTINUOUS["PPO"], use_sde=False)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    load_foreign(str(path), TORQUE, (3,), True)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_a_model_whose_objects_are_gone_says_which(trained, tmp_path):
    _, path = trained("PPO", "Pendulum-v1", **CONTINUOUS["PPO"], use_sde=False)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "model.zip", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "data":
                data = json.loads(content)
                data["observation_space"][":serialized:"] = (
                    "gASVFAAAAAAAAACMBGpzb26UjAdub3RoaW5nlJOULg=="  # json.nothing
                )
                content = json.dumps(data)
            new.writestr(name, content)
    told = refusal(tmp_path / "model.zip", TORQUE, (3,))
    assert "cannot be loaded by Stable-Baselines3: Could not deserialize object observation_space" in told


# ---------------------------------------------------------------- ONNX, for real


@pytest.fixture
def graph(tmp_path):
    """Writes a graph out of named outputs, each a list of nodes from 'obs' to its name."""
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto

    def write(outputs, rows="batch", features=4, weights=(), inputs=("obs",), path=tmp_path / "policy.onnx"):
        nodes = [helper.make_node(op, ins, [out], **extra) for op, ins, out, extra in outputs]
        names = [out for _, _, out, _ in outputs if not out.startswith("_")]
        whole = {out for op, _, out, _ in outputs if op == "ArgMax"}
        of = helper.make_tensor_value_info
        model = helper.make_graph(
            nodes,
            "policy",
            [of(name, kinds.FLOAT, [rows, features]) for name in inputs],
            [of(name, kinds.INT64 if name in whole else kinds.FLOAT, None) for name in names],
            [onnx.numpy_helper.from_array(np.asarray(w, np.float32), name) for name, w in weights],
        )
        opset = [helper.make_opsetid("", 17)]
        path.write_bytes(helper.make_model(model, opset_imports=opset, ir_version=9).SerializeToString())
        return path

    return write


W = random_obs(4, 2)
MEAN = ("MatMul", ["obs", "w"], "mean", {})
WIDE = [("v", random_obs(4, 3))]
SCORES = ("MatMul", ["obs", "v"])


@pytest.fixture(params=["onnxruntime", "onnx"])
def runtime(request, monkeypatch):
    """With onnxruntime, and with the evaluator of onnx alone."""
    pytest.importorskip(request.param)
    if request.param == "onnx":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    return request.param


def test_an_onnx_graph_with_mean_and_deviation(graph, runtime):
    obs = random_obs(5000, 4)  # more than a chunk
    std = [0.5, 2.0]
    path = graph([MEAN, ("Identity", ["s"], "std", {})], weights=[("w", W), ("s", std)])
    policy = load_foreign(str(path), BOX, (4,), trust=False)
    assert (policy.kind, policy.deterministic) == ("onnx", False)
    assert policy.info["runtime"].startswith(runtime + " ")
    assert policy.function(obs)[0] == pytest.approx(obs @ W, abs=1e-4)
    assert np.array_equal(policy.function(obs)[1], np.tile(np.float32(std), (5000, 1)))
    path = graph([MEAN, ("Identity", ["s"], "log_std", {})], weights=[("w", W), ("s", np.log(std))])
    assert load_foreign(str(path), BOX, (4,), False).function(obs)[1][0] == pytest.approx(std)
    path = graph([MEAN, ("Identity", ["s"], "std", {})], weights=[("w", W), ("s", [-1.0, 1.0])])
    assert "standard deviation of -1" in refusal(path, trust=False)


@pytest.mark.parametrize("name", ["mean", "action", "anything"])
def test_an_onnx_graph_with_actions(name, graph, runtime):
    obs = random_obs(6, 4)
    policy = load_foreign(str(graph([("MatMul", ["obs", "w"], name, {})], weights=[("w", W)])), BOX, (4,), False)
    assert policy.deterministic
    assert policy.function(obs) == pytest.approx(obs @ W, abs=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_an_onnx_graph_for_batches_of_one_size(rows, graph, runtime):
    obs = random_obs(7, 4)
    path = graph([MEAN, ("Exp", ["mean"], "std", {})], rows=rows, weights=[("w", W)])
    mean, std = load_foreign(str(path), BOX, (4,), False).function(obs)
    assert mean == pytest.approx(obs @ W, abs=1e-5)
    assert std == pytest.approx(np.exp(obs @ W), rel=1e-4)


def test_an_onnx_graph_for_discrete_actions(graph, runtime):
    obs = random_obs(6, 4)
    scores = obs @ WIDE[0][1]
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for name in ("logits", "anything"):
        policy = load_foreign(str(graph([(*SCORES, name, {})], weights=WIDE)), DISCRETE, (4,), False)
        assert not policy.deterministic
        assert policy.function(obs) == pytest.approx(expected, abs=1e-5)
    for name in ("probabilities", "anything"):
        path = graph([(*SCORES, "_s", {}), ("Softmax", ["_s"], name, {"axis": 1})], weights=WIDE)
        assert load_foreign(str(path), DISCRETE, (4,), False).function(obs) == pytest.approx(expected, abs=1e-5)
    for name in ("action", "anything"):
        path = graph([(*SCORES, "_s", {}), ("ArgMax", ["_s"], name, {"axis": 1})], weights=WIDE)
        policy = load_foreign(str(path), DISCRETE, (4,), False)
        assert policy.deterministic
        assert np.array_equal(policy.function(obs), scores.argmax(1))


def test_an_onnx_graph_for_lists_of_actions(graph, runtime):
    obs, weights = random_obs(6, 4), random_obs(4, 5)
    path = graph([("MatMul", ["obs", "v"], "logits", {})], weights=[("v", weights)])
    chances = load_foreign(str(path), LISTS, (4,), False).function(obs)
    assert chances == pytest.approx(softmax(obs @ weights, (2, 3)), abs=1e-5)
    assert np.allclose([chances[:, :2].sum(1), chances[:, 2:].sum(1)], 1.0)


def test_an_onnx_graph_gets_the_observation_that_fits_it(graph, runtime):
    path = graph([MEAN], weights=[("w", W)])
    obs = random_obs(5, 4)
    for raw in (None, lambda x: {"a": x[:, :1], "b": x[:, 1:]}, lambda x: x.argmax(1)):
        assert load_foreign(str(path), BOX, (4,), False, raw).function(obs) == pytest.approx(obs @ W, abs=1e-5)
    wide = random_obs(5, 6)
    policy = load_foreign(str(path), BOX, (6,), False, lambda x: x[:, 2:])
    assert policy.function(wide) == pytest.approx(wide[:, 2:] @ W, abs=1e-5)


def test_onnx_graphs_that_do_not_fit_are_refused(graph, runtime):
    path = graph([MEAN], weights=[("w", W)])
    told = refusal(path, BOX, (9,))
    assert (
        "takes an input of shape (any, 4), and a batch of observations of this environment has shape (any, 9)" in told
    )
    assert "mean of shape (8, 2) for 8 observations: (8, 3) is expected" in refusal(path, ActionSpace("box", 3))
    path = graph([MEAN, ("Exp", ["mean"], "value", {})], weights=[("w", W)])
    assert "outputs named mean, value: allowed are probabilities, logits or action" in refusal(path, DISCRETE)
    path = graph([("Add", ["obs", "extra"], "mean", {})], inputs=("obs", "extra"))
    assert "has 2 inputs (obs, extra): one input" in refusal(path)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_onnx_files_are_refused(damage, graph, runtime):
    path = graph([MEAN], weights=[("w", W)])
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert "is not a readable ONNX graph" in refusal(path)


@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_onnx_weights_that_are_not_finite_are_refused(number, graph, runtime):
    """In an initializer or a Constant; also where no observation of the trial meets them."""
    import onnx

    weights = W.copy()
    weights[0, 0] = number
    assert "has a number in 'w' that is not finite" in refusal(graph([MEAN], weights=[("w", weights)]), trust=False)
    assert "has a number in 'unused' that is not finite" in refusal(
        graph([MEAN], weights=[("w", W), ("unused", weights)]), trust=False
    )
    constant = ("Constant", [], "_w", {"value": onnx.numpy_helper.from_array(weights, "constant")})
    path = graph([constant, ("MatMul", ["obs", "_w"], "mean", {})])
    assert "has a number in 'constant' that is not finite" in refusal(path, trust=False)


def test_onnx_weights_outside_of_the_folder_are_refused(graph, runtime, tmp_path):
    import onnx

    (tmp_path / "models").mkdir()
    path = graph([MEAN], weights=[("w", W)], path=tmp_path / "models" / "policy.onnx")
    for place, expected in (("weights.bin", True), ("../weights.bin", False), (str(tmp_path / "weights.bin"), False)):
        (path.parent / place).write_bytes(W.tobytes())
        model = onnx.load(path, load_external_data=False)
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=place)
        path.write_bytes(model.SerializeToString())
        if expected:
            assert load_foreign(str(path), BOX, (4,), False).function(np.eye(4)) == pytest.approx(W)
        else:
            assert "is not a readable ONNX graph" in refusal(path)


# ---------------------------------------------------------------- TorchScript, for real

MODULES = {
    "pair": "return self.layer(x), torch.ones(2) * 0.5",
    "action": "return self.layer(x)",
    "named": "return {'mean': self.layer(x), 'log_std': torch.zeros(2)}",
    "logits": "return self.layer(x)",
    "probabilities": "return torch.softmax(self.layer(x), 1)",
    "choice": "return torch.argmax(self.layer(x), 1)",
    "three": "return self.layer(x), x, x",
}


@pytest.fixture
def script(tmp_path):
    torch = pytest.importorskip("torch")

    def write(kind, outputs=2):
        """The source must be in a file: TorchScript reads it again."""
        lines = ["import torch", "class Net(torch.nn.Module):", "    def __init__(self, outputs: int):"]
        lines += ["        super().__init__()", "        self.layer = torch.nn.Linear(4, outputs)"]
        lines += ["    def forward(self, x: torch.Tensor):", f"        {MODULES[kind]}"]
        (tmp_path / f"net_{kind}.py").write_text("\n".join(lines))
        spec = importlib.util.spec_from_file_location(f"net_{kind}", tmp_path / f"net_{kind}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        net = module.Net(outputs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*torch\.jit", DeprecationWarning)
            warnings.filterwarnings("ignore", r".*torch\.jit", FutureWarning)  # as torch 2.14 calls it
            torch.jit.script(net).save(str(tmp_path / f"{kind}.pt"))
        with torch.no_grad():
            linear = net.layer(torch.as_tensor(random_obs(6, 4))).numpy()
        return str(tmp_path / f"{kind}.pt"), linear

    return write


def test_torchscript_for_real_numbers(script):
    obs = random_obs(6, 4)
    path, linear = script("pair")
    policy = load_foreign(path, BOX, (4,), True)
    assert (policy.kind, policy.deterministic) == ("torchscript", False)
    mean, std = policy.function(obs)
    assert mean == pytest.approx(linear, abs=1e-6)
    assert np.array_equal(std, np.full((6, 2), 0.5))
    path, linear = script("named")
    assert np.array_equal(load_foreign(path, BOX, (4,), True).function(obs)[1], np.ones((6, 2)))
    path, linear = script("action")
    for raw in (None, lambda x: {"a": x}, lambda x: x.reshape(-1, 2, 2)):  # neither a dictionary nor matrices fit
        policy = load_foreign(path, BOX, (4,), True, raw)
        assert policy.deterministic
        assert policy.function(obs) == pytest.approx(linear, abs=1e-6)


def test_torchscript_for_discrete_actions(script):
    obs = random_obs(6, 4)
    for kind in ("logits", "probabilities"):
        path, linear = script(kind, 3)
        policy = load_foreign(path, DISCRETE, (4,), True)
        assert not policy.deterministic
        assert policy.info["output"] == f"output as {kind}"
        assert policy.function(obs) == pytest.approx(softmax(linear, (3,)), abs=1e-6)
    path, linear = script("choice", 3)
    policy = load_foreign(path, DISCRETE, (4,), True)
    assert policy.deterministic
    assert np.array_equal(policy.function(obs), linear.argmax(1))


def test_torchscript_that_does_not_fit_is_refused(script, tmp_path):
    path, _ = script("action")
    told = refusal(path, BOX, (5,))
    assert re.search(r"fails on observations of shape \(8, 5\): RuntimeError: .*shapes cannot be multiplied", told)
    assert "output of shape (8, 2) for 8 observations: (8, 3) is expected" in refusal(path, ActionSpace("box", 3))
    path, _ = script("three")
    assert "returned tuple: a tensor, a pair (mean, std) or a dictionary" in refusal(path)
    assert "cannot be loaded by torch" in refusal(program(tmp_path / "m.pt"))


def test_weights_of_torch_are_told_from_programs(tmp_path):
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(4, 2)
    torch.save(net.state_dict(), tmp_path / "new.pth")
    torch.save(net.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    torch.save(net, tmp_path / "whole.pt")
    for name in ("new.pth", "old.pth", "whole.pt"):
        assert "holds weights without the network they belong to" in refusal(tmp_path / name)


def test_tensors_of_torch_are_numbers_too():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(4, 2)
    policy = from_callable(lambda obs: (net(torch.as_tensor(obs)), torch.ones(2)), "f", BOX, (4,))
    assert policy.function(random_obs(6, 4))[0].shape == (6, 2)
