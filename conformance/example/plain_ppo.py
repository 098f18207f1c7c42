"""A plain PPO in PyTorch, for discrete actions. adapter.py beside it lets conformance measure it."""

import torch
from torch import nn
from torch.distributions import Categorical


def network(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, outputs))


class PPO:
    """Trains a policy and a value function, two networks, on a vector of environments."""

    def __init__(
        self, envs, policy, value, num_steps=128, learning_rate=3e-4, gamma=0.99, gae_lambda=0.95, clip_coef=0.2,
        ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5, num_minibatches=4, update_epochs=4,
    ):  # fmt: skip
        self.envs = envs
        self.policy = policy
        self.value = value
        self.num_steps = num_steps
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.clip_coef = clip_coef
        self.ent_coef = ent_coef
        self.vf_coef = vf_coef
        self.max_grad_norm = max_grad_norm
        self.num_minibatches = num_minibatches
        self.update_epochs = update_epochs
        self.parameters = [*policy.parameters(), *value.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, lr=learning_rate)
        self.obs = envs.reset()

    @torch.no_grad()
    def collect(self):
        """A rollout: a dict of tensors [M, N, ...], with its advantages and returns."""
        columns = {name: [] for name in ("obs", "actions", "log_probs", "values", "rewards", "ends")}
        for _ in range(self.num_steps):
            policy = Categorical(logits=self.policy(self.obs))
            actions = policy.sample()
            next_obs, rewards, ends = self.envs.step(actions)
            step = self.obs, actions, policy.log_prob(actions), self.value(self.obs).squeeze(-1), rewards, ends
            for column, part in zip(columns.values(), step, strict=True):
                column.append(part)
            self.obs = next_obs
        rollout = {name: torch.stack(column) for name, column in columns.items()}
        next_values = torch.cat([rollout["values"][1:], self.value(self.obs).view(1, -1)])
        goes_on = 1.0 - rollout["ends"].float()
        deltas = rollout["rewards"] + self.gamma * next_values * goes_on - rollout["values"]
        advantages = torch.zeros_like(deltas)
        advantage = 0.0
        for t in reversed(range(self.num_steps)):
            advantage = deltas[t] + self.gamma * self.gae_lambda * goes_on[t] * advantage
            advantages[t] = advantage
        return rollout | {"advantages": advantages, "returns": advantages + rollout["values"]}

    def loss(self, batch):
        policy = Categorical(logits=self.policy(batch["obs"]))
        values = self.value(batch["obs"]).squeeze(-1)
        advantages = batch["advantages"]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = (policy.log_prob(batch["actions"]) - batch["log_probs"]).exp()
        clipped_ratio = ratio.clamp(1 - self.clip_coef, 1 + self.clip_coef)
        policy_loss = -torch.min(advantages * ratio, advantages * clipped_ratio).mean()
        value_loss = (values - batch["returns"]).square().mean()
        return policy_loss + self.vf_coef * value_loss - self.ent_coef * policy.entropy().mean()

    def update(self):
        """Collects a rollout, takes the gradient steps, and returns the rollout."""
        rollout = self.collect()
        batch = {name: column.flatten(0, 1) for name, column in rollout.items()}
        for _ in range(self.update_epochs):
            for rows in torch.randperm(len(batch["obs"])).chunk(self.num_minibatches):
                loss = self.loss({name: column[rows] for name, column in batch.items()})
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
                self.optimizer.step()
        return rollout
