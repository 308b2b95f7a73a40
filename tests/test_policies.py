"""Policy networks: discrete actions, images against SciPy's convolution, statistics against NumPy, files."""

from __future__ import annotations

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal

import spacerl.policies.networks
from spacerl.api import load_policy
from spacerl.core.distributions import MultiCategorical
from spacerl.core.fisher import fisher_product
from spacerl.policies.family import PolicyFamily, family_of_spec, normaliser_of
from spacerl.policies.files import save_policy
from spacerl.policies.networks import Layout, convolutions
from spacerl.policies.normaliser import absorb, fresh_normaliser
from spacerl.runs.arrays import read_arrays
from spacerl.runs.folder import POLICY_FORMAT, write_arrays
from spacerl.types import ActionSpace, ImageSpec, InputError
from support.learners import quick_jit

BOX, MULTIDISCRETE = ActionSpace("box", 2), ActionSpace("multidiscrete", 5, nvec=(2, 3))
IMAGE = (9, 8, 2)
SMALL = {"images": (ImageSpec(0, IMAGE, 1 / 255),), "filters": (3, 2)}
# Two numbers, an image, one number, another image of floats, one number.
MIXED = {"images": (ImageSpec(2, IMAGE, 1 / 255), ImageSpec(2 + 144 + 1, (4, 4, 1), 1.0)), "filters": (3, 2)}
ENTRIES = 2 + 144 + 1 + 16 + 1


def family_with_images(kind: str = "image", action: ActionSpace = BOX, **fields) -> PolicyFamily:
    if kind == "image":
        return PolicyFamily(IMAGE, action, (6,), **SMALL, **fields)
    return PolicyFamily((ENTRIES,), action, (6,), **MIXED, **fields)


