# `make` lists what there is to make. What needs Python packages sets up .venv first; a torch that is there already is
# kept where it fits constraints.txt. ARGS="..." is passed on.
PYTHON ?= python3
BIN := .venv/bin
# What the tests need
TESTED := .venv/atari,box2d,envpool,export,microrts,mujoco,selfplay,track,video,benchmark,search,dev.stamp
# Files with comparisons of computed numbers
NUMERICAL := $(addprefix tests/test_, device_tensors.py enjoy.py export.py gae.py golden.py ideas.py impala.py loss.py \
	lstm.py masks.py multidiscrete.py normalize.py precision.py procgen.py recipes.py run.py seeds.py variants.py)
# What makes torch, MKL and oneDNN work as on an older processor: each alone, then all together
OLDER := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 MKL_CBWR=COMPATIBLE \
	ONEDNN_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=AVX2 \
	"ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41" \
	"ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2"
# Not of copies of yours
LINT := $(BIN)/ruff check $$(git ls-files "*.py") && $(BIN)/ruff format --check $$(git ls-files "*.py")
# The version of PyTorch in constraints.txt
TORCH := $(shell sed -n 's/^torch==\([0-9.]*\).*/\1/p' constraints.txt)
# Python code that prints the project's dependencies and those of a list of extras
REQUIREMENTS := import sys, tomllib; \
	project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = map(project["optional-dependencies"].get, sys.argv[1].split(",")); \
	print("\n".join(sum(extras, project["dependencies"])))
# For pipefail: an installation that fails must not end as one that is done
SHELL := bash
# A folder for SDL, which draws the videos, where the system has named none
export XDG_RUNTIME_DIR ?= /tmp
# Several would install into one .venv at once
.NOTPARALLEL:

help:
	@echo 'make cartpole   train ppo.py on CartPole for a minute, and record three games'
	@echo 'make test       run the linter and the tests that a change usually breaks; ARGS="-k gae" runs some'
	@echo 'make test-all   run the linter and all tests'
	@echo 'make test-isa   run the tests of computed numbers with each older instruction set that the processor has'
	@echo 'make compare    draw the learning curves of runs/ as runs/curves.svg; test two experiments:'
	@echo '                ARGS="runs --a ppo --b my_ppo --env-id CartPole-v1 --steps 10000 100000"'
	@echo 'make report     bring plumbing, recipes, links, tables and pictures up to date'
	@echo 'make site       write site/index.html'
	@echo 'make speed      measure steps per second: ARGS="CartPole HalfCheetah Breakout", or ARGS=--check on a GPU'
	@echo 'make clean      remove .venv, .venv-sb3, .venv-score, site and build'

cartpole: .venv/video.stamp
	$(BIN)/python ppo.py --env-id CartPole-v1 --total-timesteps 100000 --learning-rate 1e-3 --exp-name cartpole $(ARGS)
	$(BIN)/python enjoy.py "$$(ls -td runs/CartPole-v1__cartpole__* | head -n 1)" --episodes 3 --video
	@echo 'next: ". .venv/bin/activate", then "python ppo.py --env-id Acrobot-v1"; README.md has more'

test: $(TESTED)
	$(LINT)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" $(ARGS)

test-all: $(TESTED)
	$(LINT)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(ARGS)

# MKL takes the name of an instruction set on Intel alone, and MKL_CBWR on every processor.
test-isa: $(TESTED)
	for older in $(OLDER); do \
		echo "$$older"; \
		env OMP_NUM_THREADS=1 $$older $(BIN)/python -m pytest -q -m "not slow" $(NUMERICAL) $(ARGS) || exit 1; \
	done

compare: .venv/benchmark.stamp
	$(BIN)/python -m benchmark.compare $(ARGS)

report: .venv/benchmark,dev.stamp
	$(BIN)/python -m site_tools.plumbing
	$(BIN)/python -m recipes
	$(BIN)/python -m benchmark.ablation.effects
	$(BIN)/python -m benchmark.report
	$(BIN)/python -m conformance --page
	$(BIN)/python -m site_tools.diffs
	$(BIN)/python -m site_tools.history

site: .venv/benchmark,dev.stamp
	$(BIN)/python -m site_tools.pages

speed: .venv/atari,envpool,microrts,mujoco,procgen,selfplay,benchmark,dev.stamp
	$(BIN)/python -m benchmark.speed $(or $(ARGS),CartPole)

clean:
	rm -rf .venv .venv-sb3 .venv-score build site ppo.egg-info .pytest_cache .ruff_cache __pycache__ tests/__pycache__

# The name of a stamp is the list of the extras that are installed once it is there. Only packages are installed, and
# not ".", as the scripts are run where they lie.
.venv/%.stamp: pyproject.toml constraints.txt | .venv/torch.stamp
	@echo 'installing what is missing of the extras $*'
	@$(BIN)/python -c '$(REQUIREMENTS)' $* > .venv/$*.txt
	@set -o pipefail; \
	$(BIN)/python -m pip install -c constraints.txt -r .venv/$*.txt | { grep -v '^Requirement already satisfied' || true; }
	@touch $@

# On a Linux machine without an NVIDIA device, PyTorch's build for the CPU where pip finds one, or uv does, which knows
# PyTorch's own index; else pip's default build.
.venv/torch.stamp: | $(BIN)/pip
	@if [ "$$(uname)" != Linux ] || [ -e /dev/nvidiactl ] || $(BIN)/python -c 'import torch' 2>/dev/null; then \
		exit 0; \
	elif $(BIN)/python -m pip install --quiet --dry-run --no-deps "torch==$(TORCH)+cpu" >/dev/null 2>&1; then \
		$(BIN)/python -m pip install "torch==$(TORCH)+cpu"; \
	elif ! uv pip install --python $(BIN)/python --torch-backend=cpu "torch==$(TORCH)" 2>/dev/null; then \
		echo 'neither pip nor uv finds the build of PyTorch for the CPU: pip downloads several GB with CUDA, although'; \
		echo 'there is no NVIDIA device here. docs/install.md#without-cuda says how to avoid this.'; \
	fi
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("error: this is Python %d.%d, but 3.11 or newer is needed: make PYTHON=python3.11 ..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

.PHONY: help cartpole test test-all test-isa compare report site speed clean
