"""Changes one line of the code at a time and shows which changes the tests notice.

    python tests/mutants.py        (minutes; python tests/mutants.py clip runs those whose row has "clip")

A row of MUTANTS is a single mistake in a file: a text, the wrong text, and the tests that should fail, which are names
of test files, each with a word for pytest's -k. They run in a copy of the checkout. A mutant that survives names a line
that no test guards.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gymnasium  # noqa: F401  this import and the others are done once, before the forks
import pytest
import torch.utils.tensorboard  # noqa: F401

ROOT = Path(__file__).parents[1]
MUTANTS = {
    "ppo.py": [
        (".exponential_().log())", ".exponential_())", "loss:discrete"),
        ("-(self.logits.exp() * self.logits)", "(self.logits.exp() * self.logits)", "loss:discrete"),
        ("[*dones[1:], next_done]", "dones", "gae:"),
        ("gae_lambda * nonterminal[t] * advantage", "gae_lambda * advantage", "gae:"),
        (".std(correction=0)", ".std(correction=1)", "loss:formulas golden:statistics"),
        ("torch.max(-advantages * ratio, ", "torch.min(-advantages * ratio, ", "loss:formulas"),
        ("clamp(1 - clip_coef, ", "clamp(1 - args.clip_coef, ", "loss:formulas"),
        (".clamp(-clip_coef, clip_coef)", ".clamp(-args.clip_coef, args.clip_coef)", "loss:formulas"),
        ("> clip_coef)", "> args.clip_coef)", "loss:formulas"),
        ("- args.ent_coef * entropy", "+ args.ent_coef * entropy", "loss:formulas"),
        ("value_loss = 0.5 * ", "value_loss = ", "loss:formulas"),
        ("old_approx_kl=-logratio", "old_approx_kl=logratio", "loss:formulas"),
        ("(ratio - 1 - logratio)", "(ratio - 1 + logratio)", "loss:formulas"),
        ("(logratio**2).mean() / 2", "(logratio**2).mean()", "loss:formulas"),
        ("1e-5 / math.sqrt(1 - 0.999", "1e-5 * math.sqrt(1 - 0.999", "golden:three_steps"),
        ("parameters(), args.max_grad_norm", "parameters(), 2 * args.max_grad_norm", "loss:clipped_to_a_norm"),
        ("remaining = 1.0 - (update - 1.0)", "remaining = 1.0 - update", "golden:schedules_and"),
        ("clip_coef = args.clip_coef * (remaining", "clip_coef = args.clip_coef * (1.0", "run:schedules"),
        ('"charts/learning_rate": learning_rate', '"charts/learning_rate": args.learning_rate', "run:schedules"),
        ("values=value)", "values=value + 1)", "run:what_happened"),
        ("next_done = terminated | truncated", "next_done = terminated", "run:what_happened"),
        ("(cut := truncated & ~terminated)", "(cut := truncated)", "run:bootstrap"),
        ("reward[cut] += args.gamma * agent", "reward[cut] += agent", "run:bootstrap"),
        ("from_numpy(next_obs).to(device))[1]", "from_numpy(next_obs * 0).to(device))[1]", "run:what_happened"),
        ("to(device) + values", "to(device)", "run:what_happened"),
        ("torch.randperm(run.batch_size,", "torch.arange(run.batch_size,", "run:in_an_order"),
        ('stats[-1]["approx_kl"] > ', 'stats[-1]["approx_kl_ppo2"] > ', "run:target_kl"),
        ("torch.stack([each[name] for each in stats]).mean()", "stats[-1][name]", "run:update_logs"),
        ("1 - (returns - values).var() / returns.var()", "1 - values.var() / returns.var()", "run:update_logs"),
        ("envs.reset(seed=args.seed + run.global_step)", "envs.reset(seed=args.seed)", "plumbing:seeds"),
        ("args.capture_video and index == 0", "args.capture_video and index == args.num_envs - 1", "run:filmed"),
        ("(f\"checkpoint_{'[0-9]' * 12}.pt\"), reverse", '("checkpoint_*.pt"), reverse', "plumbing:digits"),
        (".testzip() is None", ".testzip() or True", "plumbing:damaged"),
        ("saved_keys != (keys := [", "sorted(saved_keys) != sorted(keys := [", "plumbing:do_not_fit"),
        ('data), map_location="cpu", weights_only=True', "data), weights_only=False", "plumbing:refused"),
        ("purge_step=self.global_step + 1", "purge_step=None", "plumbing:every_part"),
        ('("cuda", "threads", "track", "runs_folder", "exp_name")', '("cuda",)', "plumbing:options_of"),
        ('.pt"))[:-2]:', '.pt"))[:-1]:', "plumbing:newest_two"),
        ('FileLock(self.folder / "lock").acquire(timeout=0) if', 'FileLock(self.folder / "lock") if',
         "plumbing:belongs"),
        ("and not math.isfinite(scalar)", "and scalar == math.inf", "plumbing:finite"),
        ("stack.callback(lambda: [process.kill()", "stack.callback(lambda: [process", "plumbing:workers"),
        ("sys.exit(128 + run.stopping if", "sys.exit(run.stopping if", "plumbing:signal"),
        ("self.global_step += self.args.num_envs", "self.global_step += 1", "run:logged_once"),
    ],
    "ppo_multidiscrete.py": [(".exponential_().log())", ".exponential_())", "loss:several")],
    "ppo_continuous_action.py": [
        ("self.mean + self.std * ", "self.mean + self.std**2 * ", "loss:continuous"),
        ("self.logstd + math.log(math.tau) / 2", "math.log(math.tau) / 2", "loss:continuous"),
        ("math.log(math.tau * math.e) / 2", "math.log(math.tau) / 2", "loss:continuous"),
        ("self.returns[terminated | truncated] = 0", "self.returns[terminated] = 0", "normalize:equals"),
        ("self.return_stats.var + 1e-8)).clip(-10, 10)", "self.return_stats.var + 1e-8))", "normalize:equals"),
        ('infos["final_obs"][i] = self.scale(infos["final_obs"][i])', "pass", "normalize:final"),
    ],
    "ppo_atari.py": [
        ("np_random.integers(1, 31)", "np_random.integers(0, 31)", "atari_wrappers:noops"),
        ("            if terminated or truncated:\n                break",
         "            if terminated:\n                break", "atari_wrappers:skipped"),
        ("if i >= 2:", "if i >= 3:", "atari_wrappers:fake_game"),
        ("lost = 0 < lives < self.lives", "lost = lives < self.lives", "atari_wrappers:"),
        ("for action in (1, 2):", "for action in (1, 1):", "atari_wrappers:fake_game"),
        ("cv2.COLOR_RGB2GRAY", "cv2.COLOR_BGR2GRAY", "atari_wrappers:grey"),
        ("images.movedim(1, -1)", "images", "golden:cnn"),
    ],
    "ppo_atari_envpool.py": [
        ("self.frames[:, ended] = 0", "self.frames[1:, ended] = 0", "envpool:stream"),
    ],
    "ppo_atari_multigpu.py": [
        ("part.load_state_dict(saved[name])", "rank or part.load_state_dict(saved[name])", "multigpu:gives_the_others"),
        ("flat = flat * share if", "flat = flat / dist.get_world_size() if", "multigpu:float64"),
        (", *stats.values()]", "]", "multigpu:float64"),
        ("rows // args.num_envs % ranks == rank", "rows % ranks == rank", "multigpu:float64"),
        ("sample(rank, ranks)", "sample()", "multigpu:float64"),
        ("+ rank * args.num_envs)", "+ rank)", "multigpu:float64"),
        ('all_advantages = minibatch["all_advantages"]', "all_advantages = advantages", "multigpu:float64"),
        ("-128 * any(stops)", "-128 * bool(self.stops)", "multigpu:a_signal"),
        ("self.stops or os.getppid() != torchrun", "self.stops", "multigpu:without_torchrun"),
        ("resume=str(begun[-1])", "resume=str(begun[0])", "multigpu:rdzv_id"),
        ('glob("*/rdzv-id")', 'glob(f"*{run_id}*/rdzv-id")', "multigpu:rdzv_id"),
        ("return super().save() if rank == 0 else None", "return super().save()", "multigpu:only_rank_0"),
    ],
    "ppo_atari_cleanba.py": [
        ("len(pending) <= args.concurrency", "len(pending) < 1", "cleanba:which_version"),
        ("copy.deepcopy(agent).to(actor_device)", "agent", "cleanba:which_version"),
        ("manual_seed(torch.randint(2**62, ()).item())", "manual_seed(1)", "cleanba:another"),
        ("shared = i == 0 and", "shared =", "cleanba:speed"),
        ("(i * ranks + rank)", "rank", "cleanba:another"),
        ("waited - np.mean(waits)", "np.mean(waits) - waited", "cleanba:slower_side"),
    ],
    "impala_atari_cleanba.py": [
        ("ratios = ratios.clamp(max=1.0)", "ratios = ratios.clamp(max=2.0)", "impala:by_definition"),
        ("[targets[1:], values[-1:]]", "[targets[1:], values[-2:-1]]", "impala:by_definition"),
        ("[*dones, next_done]", "[next_done, *dones]", "impala:what_happened"),
        ("reward[cut] += args.gamma * agent", "reward[cut] += 0 * agent", "impala:truncation"),
        ("column[:, i :: args.num_minibatches]", "column.chunk(args.num_minibatches, 1)[i]", "impala:what_happened"),
        ("sum_over_ranks(agent, stats, 1.0)", "sum_over_ranks(agent, stats, 0.5)", "impala:ranks"),
        ("alpha=0.99, eps=0.01", "alpha=0.9, eps=0.01", "impala:"),
    ],
    "ppo_atari_lstm.py": [
        ("s * ~done[0, :, None]", "s * done[0, :, None]", "lstm:sequence"),
        ("initial_state = state", "initial_state = tuple(s * 0 for s in state)", "golden:recurrent"),
        ("(cut).to(device)] for s in state)", "(cut).to(device)] for s in initial_state)", "lstm:every_value"),
    ],
    "ppo_procgen.py": [
        ("self.returns * self.gamma + rewards", "self.returns + rewards", "normalize:rewards_alone"),
        ("self.lengths * ~done", "self.lengths", "procgen:learner_sees"),
    ],
    "ppo_multidiscrete_mask.py": [
        ("self.all_logits, -1e8)", "self.all_logits, -1)", "multidiscrete:drawn"),
        ("x.exp() * x * mask", "x.exp() * x", "multidiscrete:entropy"),
    ],
    "ppo_selfplay.py": [
        ("np.stack([reward, -reward]", "np.stack([reward, reward]", "selfplay:each_seat"),
    ],
    "benchmark/elo.py": [("playing & ~(terminated | truncated)", "playing & ~terminated", "selfplay:one_game")],
    "benchmark/report.py": [("first, second, equal_var=False", "first, second", "benchmark:welch")],
    "recipes/with/kl-penalty.diff": [('minibatch["logits"].exp() *', "policy.logits.exp() *", "ideas:divergence")],
    "recipes/with/ppg.diff": [("logits[rows].exp() *", "policy.logits.exp() *", "ideas:auxiliary")],
    "recipes/with/symlog-values.diff": [("values.abs().expm1()", "values.abs().exp()", "ideas:symlog")],
    "recipes/with/beta.diff": [("low + actions * (high - low)", "low + actions * high", "ideas:bound")],
    "recipes/with/value-normalization.diff": [(".mean() / unit**2", ".mean() / unit", "ideas:units")],
    "recipes/with/kl-learning-rate.diff": [("1 / 1.5 if kl > 2", "1.0 if kl > 2", "ideas:falls")],
    "recipes/with/muon.diff": [("weight_decay=0.0", "weight_decay=0.1", "ideas:test_muon")],
    "recipes/with/selfplay-past.diff": [("past(obs[1::2])", "past(obs[::2])", "ideas:opponent")],
}  # fmt: skip
OTHERS = "shared or atari or continuous or procgen or multi or selfplay"  # scripts whose tests never see ppo.py


def test(copy, script, names):
    """(whether the tests pass, seconds) in a copy of the checkout; SystemExit if pytest cannot run them."""
    files, words = zip(*(name.split(":") for name in names.split()), strict=True)
    files = [f"tests/test_{file}.py" for file in files]
    only, words = ("", f"({' or '.join(words)})") if all(words) else ("not slow", "test")
    words += f" and not ({OTHERS})" if script == "ppo.py" else ""
    begin = time.monotonic()
    if (pid := os.fork()) == 0:
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(copy)
        del sys.path[0]  # the folder of this file; the tests import from the copy
        resource.setrlimit(resource.RLIMIT_CPU, (90, 90))  # seconds: some mutants never end
        os._exit(pytest.main(["-n", "0", "-xq", "-p", "no:cacheprovider", "-m", only, "-k", words, *files]))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status in (3, 4):
        sys.exit(f"error: pytest fails on -k {words} {files}")
    return status in (0, 5), time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default="", help="run the mutants whose row has this text")
    args = parser.parse_args()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in filter(lambda name: (ROOT / name).is_file(), listed.splitlines()):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        for name, old, new, tests in [(name, *row) for name, rows in MUTANTS.items() for row in rows]:
            if args.text not in f"{name} {old} {new} {tests}":
                continue
            text = (copy / name).read_text()
            if text.count(old) != 1:
                print(f"{text.count(old)} places | | {name} | `{old.strip()}`", flush=True)
                continue
            (copy / name).write_text(text.replace(old, new))
            passed, seconds = test(copy, name, tests)
            (copy / name).write_text(text)
            survivors += passed
            new = " ".join(new.split())
            print(f"{'SURVIVED' if passed else 'killed'} | {seconds:.0f} s | {name} | `{new}` | {tests}", flush=True)
    print(f"{survivors} survived")


if __name__ == "__main__":
    main()