def observations(kind: str, rows: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    if kind == "image":
        return jnp.asarray(rng.integers(0, 256, (rows, *IMAGE)), jnp.uint8)
    flat = rng.normal(size=(rows, ENTRIES))
    flat[:, 2:146] = rng.integers(0, 256, (rows, 144))
    return jnp.asarray(flat, jnp.float32)


def some_theta(family: PolicyFamily, seed: int = 1):
    theta = quick_jit(family.init)(jax.random.PRNGKey(seed))
    return theta + jnp.asarray(0.1 * np.random.default_rng(seed).normal(size=theta.shape), jnp.float32)


def outputs(family: PolicyFamily, theta, obs) -> np.ndarray:
    """All parameters of the distribution, side by side."""
    dist = quick_jit(family.apply)(theta, obs)
    return np.concatenate([np.asarray(leaf) for leaf in jax.tree.leaves(dist)], axis=-1)


# ---------------------------------------------------------------- discrete actions


def test_a_policy_over_several_discrete_actions():
    family = PolicyFamily((4,), MULTIDISCRETE, (6,))
    dist = family.apply(some_theta(family), jnp.ones((7, 4)))
    assert isinstance(dist, MultiCategorical)
    assert (dist.logits.shape, dist.nvec) == ((7, 5), (2, 3))
    action = dist.sample(family.noise(jax.random.key(3), (7,)))
    assert action.shape == (7, 2)
    assert jnp.issubdtype(action.dtype, jnp.integer)
    assert np.all(action < jnp.array(MULTIDISCRETE.nvec))


@pytest.mark.parametrize(
    "action", [MULTIDISCRETE._replace(nvec=(2, 2)), MULTIDISCRETE._replace(nvec=()), ActionSpace("text", 2)]
)
def test_actions_that_do_not_fit_together_are_refused(action):
    with pytest.raises(ValueError, match=r"sum to 5|unknown kind"):
        PolicyFamily((4,), action, (6,))


# ---------------------------------------------------------------- images


@pytest.mark.parametrize(
    ("shape", "filters", "expected", "numbers"),
    [
        ((96, 96, 3), (24, 12), [(24, 4, 4), (12, 4, 2)], 11 * 11 * 12),  # the paper's car racing
        ((16, 16, 1), (24, 12), [(24, 4, 2), (12, 4, 2)], 2 * 2 * 12),
        ((64, 80, 3), (5,), [(5, 4, 4)], 16 * 20 * 5),
        ((3, 20, 1), (4, 2), [(4, 3, 2), (2, 1, 2)], 5 * 2),
        ((1, 1, 1), (4, 2), [(4, 1, 2), (2, 1, 2)], 2),
    ],
)
def test_convolutions_suit_the_image(shape, filters, expected, numbers):
    layers, features = convolutions(shape, filters)
    assert (list(layers), features) == (expected, numbers)


def network_by_hand(named: dict, images: list[np.ndarray], numbers: np.ndarray, scales: list[float]) -> np.ndarray:
    """The mean action for one observation in double precision, with SciPy's correlation of every pair of channels."""
    named = {name: np.asarray(leaf, np.float64) for name, leaf in named.items()}
    features = []
    for e, image in enumerate(images):
        x = image.astype(np.float64) * scales[e]
        for i, (_, _, stride) in enumerate(convolutions(image.shape, (3, 2))[0]):
            kernel, bias = named[f"images.{e}.layers.{i}.kernel"], named[f"images.{e}.layers.{i}.bias"]
            maps = [
                sum(scipy.signal.correlate2d(x[..., c], kernel[..., c, f], "valid") for c in range(x.shape[-1]))
                for f in range(kernel.shape[-1])
            ]
            x = np.tanh(np.stack(maps, axis=-1)[::stride, ::stride] + bias)
        features.append(x.ravel())
    x = np.tanh(np.concatenate([*features, numbers]) @ named["layers.0.weight"] + named["layers.0.bias"])
    return x @ named["layers.1.weight"] + named["layers.1.bias"]


def test_an_image_is_convolved():
    family, obs = family_with_images(), observations("image", 3)
    theta = some_theta(family)
    expected = [network_by_hand(family.named(theta), [np.asarray(o)], np.zeros(0), [1 / 255]) for o in obs]
    np.testing.assert_allclose(outputs(family, theta, obs)[:, :2], expected, atol=1e-5)
    np.testing.assert_allclose(outputs(family, theta, obs.astype(jnp.float32))[:, :2], expected, atol=1e-5)


def test_images_among_numbers_are_found_at_their_places():
    family, obs = family_with_images("mixed"), observations("mixed", 3)
    theta, expected = some_theta(family), []
    for row in np.asarray(obs):
        images = [row[2:146].reshape(IMAGE), row[147:163].reshape(4, 4, 1)]
        expected.append(network_by_hand(family.named(theta), images, row[[0, 1, 146, 163]], [1 / 255, 1.0]))
    np.testing.assert_allclose(outputs(family, theta, obs)[:, :2], expected, atol=1e-5)
    assert family.width == 4


def test_leading_axes_of_images_may_be_any():
    family, obs = family_with_images(), observations("image", 6)
    theta = some_theta(family)
    rows = outputs(family, theta, obs)
    np.testing.assert_allclose(outputs(family, theta, obs.reshape(2, 3, *IMAGE)), rows.reshape(2, 3, -1), rtol=1e-5)
    np.testing.assert_allclose(outputs(family, theta, obs[0]), rows[0], rtol=1e-5)


def test_some_rows_at_a_time_are_the_same_function_with_the_same_derivatives(monkeypatch):
    family, obs = family_with_images("image", MULTIDISCRETE), observations("image", 11)
    theta, weight, rng = some_theta(family), jnp.linspace(0.0, 1.0, 11), np.random.default_rng(4)
    rows = jnp.asarray(rng.normal(size=(2, family.parameters)), jnp.float32)
    cotangent = MultiCategorical(jnp.asarray(rng.normal(size=(11, 5)), jnp.float32), MULTIDISCRETE.nvec)

    def everything(at_once: int):
        monkeypatch.setattr(spacerl.policies.networks, "ROWS_AT_ONCE", at_once)
        dist, pull_back = jax.vjp(lambda t: family.apply(t, obs), theta)
        product = fisher_product(lambda t: family.apply(t, obs), theta, weight, 0.0)
        return dist.logits, pull_back(cotangent)[0], product(rows)

    whole, in_parts = (quick_jit(everything, static_argnums=0)(at_once) for at_once in (512, 4))  # 11 = 4 + 4 + 3
    for one, other in zip(whole, in_parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * float(jnp.max(jnp.abs(one))))


def test_memory_of_a_batch_of_images_does_not_grow_with_the_batch():
    """Compiled, not run: 1024 and 4096 images need about the same working memory for a gradient."""
    shape = (96, 96, 3)
    family = PolicyFamily(shape, BOX, (32, 16), images=(ImageSpec(0, shape, 1 / 255),))

    def working_memory(rows: int) -> float:
        gradient = jax.grad(lambda theta, obs: jnp.sum(family.apply(theta, obs).mean))
        shapes = (
            jax.ShapeDtypeStruct((family.parameters,), jnp.float32),
            jax.ShapeDtypeStruct((rows, *shape), jnp.uint8),
        )
        return quick_jit(gradient).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    small, large = working_memory(1024), working_memory(4096)
    assert large - small < 2.5 * 3072 * math.prod(shape)  # a copy of the bytes or two, far from activations in float32
    assert large < 2e9


@pytest.mark.parametrize(
    "images", [((1, IMAGE, 1.0),), ((0, (3, 3, 1), 1.0), (8, (3, 3, 1), 1.0)), ((0, (0, 3, 1), 1.0),)]
)
def test_images_that_do_not_fit_are_refused(images):
    with pytest.raises(ValueError, match=r"fit into|overlap"):
        Layout((math.prod(IMAGE),), images)


# ---------------------------------------------------------------- normalised observations

SPREADS = np.array([1.0, 1e-2, 300.0, 0.0, 5.0])
CENTRES = np.array([0.0, 3.0, -2000.0, 4.0, 1e4])


def batches(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    drift = [0.0, 2.0, -1.0]
    return [CENTRES + SPREADS * (rng.normal(size=(rows, 5)) + d) for rows, d in zip((40, 1, 300), drift, strict=True)]


def absorbed(parts: list[np.ndarray]):
    normaliser = fresh_normaliser(5)
    for part in parts:
        numbers = jnp.asarray(part, jnp.float32)
        normaliser = quick_jit(absorb)(normaliser, numbers, jnp.ones(len(part), bool))
    return normaliser


def test_statistics_of_batches_are_those_of_all_samples():
    parts = batches()
    normaliser, every = absorbed(parts), np.concatenate(parts).astype(np.float32).astype(np.float64)
    assert float(normaliser.count) == len(every)
    # float32 holds the samples themselves to 6e-8 of their size.
    slack = 1e-5 * every.std(0) + 1e-6 * np.abs(CENTRES)
    assert np.all(np.abs(normaliser.mean - every.mean(0)) < slack)
    assert np.all(np.abs(np.sqrt(normaliser.var) - every.std(0)) < slack)


def test_statistics_do_not_lose_precision_over_a_long_run():
    """1e8 samples in, another batch still counts, and the variance of a far-off mean is still right."""
    rng = np.random.default_rng(3)
    old = fresh_normaliser(1)._replace(mean=jnp.array([1e4]), var=jnp.array([1.0]), count=jnp.array(1e8))
    new = absorb(old, jnp.asarray(1e4 + 10.0 + rng.normal(size=(10_000_000 // 1000, 1)), jnp.float32), jnp.ones(10_000))
    share = 1e4 / (1e8 + 1e4)
    assert float(new.var[0]) == pytest.approx(1.0 + share * 100.0, abs=1e-4)
    assert float(new.count) == pytest.approx(1e8 + 1e4, rel=1e-6)


def test_padding_does_not_count():
    part = batches()[0]
    padded = jnp.asarray(np.concatenate([np.full((3, 5), np.nan), part, np.full((2, 5), np.inf)]), jnp.float32)
    valid = jnp.asarray([False] * 3 + [True] * len(part) + [False] * 2)
    for one, other in zip(absorb(fresh_normaliser(5), padded, valid), absorbed([part]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    nothing = absorb(fresh_normaliser(5), padded, jnp.zeros_like(valid))
    for one, other in zip(nothing, fresh_normaliser(5), strict=True):
        np.testing.assert_array_equal(one, other)


def test_constants_are_not_blown_up():
    normaliser = absorbed(batches())
    np.testing.assert_allclose(normaliser.scale()[3], 1.0)  # no spread
    np.testing.assert_allclose(normaliser.scale()[4], 10.0, rtol=1e-2)  # spread of 5 around 10,000
    moved = jnp.asarray(CENTRES + [0.0, 0.0, 0.0, 1.0, 0.0], jnp.float32)
    x = PolicyFamily((5,), BOX, ()).normalised(normaliser, moved)
    assert np.all(np.abs(x) < 4.0)


@pytest.mark.parametrize("kind", ["numbers", "mixed"])
def test_new_statistics_do_not_change_the_policy(kind):
    if kind == "numbers":
        family, (first, _, third) = PolicyFamily((5,), BOX, (6, 4)), batches()
        first, third = (jnp.asarray(part, jnp.float32) for part in (first, third))
    else:
        family, first, third = (
            family_with_images("mixed"),
            observations(kind, 30),
            3.0 + 2.0 * observations(kind, 50, 7),
        )
    theta = some_theta(family)
    old = quick_jit(family.absorb)(fresh_normaliser(family.width), first, jnp.ones(len(first)))
    new = quick_jit(family.absorb)(old, third, jnp.ones(len(third)))
    assert float(jnp.max(jnp.abs(new.mean - old.mean) / old.scale())) > 0.1
    before = outputs(family, theta, family.normalised(old, third))
    moved = quick_jit(family.rebase)(theta, old, new)
    assert float(jnp.max(jnp.abs(moved - theta))) > 0.01
    np.testing.assert_allclose(outputs(family, moved, family.normalised(new, third)), before, atol=1e-5)
    folded = quick_jit(family.fold)(theta, old)
    slack = 1e-5 if kind == "mixed" else 1e-3  # raw numbers may be 1000 times as large as their spread
    np.testing.assert_allclose(outputs(family, folded, third), before, atol=slack)
    np.testing.assert_allclose(family.rebase(folded, fresh_normaliser(family.width), old), theta, rtol=1e-3, atol=1e-3)


def test_a_policy_of_images_alone_has_nothing_to_normalise():
    family, obs = family_with_images(), observations("image", 4)
    theta, normaliser = some_theta(family), fresh_normaliser(family.width)
    assert family.width == 0
    assert family.normalised(normaliser, obs) is obs
    later = family.absorb(normaliser, obs, jnp.ones(4))
    np.testing.assert_array_equal(family.fold(theta, later), theta)


# ---------------------------------------------------------------- files

FAMILIES = {
    "multidiscrete": PolicyFamily((4,), MULTIDISCRETE, (6, 3)),
    "image": family_with_images(),
    "mixed": family_with_images("mixed", MULTIDISCRETE),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_kind_of_policy_is_read_back_to_the_bit(name, tmp_path):
    family = FAMILIES[name]
    theta = some_theta(family)
    save_policy(tmp_path / "policy.safetensors", family, theta, {})
    read = load_policy(tmp_path / "policy.safetensors")
    assert np.asarray(read.theta).tobytes() == np.asarray(theta).tobytes()
    assert read.family == PolicyFamily(
        family.obs_shape, family.action, family.hidden, images=family.images, filters=read.family.filters
    )
    assert read.family.spec() == json.loads(json.dumps(family.spec())) == family.spec()


def test_statistics_travel_with_the_policy(tmp_path):
    family, normaliser = PolicyFamily((5,), BOX, (6,)), absorbed(batches())
    folded = family.fold(some_theta(family), normaliser)
    arrays = {name: np.asarray(leaf) for name, leaf in family.named(folded, normaliser).items()}
    path = tmp_path / "policy.safetensors"
    write_arrays(path, arrays, {"format": POLICY_FORMAT, "spec": json.dumps(family.spec())})
    np.testing.assert_array_equal(load_policy(path).theta, folded)
    for one, other in zip(normaliser_of(read_arrays(path, POLICY_FORMAT, "policy")[0]), normaliser, strict=True):
        np.testing.assert_array_equal(one, other)
    assert normaliser_of(family.named(folded)) is None


def test_descriptions_written_before_are_still_understood():
    old = {"kind": "gaussian", "obs_shape": [9], "action_size": 2, "hidden": [64, 32], "activation": "tanh"}
    assert family_of_spec(old) == PolicyFamily((9,), BOX, (64, 32))
    assert PolicyFamily((9,), BOX, (64, 32)).spec() == old  # and files of such policies have not changed


def changed(spec: dict, **values) -> dict:
    spec = json.loads(json.dumps(spec))
    return spec | values


IMAGE_SPEC = FAMILIES["image"].spec()
OTHER_STRIDE = changed(IMAGE_SPEC)
OTHER_STRIDE["images"][0]["layers"][0]["stride"] = 1
UNKNOWN_SPECS = {
    "kind": changed(IMAGE_SPEC, kind="squashed"),
    "activation": changed(IMAGE_SPEC, activation="relu"),
    "stride": OTHER_STRIDE,
    "place": changed(IMAGE_SPEC, obs_shape=[3, 3]),
    "choices": changed(FAMILIES["multidiscrete"].spec(), choices=[7]),
}


@pytest.mark.parametrize("name", UNKNOWN_SPECS)
def test_descriptions_that_cannot_be_rebuilt_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"not known|fit into|sum to"):
        family_of_spec(UNKNOWN_SPECS[name])
    family = FAMILIES["image"]
    path = tmp_path / "policy.safetensors"
    arrays = {name: np.asarray(leaf) for name, leaf in family.named(some_theta(family)).items()}
    write_arrays(path, arrays, {"format": POLICY_FORMAT, "spec": json.dumps(UNKNOWN_SPECS[name])})
    with pytest.raises(InputError, match=r"policy\.safetensors"):
        load_policy(path)


def test_arrays_of_other_shapes_are_refused():
    family = FAMILIES["multidiscrete"]
    named = {name: np.asarray(leaf) for name, leaf in family.named(some_theta(family)).items()}
    named["layers.0.weight"] = named["layers.0.weight"].T  # as many numbers, another matrix
    with pytest.raises(ValueError, match=r"'layers.0.weight' has shape \(6, 4\), not \(4, 6\)"):
        family.from_named(named)


# ---------------------------------------------------------------- on the host


@pytest.mark.parametrize("action", [BOX, ActionSpace("discrete", 4)], ids=["box", "discrete"])
def test_numpy_samples_what_the_compiled_policy_samples(action):
    family = PolicyFamily((2, 3), action, (8, 5))
    theta = some_theta(family)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(50, 2, 3)).astype(np.float32)
    noise = np.array(family.noise(jax.random.PRNGKey(2), (50,)))
    sample = family.sampler(theta)
    assert sample is not None
    np.testing.assert_allclose(sample(obs, noise), family.apply(theta, obs).sample(noise), atol=1e-5)


def test_a_standard_deviation_at_its_floor_is_sampled_at_its_floor():
    family = PolicyFamily((3,), BOX, (4,), initial_std=1e-12)
    theta, noise = family.init(jax.random.PRNGKey(0)), np.full((1, 2), 1e3, np.float32)
    obs = np.ones((1, 3), np.float32)
    sample = family.sampler(theta)
    assert sample is not None
    np.testing.assert_allclose(sample(obs, noise), family.apply(theta, obs).sample(noise), rtol=1e-4)


def test_images_and_several_discrete_actions_are_left_to_the_compiled_policy():
    for family in (family_with_images(), PolicyFamily((3,), MULTIDISCRETE, (4,))):
        assert family.sampler(some_theta(family)) is None


def test_a_small_gain_begins_near_one_action():
    obs = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)
    spread = []
    for gain in (1.0, 0.01):
        family = PolicyFamily((6,), BOX, (8,), initial_gain=gain)
        spread.append(float(jnp.std(family.apply(family.init(jax.random.PRNGKey(3)), obs).mean)))
    assert spread[1] == pytest.approx(0.01 * spread[0], rel=1e-4)
