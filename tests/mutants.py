"""Changes one line of the code at a time and shows which changes the tests notice.

    python tests/mutants.py        (an hour; python tests/mutants.py clip runs those whose description has "clip")

Each row of MUTANTS is a single mistake: a file, a text in it, the wrong text, and the test files that should fail. The
tests run in a copy of the checkout. A mutant that survives names a line that no test guards.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUN = "golden run"
MUTANTS = [
    # distributions
    ("ppo.py", ".exponential_().log())", ".exponential_())", "loss learning"),
    ("ppo.py", "self.logits - torch.empty_like", "self.logits + torch.empty_like", "loss learning"),
    ("ppo.py", "-(self.logits.exp() * self.logits)", "(self.logits.exp() * self.logits)", "golden"),
    ("ppo_multidiscrete.py", ".exponential_().log())", ".exponential_())", "loss multidiscrete"),
    ("ppo_continuous_action.py", "self.mean + self.std * ", "self.mean + self.std**2 * ", "loss learning"),
    ("ppo_continuous_action.py", "self.logstd + math.log(math.tau) / 2", "math.log(math.tau) / 2", "golden"),
    ("ppo_continuous_action.py", "math.log(math.tau * math.e) / 2", "math.log(math.tau) / 2", "golden"),
    # advantages
    ("ppo.py", "[*dones[1:], next_done]", "dones", "gae"),
    ("ppo.py", "gae_lambda * nonterminal[t] * advantage", "gae_lambda * advantage", "gae"),
    ("ppo.py", "gamma * gae_lambda * nonterminal", "gae_lambda * nonterminal", "gae"),
    # loss
    ("ppo.py", ".std(correction=0)", ".std(correction=1)", "golden"),
    ("ppo.py", "torch.max(-advantages * ratio, ", "torch.min(-advantages * ratio, ", "golden"),
    ("ppo.py", "ratio.clamp(1 - clip_coef, 1 + clip_coef)", "ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)",
     "golden loss"),
    ("ppo.py", ".clamp(-clip_coef, clip_coef)", ".clamp(-args.clip_coef, args.clip_coef)", "golden loss"),
    ("ppo.py", "> clip_coef)", "> args.clip_coef)", "golden loss"),
    ("ppo.py", "- args.ent_coef * entropy", "+ args.ent_coef * entropy", "golden"),
    ("ppo.py", "value_loss = 0.5 * ", "value_loss = ", "golden"),
    ("ppo.py", "old_approx_kl=-logratio", "old_approx_kl=logratio", "golden loss"),
    ("ppo.py", "(ratio - 1 - logratio)", "(ratio - 1 + logratio)", "golden loss"),
    ("ppo.py", "(logratio**2).mean() / 2", "(logratio**2).mean()", "golden"),
    # gradient step
    ("ppo.py", "1e-5 / math.sqrt(1 - 0.999", "1e-5 * math.sqrt(1 - 0.999", "golden"),
    ("ppo.py", "parameters(), args.max_grad_norm", "parameters(), 2 * args.max_grad_norm", "golden loss"),
    # train
    ("ppo.py", "remaining = 1.0 - (update - 1.0)", "remaining = 1.0 - update", RUN),
    ("ppo.py", "clip_coef = args.clip_coef * (remaining", "clip_coef = args.clip_coef * (learning_rate", RUN),
    ("ppo.py", '"charts/learning_rate": learning_rate', '"charts/learning_rate": args.learning_rate', RUN),
    ("ppo.py", "values=value)", "values=value + 1)", "run"),
    ("ppo.py", "next_done = terminated | truncated", "next_done = terminated", "run"),
    ("ppo.py", "(cut := truncated & ~terminated)", "(cut := truncated)", "run"),
    ("ppo.py", "reward[cut] += args.gamma * agent", "reward[cut] += agent", "run"),
    ("ppo.py", "next_value = agent(torch.from_numpy(next_obs)", "next_value = agent(torch.from_numpy(next_obs * 0)",
     "run"),
    ("ppo.py", "torch.from_numpy(advantages).to(device) + values", "torch.from_numpy(advantages).to(device)", "run"),
    ("ppo.py", "torch.randperm(run.batch_size, device=device)", "torch.arange(run.batch_size, device=device)", RUN),
    ("ppo.py", 'stats[-1]["approx_kl"] > ', 'stats[-1]["approx_kl_ppo2"] > ', "run"),
    ("ppo.py", "torch.stack([each[name] for each in stats]).mean()", "stats[-1][name]", "run"),
    ("ppo.py", "1 - (returns - values).var() / returns.var()", "1 - values.var() / returns.var()", "run"),
    ("ppo.py", "envs.reset(seed=args.seed + run.global_step)", "envs.reset(seed=args.seed)", "plumbing"),
    ("ppo.py", "args.capture_video and index == 0", "args.capture_video and index == args.num_envs - 1", "run"),
    ("ppo.py", "torch.manual_seed(args.seed + run.global_step)", "torch.manual_seed(args.seed)", "plumbing"),
    # plumbing
    ("ppo.py", "glob(f\"checkpoint_{'[0-9]' * 12}.pt\"), reverse=True)", 'glob("checkpoint_*.pt"), reverse=True)',
     "plumbing"),
    ("ppo.py", ".testzip() is None", ".testzip() or True", "plumbing"),
    ("ppo.py", "if saved_keys != (keys", "if sorted(saved_keys) != sorted(keys", "plumbing"),
    ("ppo.py", 'file.rename(file.with_suffix(".damaged"))', "pass", "plumbing"),
    ("ppo.py", 'io.BytesIO(data), map_location="cpu", weights_only=True)', "io.BytesIO(data), weights_only=False)",
     "plumbing"),
    ("ppo.py", "purge_step=self.global_step + 1", "purge_step=None", "plumbing"),
    ("ppo.py", '("cuda", "threads", "track", "runs_folder", "exp_name")', '("cuda",)', "plumbing"),
    ("ppo.py", '.pt"))[:-2]:', '.pt"))[:-1]:', "plumbing"),
    ("ppo.py", 'FileLock(self.folder / "lock").acquire(timeout=0)  #', 'FileLock(self.folder / "lock")  #', "plumbing"),
    ("ppo.py", "and not math.isfinite(scalar)", "and scalar == math.inf", "plumbing"),
    ("ppo.py", "atexit.register(lambda: [process.kill()", "atexit.register(lambda: [process", "plumbing"),
    ("ppo.py", "sys.exit(128 + run.stopping if", "sys.exit(run.stopping if", "plumbing"),
    ("ppo.py", "self.returns[-99:]", "self.returns[-98:]", "run"),
    ("ppo.py", "self.global_step += self.args.num_envs", "self.global_step += 1", "run"),
    # Atari
    ("ppo_atari.py", "np_random.integers(1, 31)", "np_random.integers(0, 31)", "atari_wrappers"),
    ("ppo_atari.py", "            if terminated or truncated:\n                break",
     "            if terminated:\n                break", "atari_wrappers"),
    ("ppo_atari.py", "if i >= 2:", "if i >= 3:", "atari_wrappers"),
    ("ppo_atari.py", "lost = 0 < lives < self.lives", "lost = lives < self.lives", "atari_wrappers"),
    ("ppo_atari.py", "for action in (1, 2):", "for action in (1, 1):", "atari_wrappers"),
    ("ppo_atari.py", "cv2.COLOR_RGB2GRAY", "cv2.COLOR_BGR2GRAY", "atari_wrappers"),
    ("ppo_atari.py", "images.movedim(1, -1)", "images", "golden"),
    ("ppo_atari_envpool.py", "self.frames[:, ended] = 0", "self.frames[:-1, ended] = 0", "envpool"),
    ("ppo_atari_envpool.py", 'np.sign(info["reward"])', 'info["reward"]', "envpool"),
    # LSTM
    ("ppo_atari_lstm.py", "s * ~done[0, :, None]", "s * done[0, :, None]", "lstm"),
    ("ppo_atari_lstm.py", "initial_state = state", "initial_state = tuple(s * 0 for s in state)", "golden"),
    ("ppo_atari_lstm.py", "tuple(s[:, n] for s in initial_state)", "tuple(s[:, n] for s in state)", "golden lstm"),
    ("ppo_atari_lstm.py", "(cut).to(device)] for s in state)", "(cut).to(device)] for s in initial_state)", "lstm"),
    # continuous actions, Procgen, several choices, self-play
    ("ppo_continuous_action.py", "self.returns[terminated | truncated] = 0", "self.returns[terminated] = 0",
     "normalize"),
    ("ppo_continuous_action.py", "self.return_stats.var + 1e-8)).clip(-10, 10)", "self.return_stats.var + 1e-8))",
     "normalize"),
    ("ppo_continuous_action.py", 'infos["final_obs"][i] = self.scale(infos["final_obs"][i])', "pass", "normalize"),
    ("ppo_procgen.py", "self.returns * self.gamma + rewards", "self.returns + rewards", "normalize procgen"),
    ("ppo_procgen.py", "self.lengths * ~done", "self.lengths", "procgen"),
    ("ppo_multidiscrete_mask.py", "self.all_logits, -1e8)", "self.all_logits, -1)", "multidiscrete"),
    ("ppo_multidiscrete_mask.py", "x.exp() * x * mask", "x.exp() * x", "multidiscrete"),
    ("ppo_selfplay.py", "np.stack([reward, -reward]", "np.stack([reward, reward]", "selfplay"),
    ("ppo_selfplay.py", "terminated.repeat(2)", "np.tile(terminated, 2)", "selfplay"),
    ("benchmark/elo.py", "playing & ~(terminated | truncated)", "playing & ~terminated", "selfplay"),
    ("benchmark/report.py", "stats.ttest_ind(first, second, equal_var=False)", "stats.ttest_ind(first, second)",
     "benchmark"),
]  # fmt: skip


OTHERS = "shared or atari or continuous or procgen or multi or selfplay"  # scripts whose tests never see ppo.py


def test(copy, script, names):
    """(whether the tests pass, seconds) in a copy of the checkout; test files that the copy lacks do not count."""
    files = [f"tests/test_{name}.py" for name in names.split()]
    files = [file for file in files if (copy / file).exists()]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-xq", "-p", "no:cacheprovider", "-m", "not slow", *files]
    command += ["-k", f"not ({OTHERS})"] if script == "ppo.py" else []
    begin = time.monotonic()
    status = subprocess.run(command, cwd=copy, capture_output=True).returncode if files else 0
    return status in (0, 5), time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default="", help="run the mutants whose row has this text")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the checkout that is copied")
    args = parser.parse_args()
    listed = subprocess.run(["git", "ls-files"], cwd=args.checkout, capture_output=True, text=True, check=True).stdout
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in filter(lambda name: (args.checkout / name).is_file(), listed.splitlines()):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(args.checkout / name, copy / name)
        for name, old, new, tests in MUTANTS:
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
