"""The agent's policies and values."""

import collections
import copy
import inspect
import math
import threading

import torch

from checker.page import place_of

# Of log probabilities. Dropout of 0.1 changes those of a new agent by about 0.01, as its last layer is small.
ROUNDING = 1e-4


ROUNDING_LOW_PRECISION = 0.02  # with --tf32 or --bf16


class Policies:
    """Sees what forward(), sample() and log_prob() return."""

    def __init__(self, run):
        self.run = run
        self.samples = 0  # calls of sample()
        self.logprobs_of_steps = []  # of the first rollout, by the policies that acted
        self.logprobs_of_batch = None  # the same, as the script computes them after the rollout
        self.inner_calls = collections.Counter()  # {thread: calls of sample() and log_prob() that have not returned}
        self.log_probs = None  # in the first gradient step
        self.values = None
        self.values_of_update_2 = None  # those of the first gradient step, of an agent with memory
        self.added_to_values = None  # what forward() adds to the values, [B]

    def functions(self):
        script = self.run.script
        watched = {(script.Agent, "forward"): self.forward}
        # a script may also draw from torch.distributions.Categorical without importing this name
        for value in [*vars(script).values(), *vars(torch.distributions).values()]:
            if inspect.isclass(value) and hasattr(value, "log_prob"):  # a class may inherit one of the two
                looks = {"log_prob": self.log_prob, "sample": self.sample}
                watched |= {(value, name): look for name, look in looks.items() if name in vars(value)}
        return watched

    def forward(self, function, agent, *inputs, **kwargs):
        outputs = function(agent, *inputs, **kwargs)
        if self.run.is_in_step(1) and self.values is None:
            self.values = outputs[1]
        is_in_second_update = len(self.run.stats) == 2 and not self.run.stats[1] and torch.is_grad_enabled()
        if is_in_second_update and self.values_of_update_2 is None:
            self.values_of_update_2 = outputs[1].detach()
        if self.added_to_values is not None and torch.is_grad_enabled():  # not in the rollout of another thread
            policy, values, *rest = outputs
            outputs = policy, values + self.added_to_values, *rest
        return outputs

    def is_in_first_rollout(self):
        return len(self.run.stats) == 1 and not self.run.stats[0] and not torch.is_grad_enabled()

    def sample(self, function, policy, *args, **kwargs):
        self.samples += 1
        thread = threading.get_ident()
        self.inner_calls[thread] += 1
        actions = function(policy, *args, **kwargs)
        if self.is_in_first_rollout() and self.inner_calls[thread] == 1:
            self.logprobs_of_steps.append(policy.log_prob(actions))
        self.inner_calls[thread] -= 1
        return actions

    def log_prob(self, function, policy, actions):
        thread = threading.get_ident()
        self.inner_calls[thread] += 1  # a policy of several parts calls log_prob() of each
        log_probs = function(policy, actions)
        self.inner_calls[thread] -= 1
        if self.inner_calls[thread] > 0:
            return log_probs
        if self.run.is_in_step(1) and self.log_probs is None:
            self.log_probs = log_probs
        steps = self.logprobs_of_steps
        is_whole = len(steps) > 1 and log_probs.numel() == sum(step.numel() for step in steps)
        if self.is_in_first_rollout() and is_whole and self.logprobs_of_batch is None:
            self.logprobs_of_batch = log_probs
        return log_probs


def tolerance_of(args):
    is_low = getattr(args, "tf32", False) or getattr(args, "bf16", False)
    return ROUNDING_LOW_PRECISION if is_low else ROUNDING


def random_layers(agent, source):
    """Names the agent's layers that depend on more than an observation."""
    for name, module in agent.named_modules():
        kind = type(module).__name__
        if kind.startswith(("Dropout", "AlphaDropout", "FeatureAlphaDropout", "BatchNorm", "SyncBatchNorm")):
            return f": {kind} {name}{source.call(kind) or source.attribute(name)}"
    return ""


def check_agent(run, obs, args, source, page):
    """Looks at an agent before its first update. obs: observations [B, ...], or None."""
    agent = run.first_agent
    tensors = list(agent.parameters())
    page.section("agent", f", {sum(map(torch.numel, tensors)):,} parameters in {len(tensors)} tensors")
    if obs is None:
        page.skip("policy and values: make_envs() gives no observations")
    else:
        with page.check("policy and values"), torch.no_grad():
            minibatch = run.first_steps[0].minibatch if run.first_steps else None
            obs = torch.from_numpy(obs[:64]).to(tensors[0].device)
            check_outputs(agent, obs, minibatch, args, source, page)
    for name, module in agent.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                path = f"{name}.{attribute}".lstrip(".")
                hint = "neither trained nor saved, as it is no nn.Parameter and no buffer"
                page.note(f"{path} is {hint}{source.attribute(attribute)}")
    with page.check("first minibatch"):
        check_first_minibatch(run, args, source, page)


