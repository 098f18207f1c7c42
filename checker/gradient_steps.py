"""The gradient steps of an update."""

import collections
import copy
import dataclasses
import inspect
import math
import typing

import numpy as np
import torch

from checker.policies import ROUNDING, ROUNDING_LOW_PRECISION


class FirstStep(typing.NamedTuple):
    """The first gradient step of an update."""

    minibatch: dict
    options: dict
    optimizer: typing.Any
    before: dict  # the agent's parameters, {name: tensor}
    after: dict
    buffers: dict  # what else the agent saves, such as statistics of observations


class PolicySlopes(typing.NamedTuple):
    """Derivatives of the loss of a minibatch by the log probability of each action, float32 [B].

    Where one is below 0, a step of gradient descent makes the action more likely."""

    advantages: torch.Tensor
    before: torch.Tensor  # where the probabilities are those of the rollout
    log_ratios: torch.Tensor
    after: torch.Tensor  # where they differ by these log_ratios
    shifted: torch.Tensor  # as before, with the same number added to the value and the return of each action
    of_values: torch.Tensor  # the derivatives by the agent's values instead


class GradientSteps:
    """Sees the losses, their gradients, and the minibatches."""

    def __init__(self, run):
        self.run = run
        self.gradients = {}  # {parameter: its gradient in the first step, or None if the loss does not use it}
        self.second_gradients = {}  # the same of the second step
        self.used_gradients = ({}, {})  # those of torch's optimizer in these steps, {parameter: gradient}
        self.slopes = None  # a PolicySlopes
        self.terms = {}  # of the loss: {name: (how much it grows with the coefficient, the scalar)}
        self.still_terms = set()  # the names of those that change the loss, and have no gradient
        self.step_norms = []  # of the gradients with which the agent's optimizer took steps
        self.learning_rates = collections.defaultdict(dict)  # {update: {id of an optimizer: those of its first step}}
        self.rows = []  # of the minibatches of the first update: the hashes of observations, and {column: numbers}

    def functions(self):
        script = self.run.script
        watched = {(script, "gradient_step"): self.gradient_step, (script, "adam_step"): self.adam_step}
        for name, value in vars(script).items():
            if name.endswith("_loss") and inspect.isfunction(value):
                watched[script, name] = self.loss
        return watched

    def see_optimizer(self, optimizer, args, kwargs):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        of_agent = set(self.run.agents[0].parameters()) if self.run.agents else set()
        if of_agent.intersection(parameters):
            rates = [float(group["lr"]) for group in optimizer.param_groups]
            self.learning_rates[len(self.run.stats)].setdefault(id(optimizer), rates)
            gradients = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
            self.step_norms.append(torch.nn.utils.get_total_norm(gradients.values()).item())
            if len(self.run.stats) == 1 and len(self.run.stats[0]) < 2:
                used = self.used_gradients[len(self.run.stats[0])]
                used |= {parameter: gradient.clone() for parameter, gradient in gradients.items()}

    def adam_step(self, function, optimizer, gradient, *args, **kwargs):
        self.step_norms.append(gradient.norm(dim=-1).max().item())  # ppo_seeds.py has a row for each agent
        named = inspect.signature(function).bind(optimizer, gradient, *args, **kwargs).arguments
        if "learning_rate" in named:
            rates = torch.as_tensor(named["learning_rate"], dtype=torch.float64)
            self.learning_rates[len(self.run.stats)].setdefault(id(optimizer), [rates.max().item()])
        return function(optimizer, gradient, *args, **kwargs)

    def gradient_step(self, function, *inputs, **kwargs):
        named = inspect.signature(function).bind(*inputs, **kwargs).arguments  # an edit may add an argument
        self.remember_rows(named.get("minibatch"))
        is_first_of_update = not self.run.stats[-1]
        if not is_first_of_update:
            stats = function(**named)
        else:
            agent = named["agent"]
            if not self.run.first_steps and self.run.first_step is not None:
                named["minibatch"] = self.run.first_step.minibatch
                agent.load_state_dict(self.run.first_step.buffers, strict=False)  # a resume has another rollout
            kept = copy.deepcopy(named["minibatch"])
            before = copy_parameters(agent)
            buffers = {name: value.clone() for name, value in agent.state_dict().items() if name not in before}
            torch.manual_seed(0)  # for dropout, so that the step after a resume draws the same numbers
            stats = function(**named)
            after = copy_parameters(agent)
            options = dict(vars(named["args"]))
            self.run.first_steps.append(FirstStep(kept, options, named.get("optimizer"), before, after, buffers))
        means = {name: torch.as_tensor(scalar, dtype=torch.float64).mean().item() for name, scalar in stats.items()}
        self.run.stats[-1].append(means)
        return stats

    def remember_rows(self, minibatch):
        """Keeps which rows of the rollout a minibatch of the first update has, and what it says of them."""
        if (
            len(self.run.stats) != 1
            or not isinstance(minibatch, dict)
            or not isinstance(minibatch.get("obs"), torch.Tensor)
        ):
            return
        obs = minibatch["obs"].cpu().numpy()
        columns = {}
        for name in ("returns", "logprobs"):
            if name in minibatch and minibatch[name].shape == (len(obs),):
                columns[name] = minibatch[name].detach().double().cpu().numpy()
        actions = minibatch.get("actions")
        if isinstance(actions, torch.Tensor) and not actions.is_floating_point() and len(actions) == len(obs):
            columns["actions"] = actions.cpu().numpy()
        self.rows.append(([hash(row.tobytes()) for row in obs], columns))

    def loss(self, function, agent, *args, **kwargs):
        outputs = function(agent, *args, **kwargs)
        # A loss with its scalars is that of the minibatch; one tensor alone is a term that an edit adds to it.
        is_whole = isinstance(outputs, tuple) and isinstance(outputs[0], torch.Tensor)
        if is_whole and isinstance(agent, torch.nn.Module) and self.run.is_in_step(2):
            self.find_gradients(agent, outputs[0], self.second_gradients)
        if is_whole and isinstance(agent, torch.nn.Module) and self.run.is_in_step(1):
            self.find_gradients(agent, outputs[0], self.gradients)
            named = inspect.signature(function).bind(agent, *args, **kwargs).arguments
            if self.slopes is None and isinstance(named.get("minibatch"), dict):
                self.find_slopes(function, named, outputs[0])
                self.find_terms(function, named, *outputs[:2])
        return outputs

    def find_gradients(self, agent, loss, found):
        named = {name: parameter for name, parameter in agent.named_parameters() if parameter.requires_grad}
        gradients = torch.autograd.grad(loss, named.values(), retain_graph=True, allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            earlier = found.get(name)  # of another loss of the same step
            if earlier is not None and gradient is not None:
                gradient = earlier + gradient
            found[name] = earlier if gradient is None else gradient

    def find_slopes(self, function, named, loss):
        """Takes the loss once more, as if half of the actions had become twice as likely, and the others half."""
        minibatch = named["minibatch"]
        log_probs = self.run.policies.log_probs
        if not {"logprobs", "returns", "values"} <= minibatch.keys() or log_probs is None:
            return
        if not log_probs.shape == minibatch["logprobs"].shape == minibatch["returns"].shape:
            return
        log_ratios = torch.full_like(log_probs, math.log(2)).detach()
        log_ratios[::2] = -math.log(2)
        before = slope(loss, log_probs)
        self.run.policies.log_probs = None  # so that log_prob() keeps those of this call
        changed = minibatch | {"logprobs": log_probs.detach() - log_ratios}
        changed_loss, *_ = function(**named | {"minibatch": changed})
        changed_log_probs = self.run.policies.log_probs
        self.run.policies.log_probs = log_probs
        if changed_log_probs is None:  # the loss has no policy
            return
        after = slope(changed_loss, changed_log_probs)
        numbers = torch.linspace(-10, 10, log_probs.numel(), device=log_probs.device).view_as(log_probs)
        names = ("values", "returns")
        moved = minibatch | {name: minibatch[name] + numbers for name in names}
        self.run.policies.log_probs = None
        self.run.policies.added_to_values = numbers
        moved_loss, *_ = function(**named | {"minibatch": moved})
        self.run.policies.added_to_values = None
        shifted = slope(moved_loss, self.run.policies.log_probs)
        self.run.policies.log_probs = log_probs
        advantages = minibatch["returns"] - minibatch["values"]
        values = self.run.policies.values
        is_trained = values.requires_grad and values.shape == advantages.shape
        of_values = slope(loss, values) if is_trained else torch.zeros_like(advantages)
        self.slopes = PolicySlopes(advantages, before, log_ratios, after, shifted, of_values)

    def find_terms(self, function, named, loss, stats):
        """Takes the loss once more with each coefficient larger by 1: by how much it grows, beside its term."""
        options = named.get("args")
        parameters = [parameter for parameter in self.run.agents[0].parameters() if parameter.requires_grad]
        for option, term in (("ent_coef", "entropy"), ("vf_coef", "value_loss")):
            if dataclasses.is_dataclass(options) and hasattr(options, option) and term in stats:
                changed = dataclasses.replace(options, **{option: getattr(options, option) + 1.0})
                changed_loss, *_ = function(**named | {"args": changed})
                self.terms[term] = (changed_loss - loss).item(), float(stats[term])
                gradients = torch.autograd.grad(changed_loss - loss, parameters, retain_graph=True, allow_unused=True)
                has_gradient = any(gradient is not None and gradient.any() for gradient in gradients)
                if changed_loss != loss and not has_gradient:
                    self.still_terms.add(term)


def slope(loss, tensor):
    """The derivative of a loss by a tensor, of the tensor's shape."""
    [gradient] = torch.autograd.grad(loss, tensor, retain_graph=True, allow_unused=True)
    return torch.zeros_like(tensor) if gradient is None else gradient


def copy_parameters(agent):
    return {name: parameter.detach().clone() for name, parameter in agent.named_parameters()}


def check_parameters(run, stats, args, source, page):
    seen = run.gradient_steps
    first = run.first_steps[0]
    after = run.first_steps[1].before if len(run.first_steps) > 1 else first.after
    unmoved = [name for name, tensor in first.before.items() if torch.equal(tensor, after[name])]
    gradients = seen.gradients
    unused = [name for name in unmoved if name in gradients and gradients[name] is None]
    outside = [name for name in unmoved if gradients.get(name) is not None and gradients[name].any()]
    still = [name for name in unmoved if gradients.get(name) is not None and not gradients[name].any()]
    frozen = [name for name in unmoved if gradients and name not in gradients]
    if unused:
        page.error(f"{', '.join(unused)} have no gradient: the loss does not use them{source.attribute(unused[0])}")
    if outside:
        hint = "the optimizer does not have them"
        page.error(f"{', '.join(outside)} have gradients and did not move: {hint}{source.attribute(outside[0])}")
    if still:
        page.note(f"gradients of 0: {', '.join(still)}{source.attribute(still[0])}")
    if frozen:
        page.note(f"frozen: {', '.join(frozen)}{source.attribute(frozen[0])}")
    # an optimizer that is made anew in each update has another id
    for rates in zip(seen.learning_rates[1].values(), seen.learning_rates[2].values(), strict=False):
        check_rates(*rates, args, page)
    later = run.first_steps[1].options if len(run.first_steps) > 1 else {}
    for name in ("ent_coef", "vf_coef", "clip_coef"):
        if name in later and np.max(later[name]) < 0 <= getattr(args, name, 0.0):
            page.error(f"{name} is {float(np.max(later[name])):.3g} in update 2: it changes its sign")
    norms = [each["grad_norm"] for each in stats if "grad_norm" in each]
    limit = getattr(args, "max_grad_norm", math.inf)  # an edit may take the option out
    clipped = sum(norm > limit for norm in norms)
    text = f"norm {np.mean(norms):.2g}, clipped in {clipped} of {len(norms)}" if norms else "no norm is logged"
    if not unused and not outside:
        which = f"{len(after) - len(unmoved)} tensors {'have gradients and ' if seen.gradients else ''}moved"
        page.ok(f"{which}; {text}")
    largest = max(seen.step_norms, default=0.0)
    if largest > 1.01 * limit:
        hint = f"--max-grad-norm {limit:g} does not clip it"
        page.warn(f"the optimizer gets a gradient of norm {largest:.2g}: {hint}")
    if norms and min(norms) > 100 * limit:
        returns = first.minibatch.get("returns") if isinstance(first.minibatch, dict) else None
        size = "" if returns is None else f": returns of up to {returns.abs().max():,.4g}"
        page.warn(f"gradient {text}{size}; scale the rewards or the observations")


def check_left_over(run, page):
    """A step must use the gradient of its own minibatch, without that of the step before."""
    seen = run.gradient_steps
    vectors = [[], [], []]
    for name, parameter in run.agents[0].named_parameters():
        gradients = [used.get(parameter) for used in seen.used_gradients] + [seen.second_gradients.get(name)]
        if not any(gradient is None for gradient in gradients):
            for vector, gradient in zip(vectors, gradients, strict=True):
                vector.append(gradient.double().flatten())
    if not vectors[0]:
        return
    first, second, own = map(torch.cat, vectors)
    gap = 1 - torch.cosine_similarity(second, own, dim=0)
    gap_of_sum = 1 - torch.cosine_similarity(second, first + own, dim=0)
    if gap > 1e-6 and gap_of_sum < 1e-3 * gap:
        page.error("the second step uses the gradient of the first again: zero_grad() must come before each backward()")


def check_rates(first, second, args, page):
    """The learning rates of an optimizer's groups in the two updates."""
    if min(first + second) < 0:
        page.error(f"the optimizer has a learning rate below 0: {min(first + second):.3g}")
    elif getattr(args, "anneal_lr", False):
        constant = [one for one, two in zip(first, second, strict=True) if one == two]
        if constant:
            text = f"the learning rate {constant[0]:.3g} in both updates"
            page.warn(f"the optimizer has {text}: --anneal-lr does not lower it")
        elif all(0.9 * one < two < 1.001 * one for one, two in zip(first, second, strict=True)):
            text = f"from {first[0]:.4g} to {second[0]:.4g} in a run of two updates"
            page.warn(f"the learning rate falls only {text}: --anneal-lr lowers it to near 0 by the end of a run")


def check_losses(stats, args, page):
    means = {name: float(np.mean([each[name] for each in stats])) for name in stats[0]}
    wrong = [f"{name} {mean}" for name, mean in means.items() if not math.isfinite(mean)]
    if wrong:
        page.error(f"not finite: {', '.join(wrong)}")
    else:
        shown = [f"{name} {means[name]:.2g}" for name in ("approx_kl", "clipfrac") if name in means]
        page.ok(", ".join([*shown, "all losses finite"]))
    if means.get("approx_kl", 0) > 0.2 and hasattr(args, "clip_coef"):  # V-trace has no clip range
        hint = "" if page.counts["ERROR"] else "; lower the rate"
        page.warn(f"approx_kl {means['approx_kl']:.2g}: the policy leaves the old one in one update{hint}")


def check_policy_loss(run, page):
    """The loss must make good actions more likely. A clip must hold back what moves on from the old policy alone."""
    seen = run.gradient_steps
    if seen.slopes is None:
        return
    advantages, before, log_ratios, after, shifted, of_values = seen.slopes
    growth, entropy = seen.terms.get("entropy", (0.0, 0.0))
    if growth != 0 and math.isclose(growth, entropy, rel_tol=0.01):
        page.error("the loss grows with the entropy, and its bonus must lower it")
    growth, value_loss = seen.terms.get("value_loss", (0.0, 0.0))
    if growth < -0.5 * value_loss:
        page.error("the loss falls with the value loss, and must grow with it")
    is_uniform = run.policies.log_probs.std().item() == 0  # its entropy is the largest, which has no slope
    if "entropy" in seen.still_terms and run.first_steps[0].options["ent_coef"] > 0 and not is_uniform:
        page.warn("the entropy bonus has no gradient: is the entropy detached, or of a constant policy?")
    if of_values.any():
        correlation = torch.corrcoef(torch.stack([-advantages.flatten(), of_values.flatten()]))[0, 1]
        if -0.5 < correlation < 0.5:
            hint = "do shapes [B] and [B, 1] make [B, B]?"
            page.warn(f"the loss does not draw each value to its return (correlation {correlation:.2f}): {hint}")
    if not before.any():
        page.warn("the loss of the first minibatch has no gradient for the policy")
        return
    correlation = torch.corrcoef(torch.stack([advantages.flatten(), -before.flatten()]))[0, 1]
    if correlation < -0.9:
        page.error(f"the loss makes actions of higher advantages less likely (correlation {correlation:.2f})")
        return
    still = ((before == 0) & (advantages != 0)).double().mean().item()
    gap = (run.policies.log_probs.detach() - run.first_steps[0].minibatch["logprobs"]).abs().max().item()
    if still > 0.1 and gap < ROUNDING_LOW_PRECISION:
        hint = "are the bounds of the clip in each other's place?"
        page.warn(f"at ratio 1, where no clip acts, {still:.0%} of the actions have no gradient: {hint}")
        return
    if torch.equal(before, after):
        page.warn("the loss does not depend on the logprobs of the rollout: its ratio is always 1, so no clip acts")
        return
    moves_on = -after * log_ratios > 0
    moves_back = -after * log_ratios < 0
    if moves_on.any() and not moves_back.any():
        hint = "the loss must take the smaller of the two surrogates"
        page.error(f"at ratios of 2 and 1/2, the policy can move on from the old one, and not back: {hint}")
        return
    if not correlation > 0.5:
        hint = "do shapes [B] and [B, 1] make [B, B]?"
        page.warn(f"the loss does not follow the advantages (correlation {correlation:.2f}): {hint}")
        return
    correlation_of_shifted = torch.corrcoef(torch.stack([before.flatten(), shifted.flatten()]))[0, 1]
    if not correlation_of_shifted > 0.9:
        page.warn("the loss follows the returns, and not how far they are from the values")
        return
    clip = "; at ratios of 2 and 1/2, the clip lets the policy only move back" if not moves_on.any() else ""
    page.ok(f"actions of higher advantages become more likely (correlation {correlation:.2f}){clip}")


def check_rows(run, page):
    """An epoch must use each step once, with the return and the log probability of that step."""
    seen = run.gradient_steps
    if (
        1 not in run.rollouts.gae_calls
        or run.rollouts.vectors != 1
        or hasattr(run.first_agent, "initial_state")
        or not seen.rows
    ):
        return
    values = run.rollouts.gae_calls[1][1].get("values")
    advantages = run.rollouts.advantages
    if not isinstance(values, np.ndarray) or not isinstance(advantages, np.ndarray):
        return
    hashes = [[hash(row.tobytes()) for row in obs] for obs, _, _ in run.rollouts.steps]
    if values.shape != np.shape(hashes) or values.shape != advantages.shape:
        return
    counts = collections.Counter(sum(hashes, []))
    returns = advantages + values
    return_of = {}  # of each step whose observation no other step has
    action_of = {}  # that the environment got
    for t, row in enumerate(hashes):
        for i, key in enumerate(row):
            if counts[key] == 1:
                return_of[key] = returns[t, i]
                action_of[key] = run.rollouts.steps[t][2][i]
    uses = collections.Counter(key for keys, _ in seen.rows for key in keys if key in return_of)
    if not uses:
        why = "they have other observations than the steps" if return_of else "no observation is that of one step alone"
        page.skip(f"rows of the minibatches: {why}")
        return
    problems = page.counts["warn"]
    least, most = (function(uses[key] for key in return_of) for function in (min, max))
    if least != most:
        page.warn(f"update 1 uses some steps {least} times and others {most} times: each epoch should use all once")
    orders = [tuple(keys) for keys, _ in seen.rows]
    if len(set(orders)) < len(orders) and len(orders[0]) > 8:
        page.warn("two minibatches of update 1 have the same steps in the same order: each epoch needs a permutation")
    wrong = set()
    others = set()
    change = 0.0
    logprobs = {}
    bound = 1e-3 * max(1.0, np.abs(returns).max())
    for keys, columns in seen.rows:
        for row, key in enumerate(keys):
            if key in return_of and "returns" in columns and abs(columns["returns"][row] - return_of[key]) > bound:
                wrong.add(key)
            if key in return_of and "actions" in columns:
                action = columns["actions"][row]
                if action.shape == action_of[key].shape and not np.array_equal(action, action_of[key]):
                    others.add(key)
            if key in return_of and "logprobs" in columns:
                first = logprobs.setdefault(key, columns["logprobs"][row])
                change = max(change, abs(columns["logprobs"][row] - first))
    if wrong:
        text = f"{len(wrong)} of {len(return_of)} steps"
        page.warn(f"the returns of {text} are not the advantages of gae() plus the values of the same steps")
    if others:
        text = f"{len(others)} of {len(return_of)} steps"
        page.warn(f"in {text} the environments got another action than the minibatch has")
    if change > ROUNDING:
        page.warn(f"logprobs of a step change by {change:.2g} in update 1: the ratio is to those of the rollout")
    if page.counts["warn"] == problems:
        page.ok(f"minibatches have the returns of their steps, each step {most} times")
