"""What settings are called in other libraries, for those who bring a command line from there."""

from __future__ import annotations

# Name there (Stable-Baselines3, OmniSafe, CleanRL): what to take here. The first word is a setting's name.
ELSEWHERE: dict[str, str] = {
    "total_timesteps": "updates, each of batch-size environment steps",
    "total_steps": "updates, each of batch-size environment steps",
    "timesteps": "updates, each of batch-size environment steps",
    "epochs": "updates",
    "n_epochs": "critic-steps, for the critics alone: the policy takes one step per update",
    "n_steps": "batch-size, in environment steps of all copies together",
    "num_steps": "batch-size, in environment steps of all copies together",
    "steps_per_epoch": "batch-size",
    "learning_rate": "delta, the trust region that a step fills",
    "lr": "delta, the trust region that a step fills",
    "target_kl": "delta",
    "max_kl": "delta",
    "gamma": "discount",
    "cost_gamma": "cost-discount",
    "lam": "gae-lambda",
    "algo": "algorithm",
    "env_id": "env",
    "n_envs": "environments",
    "num_envs": "environments",
    "vector_env_nums": "environments",
    "max_episode_steps": "rollout-length",
    "max_ep_len": "rollout-length",
    "cost_lim": "cost-limit",
    "cost_threshold": "cost-limit",
    "net_arch": "hidden",
    "hidden_sizes": "hidden",
    "log_std_init": "initial-std, which is no logarithm",
    "eval_freq": "evaluate-every, in updates",
    "n_eval_episodes": "evaluation-episodes",
    "save_freq": "checkpoint-every, in updates",
    "norm_obs": "normalise-observations",
    "tensorboard_log": "log",
    "track": "log, with wandb",
    "gpu": "device, with gpu",
    "cuda": "device, with gpu",
    "verbose": "quiet, for none",
    "policy": "baseline, where it is the one to start from, and hidden for a network",
}
# Algorithms there that have a relative here, in small letters without signs between them.
ALGORITHMS_ELSEWHERE: dict[str, str] = {
    "ppo": "trpo, the same step limited by the trust region itself",
    "ppolag": "trpo-lagrangian",
    "ppolagrangian": "trpo-lagrangian",
    "trpolag": "trpo-lagrangian",
    "rcpo": "trpo-lagrangian",
    "cppopid": "trpo-pid",
    "focops": "cpo, which it approximates to first order",
    "naturalpg": "trpo",
    "npg": "trpo",
}
# Arguments of a command or a function that are no settings of a run have other words in Python.
IN_PYTHON = {"quiet, for none": "progress, False for none"}


def known_elsewhere(name: str, option: bool) -> str | None:
    """What a name of another library is here: '--delta, the trust region ...', or 'delta, ...' in Python."""
    said = ELSEWHERE.get(name.lstrip("-").replace("-", "_"))
    if said is None:
        return None
    if option:
        return f"--{said}"
    said = IN_PYTHON.get(said, said)
    head, comma, rest = said.partition(",")
    return head.replace("-", "_") + comma + rest


def algorithm_elsewhere(name: str) -> str | None:
    """The algorithm here that is nearest to one of another library."""
    return ALGORITHMS_ELSEWHERE.get("".join(filter(str.isalnum, name.lower())))