def check_outputs(agent, obs, minibatch, args, source, page):
    """Compares forward() with get_policy(), and looks at the shapes of what they return."""
    size = len(obs)
    place = place_of(type(agent).forward)
    policy, values = outputs_of(agent, obs)
    actions = policy.sample()
    log_probs = policy.log_prob(actions)
    for name, tensor in (("values", values), ("log probabilities", log_probs)):
        if tensor.shape != (size,):
            page.error(f"{name} have the shape {list(tensor.shape)}, and must have [{size}] for {size} rows{place}")
    if not hasattr(agent, "get_policy"):
        page.skip("get_policy() = forward(): forward() alone has the policy")
    else:
        # as many observations at a time as in the rollout, which batch normalization tells apart
        pairs = zip(obs.split(args.num_envs), actions.split(args.num_envs), strict=True)
        log_probs_of_rollout = torch.cat([agent.get_policy(rows).log_prob(taken) for rows, taken in pairs])
        gap = (log_probs_of_rollout - log_probs).abs().max().item()
        if gap > tolerance_of(args):
            why = random_layers(agent, source) or place
            page.error(f"get_policy() and forward() differ by {gap:.2g} in log_prob{why}")
        else:
            page.ok("get_policy() = forward()")
    if hasattr(agent, "initial_state"):
        check_memory(agent, obs, page)
    if inspect.signature(policy.entropy).parameters:
        page.skip("entropy: the policy alone does not have it")
        return
    entropy = policy.entropy().mean().item()
    most = sum(math.log(logits.shape[-1]) for logits in logits_of(policy))
    if most > 0 and entropy < most / 2:
        page.warn(f"entropy {entropy:.3g} of at most {most:.3g} before training: give the last layer std=0.01")
    else:
        page.ok(f"entropy {entropy:.4g}" + (f" of at most {most:.4g}" if most > 0 else ""))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        check_entropy(agent, obs, page)
        check_layers(agent, obs, page)
        check_ranges(agent, obs, most, minibatch, page)


def check_memory(agent, obs, page):
    """Where an episode begins, nothing of the memory may be left."""
    state = agent.initial_state(len(obs))
    parts = state if isinstance(state, tuple) else (state,)
    used_parts = tuple(part + torch.randn_like(part) for part in parts)
    used = used_parts if isinstance(state, tuple) else used_parts[0]
    dones = torch.ones(len(obs), dtype=torch.bool, device=obs.device)
    _, values, *_ = agent(obs, used, dones)
    _, values_of_new, *_ = agent(obs, state, dones)
    gap = (values - values_of_new).abs().max().item()
    if gap > ROUNDING:
        hint = "forward() must set the state to 0 where dones are true"
        place = place_of(type(agent).forward)
        page.error(f"the memory of an episode changes the values of the next one by {gap:.2g}: {hint}{place}")


def outputs_of(agent, obs):
    """The policy and the values of observations [B, ...]; a memory begins at 0."""
    if hasattr(agent, "initial_state"):
        dones = torch.zeros(len(obs), dtype=torch.bool, device=obs.device)
        policy, values, *_ = agent(obs, agent.initial_state(len(obs)), dones)
    else:
        policy, values, *_ = agent(obs)
    return policy, values


def add_noise(agent, scale):
    """A copy of an agent with other weights."""
    agent = copy.deepcopy(agent)
    for parameter in agent.parameters():
        parameter.add_(scale * torch.randn_like(parameter))
    return agent


def check_entropy(agent, obs, page):
    """The entropy must be the mean of -log_prob() of the policy's own samples, also after the first updates."""
    count = 4096 if obs[0].numel() <= 1000 else 256
    policy, _ = outputs_of(add_noise(agent, 0.3), obs[:1].repeat(count, *[1] * (obs.ndim - 1)))
    log_probs = policy.log_prob(policy.sample()).double()
    entropy = policy.entropy().double().mean().item()
    gap = abs(-log_probs.mean().item() - entropy)
    if gap > 6 * log_probs.std().item() / count**0.5 + 0.05 * max(1.0, abs(entropy)):
        text = f"{-log_probs.mean():.3g}, and its entropy() {entropy:.3g}"
        page.warn(f"with other weights, the policy's mean of -log_prob(sample()) is {text}{place_of(type(policy))}")


