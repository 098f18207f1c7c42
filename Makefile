# make cartpole: trains PPO for a minute and films the result. make test: checks the code.
# make atari: trains PPO on Breakout (ARGS="--seed 2" is passed on). All set up .venv first.
# A torch that is there already is kept where it fits constraints.txt.
PYTHON ?= python3
POETRY ?= poetry
BIN := .venv/bin
# Not of copies of yours
LINT := $(BIN)/ruff check $$(git ls-files "*.py")
# Several would install into one .venv at once
.NOTPARALLEL:

cartpole: .venv/video.stamp
	$(BIN)/python ppo.py --env-id CartPole-v1 --total-timesteps 100000 --exp-name cartpole
	$(BIN)/python enjoy.py "$$(ls -td runs/CartPole-v1__cartpole__* | head -n 1)" --episodes 3 --video

atari: .venv/atari.stamp
	$(BIN)/python ppo_atari.py --env-id BreakoutNoFrameskip-v4 $(ARGS)

# What the tests need
TESTED := .venv/atari,envpool,microrts,mujoco,selfplay,track,video,benchmark,search,dev.stamp

test: $(TESTED)
	$(LINT)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ARGS)

lint: .venv/dev.stamp
	$(LINT)

# Steps per second beside Stable-Baselines3: make speed ARGS="CartPole HalfCheetah Breakout Envpool"
speed: .venv/atari,envpool,mujoco.stamp
	$(BIN)/python benchmark/speed $(ARGS)

# On a machine with a GPU: the golden tests, every script, its speed and memory there; build/gpu-check.md
gpu-check: .venv/atari,envpool,microrts,mujoco,procgen,selfplay,dev.stamp
	$(BIN)/python benchmark/gpu_check.py $(ARGS)

# benchmark/report.html, the README's scores and its picture, from benchmark/results
report: .venv/benchmark,dev.stamp
	$(BIN)/python benchmark/report.py --readme
	$(BIN)/python docs/diffs.py

# Two experiments of your own: make compare ARGS="runs --a ppo --b my_ppo --env-id CartPole-v1 --steps 10000 100000"
compare: .venv/benchmark.stamp
	$(BIN)/python benchmark/compare.py $(ARGS)

# The whole way from a sweep to a report, on CartPole in a minute: build/small/report.html
benchmark-small: .venv/benchmark.stamp
	rm -rf build/small
	PYTHON=$(BIN)/python FOLDER=build/small SEEDS="1 2" WORKERS=2 TOTAL_TIMESTEPS=20000 \
	    benchmark/ours/classic_control.sh CartPole-v1
	$(BIN)/python benchmark/collect.py --results build/small/results build/small/runs/*
	$(BIN)/python benchmark/report.py --results build/small/results --output build/small/report.html

# The name of a stamp is the list of the extras that are installed once it is there.
.venv/%.stamp: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/python -m pip install -c constraints.txt ".[$*]"
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("error: this is Python %d.%d, but 3.11 or newer is needed: make PYTHON=python3.11 ..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

# Pages to read offline, site/index.html: the scripts with their details beside the lines, their diffs, the report
docs: diffs .venv/benchmark,dev.stamp
	$(BIN)/python -m docs.pages

# Brings line numbers and sizes in README.md and docs/details.md up to date
diffs: .venv/dev.stamp
	$(BIN)/python docs/diffs.py

# Brings recipes/*/*.diff up to date after a script has changed. ARGS="--caught core-3" records a test that fails.
recipes: $(if $(findstring caught,$(ARGS)),$(TESTED),.venv/dev.stamp)
	$(BIN)/python recipes $(ARGS)

# What each recipe does, of a detail or an idea: trains with it and without, and writes the effects. Hours, on one core.
ablation: .venv/benchmark,dev.stamp
	$(BIN)/python benchmark/ablation run $(ARGS)
	$(BIN)/python benchmark/ablation effects

# For maintainers, with poetry and poetry-plugin-export. make lock ARGS=--regenerate takes the newest versions.
lock:
	$(POETRY) lock $(ARGS)
	$(POETRY) export --all-extras --without-hashes -f constraints.txt -o constraints.txt

clean:
	rm -rf .venv .venv-sb3 build site ppo.egg-info .pytest_cache .ruff_cache __pycache__ tests/__pycache__

.PHONY: cartpole atari test lint speed gpu-check report compare benchmark-small docs diffs recipes ablation lock clean
