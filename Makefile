# Everything sets itself up: `make demo` or `make test` on a fresh machine needs no other step.

# TORCH is installed first, so that its build can be chosen: the URL is what PyTorch's installation
# page gives for your platform (CPU, or a CUDA version).
#   make install TORCH='torch==2.13.0 --index-url URL'
# After a change of build: `make clean-venv install`.
TORCH ?= torch==2.13.0
EXTRAS ?= metaworld,dev
VENV := .venv
BIN := $(VENV)/bin
# LIBERO, ManiSkill and others have an environment of their own, so that `make test` stays light.
SIMULATOR_EXTRAS ?= metaworld,libero,maniskill,gymnasium,pusht,dev
SIMULATORS := .venv-simulators
# Marks of tests that only `make test-simulators` and `make test-slow` run.
OF_SIMULATORS := libero or maniskill or robocasa or pusht
ELSEWHERE := $(OF_SIMULATORS) or slow

# One thread per process: two OpenMP threads on a busy core are far slower than one.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: help install system demo test test-unit test-live test-gpu test-simulators test-slow lint accept chaos soak
.PHONY: clean clean-venv
.DELETE_ON_ERROR:

help:
	@echo "make install     .venv with the rlvla3 command (and system libraries, when root)"
	@echo "make demo        install, then train the default recipe end to end (about 15 minutes)"
	@echo "make test        install, then lint, unit tests and live tests"
	@echo "make lint        ruff and mypy"
	@echo "make test-unit   quick tests without processes, simulators or a GPU (under a minute)"
	@echo "make test-live   tests that start processes, need Meta-World or compute for long"
	@echo "make test-gpu    tests that need a CUDA device"
	@echo "make test-simulators   LIBERO, ManiSkill, RoboCasa and others, in $(SIMULATORS) (5 GB)"
	@echo "make test-slow   their memory over 200 resets (about 10 minutes)"
	@echo "make chaos       20 minutes of faults in a run that must go on (docs/results/chaos.json)"
	@echo "make soak        kills and resumes, and memory over 10,000 versions (about 40 minutes)"
	@echo "make accept      re-run the acceptance figures not yet recorded for this commit"
	@echo "make clean       remove caches and build outputs; make clean-venv removes .venv too"

$(BIN)/python:
	@python=$$(bash .ci/find-python) && "$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.torch: | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(TORCH)
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

system:
	@bash .ci/system-libraries

install: system $(VENV)/.installed

demo: install
	$(BIN)/rlvla3 demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-unit: install
	$(BIN)/python -m pytest -n auto -m 'not (long or live or metaworld or gpu or $(ELSEWHERE))'

test-live: install
	$(BIN)/python -m pytest -n auto -m '(long and not (live or metaworld) or parallel and (live or metaworld)) and not (gpu or $(ELSEWHERE))'
	$(BIN)/python -m pytest -m '(live or metaworld) and not (parallel or gpu or $(ELSEWHERE))'

test-gpu: install
	$(BIN)/python -m pytest -m gpu

$(SIMULATORS)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@test -x $(SIMULATORS)/bin/python || $(BIN)/python -m venv $(SIMULATORS)
	$(SIMULATORS)/bin/python -m pip install --quiet $(TORCH)
	$(SIMULATORS)/bin/python -m pip install --quiet -c constraints.txt -e '.[$(SIMULATOR_EXTRAS)]'
	@touch $@

# What cannot run here is left out, and the last lines say why.
test-simulators: system $(SIMULATORS)/.installed
	@bash .ci/test-simulators $(SIMULATORS) '($(OF_SIMULATORS)) and not slow'

# Memory over 200 resets of every simulator; 30 resets are part of `make test-simulators`.
test-slow: system $(SIMULATORS)/.installed
	@bash .ci/test-simulators $(SIMULATORS) slow

# One after the other, cheapest first, also under `make -j`.
test: install
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory test-unit
	$(MAKE) --no-print-directory test-live

chaos: install
	PYTHONPATH=tests $(BIN)/python -m chaos.soak --json docs/results/chaos.json

soak: install
	PYTHONPATH=tests $(BIN)/python -m chaos.resume --json docs/results/resume.json
	PYTHONPATH=tests $(BIN)/python -m chaos.memory --json docs/results/memory.json

accept: install
	$(BIN)/python benchmarks/accept.py

clean:
	rm -rf build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

clean-venv: clean
	rm -rf $(VENV) $(SIMULATORS)