def check_layers(agent, obs, page):
    """Several linear layers without a function between them are one."""
    count = sum(isinstance(module, torch.nn.Linear) for module in agent.modules())
    if obs.ndim != 2 or not obs.is_floating_point() or count <= 2 or hasattr(agent, "initial_state"):
        return
    agent = add_noise(agent, 0.3)
    points = 3 * torch.randn_like(obs)
    _, at_zero = outputs_of(agent, torch.zeros_like(obs))
    _, once = outputs_of(agent, points)
    _, twice = outputs_of(agent, 2 * points)
    if torch.allclose(twice - at_zero, 2 * (once - at_zero), rtol=1e-4, atol=1e-4) and not torch.allclose(
        once, at_zero
    ):
        page.warn(
            f"values are a linear function of observations: is a tanh or relu missing?{place_of(type(agent).forward)}"
        )


def check_ranges(agent, obs, most, minibatch, page):
    """With some weights, the policy must be sure of an action, and the values must be in the range of the returns.

    most: the largest entropy that the policy can have, or 0."""
    entropies = []
    values = []
    for _ in range(16):
        policy, values_of_weights = outputs_of(add_noise(agent, 1.0), obs)
        values.append(values_of_weights)
        if most > 0:
            entropies.append(policy.entropy().min().item())
    place = place_of(type(agent).forward)
    if most > 0 and min(entropies) > most / 2:
        text = f"{min(entropies):.3g} of {most:.3g}"
        hint = "is a softmax or a tanh before its logits?"
        page.warn(f"with 16 random weights, no observation has an entropy below {text}: {hint}{place}")
    returns = minibatch.get("returns") if isinstance(minibatch, dict) else None
    values = torch.cat(values)
    if returns is None:
        return
    lowest, highest = values.min().item(), values.max().item()
    has_one_sign = lowest >= 0 > returns.min() or highest <= 0 < returns.max()
    is_small = values.abs().max() <= 1 < returns.abs().max()
    if has_one_sign or is_small:
        text = f"from {lowest:.3g} to {highest:.3g}, and returns from {returns.min():.3g} to {returns.max():.3g}"
        hint = "is a relu or a tanh behind the last layer?"
        page.warn(f"with 16 random weights, the agent has values {text}: {hint}{place}")


def logits_of(policy):
    """The logits of a policy's components, [[B, A], ...]; none if its actions are not discrete."""
    logits = getattr(policy, "logits", [])
    return logits if isinstance(logits, list) else [logits]


def check_first_minibatch(run, args, source, page):
    """Before the first gradient step, the agent must compute what the rollout has stored."""
    seen = run.policies
    if not run.first_steps:
        page.skip("first minibatch: there was no gradient step")
        return
    minibatch = run.first_steps[0].minibatch
    if not isinstance(minibatch, dict):
        page.skip("first minibatch: it is no dict")
        return
    if "logprobs" in minibatch and minibatch["logprobs"].min() < -1e6:
        page.error("in the first minibatch, an action has the probability 0: is its mask that of another step?")
        return
    if seen.logprobs_of_batch is not None:
        acted = torch.cat(seen.logprobs_of_steps, dim=-1).flatten()
        gap = (acted - seen.logprobs_of_batch.flatten()).abs().max().item()
        if gap > tolerance_of(args):
            hint = "are obs and actions those of one step?"
            page.error(f"the logprobs of the rollout differ from those of the policies that acted by {gap:.2g}: {hint}")
    texts = []
    failed = False
    for name, computed in (("logprobs", seen.log_probs), ("values", seen.values)):
        if name not in minibatch or computed is None or computed.numel() != minibatch[name].numel():
            continue
        stored = minibatch[name].flatten()
        gap = ((computed.detach().flatten() - stored).abs() / stored.abs().clamp(min=1)).max().item()
        words = f"ratio 1 ± {gap:.0e}" if name == "logprobs" else "values as in the rollout"
        texts.append(words)
        if not gap <= tolerance_of(args):
            failed = True
            why = random_layers(run.first_agent, source)
            page.error(f"in the first minibatch, {name} differ from those of the rollout by {gap:.2g}{why}")
    # in update 1 the memory begins at 0
    has_memory = hasattr(run.first_agent, "initial_state") and "values" in minibatch
    if has_memory and len(run.first_steps) > 1 and seen.values_of_update_2 is not None:
        stored = run.first_steps[1].minibatch["values"].flatten()
        computed = seen.values_of_update_2.flatten()
        gap = (computed - stored).abs().max().item() if computed.shape == stored.shape else 0.0
        if gap > tolerance_of(args) * max(1.0, stored.abs().max().item()):
            failed = True
            hint = "does the minibatch begin with the state of the rollout?"
            page.error(f"in update 2, values differ from those of the rollout by {gap:.2g}: {hint}")
    if not texts:
        page.skip("first minibatch: the loss computes no log probabilities or values that could be compared")
    elif not failed:
        page.ok(f"first minibatch: {', '.join(texts)}")
