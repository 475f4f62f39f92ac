# Each target creates what it needs, so the first run is slower. Requires only Python 3.11+ and make.
# To use another interpreter: make test PYTHON=python3.13

PYTHON ?= python3
VENV := .venv
BENCH_VENV := bench/.venv
STAMP := $(VENV)/.installed
BENCH_STAMP := $(BENCH_VENV)/.installed

# Pins all installed versions, including build tools: pip before 25.3 reads the pins for builds from the first variable, later
# versions from the second.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL := -m pip install -qq

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-topologies test-long check format docs demo-picture chaos bench bench-quick bench-limits bench-hot soak wheel clean

help: ## Show this list
	@echo "Millstream: background jobs and durable events for Python on Redis Streams."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP) ## Run the demo: embedded server, two worker processes, failures, a kill -9, no job lost
	@$(VENV)/bin/millstream demo

# Tests mostly wait for servers and processes: four at a time take half the time, even on two cores.
test: $(STAMP) ## Run all tests; ARGS are passed to pytest: make test ARGS="tests/unit -x -n 0"
	@$(VENV)/bin/python -m pytest -n 4 $(ARGS)

test-topologies: $(STAMP) ## Run the contract and the failover tests on a cluster and behind sentinels (four minutes)
	@$(VENV)/bin/python -m pytest -n 2 tests/topologies $(ARGS)

test-long: $(STAMP) ## Run the tests that are too long for make test: long random walks on Valkey and Redis, handlers of 40 seconds
	@MILLSTREAM_MODEL_STEPS=100000 $(VENV)/bin/python -m pytest -n 4 tests/contract/test_state_machine.py -k redis_backend $(ARGS)
	@MILLSTREAM_MODEL_STEPS=100000 MILLSTREAM_MODEL_SERVER=redis $(VENV)/bin/python -m pytest -n 4 tests/contract/test_state_machine.py -k redis_backend $(ARGS)
	@MILLSTREAM_LONG=40 $(VENV)/bin/python -m pytest -n 4 tests/system/test_leases.py $(ARGS)

check: $(STAMP) ## Run the linter, the format check and both type checkers
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/mypy
	@$(VENV)/bin/basedpyright

format: $(STAMP) ## Format the code and sort imports
	@$(VENV)/bin/ruff check --fix-only
	@$(VENV)/bin/ruff format

docs: $(STAMP) ## Build the documentation into site/; broken links are errors. ARGS="serve" serves it with live reload
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs $(or $(ARGS),build --strict --quiet)

demo-picture: $(STAMP) ## Draw the demo's last screen for the README
	@$(VENV)/bin/python docs/pictures/demo.py

chaos: $(STAMP) ## Inject faults into workers, servers and networks, and account for every job (20 minutes); ARGS="kill_child --seed 7"
	@$(VENV)/bin/python -m chaos $(ARGS)

bench: $(BENCH_STAMP) ## Measure Millstream and nine other libraries (under 45 minutes); ARGS="--smoke", "--rows drain --only millstream,arq"
	@$(BENCH_VENV)/bin/python bench/run.py $(ARGS)

bench-quick: $(BENCH_STAMP) ## Compare the speed of two commits (two minutes): ARGS="A B", default HEAD~1 and the working tree
	@$(BENCH_VENV)/bin/python bench/quick.py $(ARGS)

bench-limits: $(STAMP) ## Check Millstream's own limits (ten minutes): lateness, idle commands, script times, memory
	@$(VENV)/bin/python bench/limits.py $(ARGS)

bench-hot: $(STAMP) ## Profile a worker that drains no-op jobs (one minute); ARGS="--results"
	@$(VENV)/bin/python bench/hot.py $(ARGS)

soak: $(STAMP) ## Run all kinds of jobs for 30 minutes, check memory, and account for every job; ARGS="--minutes 2 --jobs 100000"
	@$(VENV)/bin/python bench/soak.py $(ARGS)

wheel: $(STAMP) ## Build the wheel into dist/
	@$(VENV)/bin/python -m pip wheel -qq --no-deps --wheel-dir dist .
	@ls dist/*.whl

clean: ## Remove environments, caches and build output
	rm -rf $(VENV) $(BENCH_VENV) dist build site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	$(call make-venv,$(VENV))
	@echo "Installing Millstream and its tools into $(VENV) ..."
	@$(VENV)/bin/python $(PIP_INSTALL) -e '.[dev]'
	@touch $@

# Peers with conflicting dependencies: each has its own environment, without the constraints.
PEERS_APART := arq saq dramatiq
$(BENCH_STAMP): pyproject.toml constraints.txt $(wildcard bench/requirements*.txt)
	$(call make-venv,$(BENCH_VENV))
	@echo "Installing Millstream and its peers into $(BENCH_VENV) ..."
	@$(BENCH_VENV)/bin/python $(PIP_INSTALL) -r bench/requirements.txt -e '.[embedded,fast]'
	@set -e; for peer in $(PEERS_APART); do \
		$(BENCH_VENV)/bin/python -m venv $(BENCH_VENV)/$$peer; \
		PIP_CONSTRAINT= $(BENCH_VENV)/$$peer/bin/python $(PIP_INSTALL) -r bench/requirements-$$peer.txt; \
	done
	@touch $@

# Create a virtual environment unless a working one exists, or print what is missing.
define make-venv
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || { \
		command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) was not found. Install Python 3.11 or newer, or name an interpreter: make PYTHON=python3.12 ..." >&2; exit 1; }; \
		$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1), but Millstream needs 3.11 or newer. Name another interpreter: make PYTHON=python3.12 ..." >&2; exit 1; }; \
		$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) has no venv with pip. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
		$(PYTHON) -m venv --clear $(1); }
endef
