# Everything a person or CI runs. Each target sets up what it needs; a second run starts at once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# Older pips say at length that they build PySpark the old way unless they are told to use the new one.
PIP    := PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USE_PEP517=1 $(BIN)/python -m pip install --quiet
ARGS   ?=
# Without its bytecode, each of the many processes that tests start would compile the project again.
unexport PYTHONDONTWRITEBYTECODE
# Tests run in this many processes side by side, each file in one of them.
JOBS   ?= 2
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --numprocesses $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help install demo demo-bigquery up test test-kills test-cloud test-browser test-all lint docs fmt types bench bench-sql bench-latency fuzz oracle chaos soak years simulate release-check census rooms reference mutants lock clean

help:  ## Show what there is to run
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMPS)/run  ## Set up .venv with the command refeed, and run nothing

demo: $(STAMPS)/run  ## Run the main job end to end and print a verdict (ARGS="--messages 5000 --json")
	@$(BIN)/refeed demo $(ARGS)

demo-bigquery: $(STAMPS)/dev  ## The same with the archive in BigQuery: the tests' stand-in, started and stopped
	@$(BIN)/python -m tests.standin.around $(BIN)/refeed demo --warehouse bigquery $(ARGS)

up: $(STAMPS)/run  ## Run everything embedded in this terminal until Ctrl-C (ARGS="--port 8080")
	@$(BIN)/refeed up $(ARGS)

# On a disk each fsync takes milliseconds, and so does removing a file.
test: PYTEST += --in-memory -o tmp_path_retention_policy=failed
# These select by markers, so that each test belongs to exactly one of them.
test: $(STAMPS)/dev  ## Run the tests that kill no system and download nothing (ARGS="tests/sql -x" JOBS=2)
	@$(PYTEST) -m "not kills and not cloud and not browser" $(ARGS)

test-kills: $(STAMPS)/dev  ## Run the tests that start whole systems of processes and kill parts of them
	@$(PYTEST) -m "kills and not cloud and not browser" $(ARGS)

test-cloud: $(STAMPS)/dev  ## Run the tests that download clients and Spark 3.5, or merge or run systems in a stand-in
	@$(PYTEST) -m "cloud and not browser" $(ARGS)

test-browser: $(STAMPS)/dev  ## Run the tests that drive the console with Chromium, where there is one
	@$(PYTEST) -m "browser" $(ARGS)

test-all:  ## Run all tests: the four targets one after the other, each also when one before it failed
	@$(MAKE) --no-print-directory --keep-going test test-kills test-cloud test-browser

lint: $(STAMPS)/dev  ## Check style, format, layers, types, security and known vulnerabilities
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/bandit --quiet --configfile pyproject.toml --recursive .
	@$(BIN)/python .ci/audit.py

# A page outside the navigation and a link or an anchor that leads nowhere are errors. Each build reads all pages, since
# Sphinx does not repeat the warnings of a page that it has kept.
docs: $(STAMPS)/docs  ## Build the documentation site into dist/site and check its links
	@rm -rf dist/site dist/.doctrees
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --jobs auto --conf-dir docs --doctree-dir dist/.doctrees . dist/site
	@echo "$$(find dist/site -name '*.html' | wc -l) pages: dist/site/index.html"

fmt: $(STAMPS)/dev  ## Format the code and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

types: $(STAMPS)/dev  ## Check types only
	@$(BIN)/mypy

bench: $(STAMPS)/dev  ## Measure backup, backfill and the local server beside their limits
	@$(BIN)/python -m bench $(ARGS)

bench-sql: $(STAMPS)/dev  ## Measure the SQL gate: median and p99 a query
	@ONLY=sql_gate $(BIN)/python -m bench

bench-latency: $(STAMPS)/dev  ## Measure seconds from POST to the first message and the end, beside a bare spark-submit
	@ONLY=latency $(BIN)/python -m bench

fuzz: $(STAMPS)/dev  ## Send 20,000 mutated queries through the SQL gate (MUTANTS=...)
	@REFEED_FUZZ_MUTANTS=$(or $(MUTANTS),20000) $(BIN)/python -m pytest tests/sql/test_fuzz.py --timeout 3600 $(ARGS)

oracle: $(STAMPS)/oracle  ## Compare the lake's answers with those of Google's engine to new expressions (SEED=1)
	@$(BIN)/python -m tests.sql.answers ask $(or $(SEED),1)

chaos: $(STAMPS)/dev  ## Kill, stop and starve the whole system under load, then compare every message (SEED=1 RUNS=1)
	@$(BIN)/python -m tests.chaos.run --seed $(or $(SEED),1) --runs $(or $(RUNS),1) --kills $(or $(KILLS),40) \
	  --warehouse $(or $(WAREHOUSE),both) --agents $(or $(AGENTS),after) $(if $(BUCKET),--bucket $(BUCKET))

soak: $(STAMPS)/dev  ## Run the whole system under steady load and watch its memory (MINUTES=30)
	@$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),30)

years: $(STAMPS)/dev  ## Run everything in the background for years by a clock that jumps (YEARS=1)
	@$(BIN)/python -m tests.years.run --years $(or $(YEARS),1) $(ARGS)

simulate: $(STAMPS)/dev  ## Run a stream's engine in a simulated world where anything goes wrong (SEED=1 STEPS=100000)
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation.run --seed $(or $(SEED),1) --steps $(or $(STEPS),100000) \
	  $(if $(RUN),--run $(RUN))

release-check: $(STAMPS)/dev  ## Build wheel and sdist, check both, and run the wheel's demo in a bare environment
	@$(BIN)/python .ci/release.py $(ARGS)

census: $(STAMPS)/dev  ## Check that every capability and promise has its test, and write docs/explanation/promises.md
	@$(BIN)/python -m tests.guards.census

rooms: $(VENV)/bin/python  ## Write the table of rooms in docs/overview.md from the import contracts
	@$(BIN)/python -m tests.guards.rooms

reference: $(STAMPS)/dev  ## Write the pages of docs/reference from what the code declares
	@$(BIN)/python -m tests.guards.reference

mutants: $(STAMPS)/dev  ## Break the code in 200 places, one at a time; a test must notice each (ONLY=a,b SEED=1)
	@$(BIN)/python -m tests.guards.mutants --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY)) $(ARGS)

lock: $(VENV)/bin/python  ## Write the lock files anew from pyproject.toml (needs the network)
	@$(BIN)/python -m venv $(VENV)/.lock && $(VENV)/.lock/bin/python -m pip install --quiet uv
	@$(LOCK) --extra dataproc --extra kinesis --extra monitoring --output-file requirements.lock pyproject.toml
	@$(LOCK) --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml
	@$(LOCK_GROUP) docs --constraint requirements-dev.lock --output-file requirements-docs.lock

clean:  ## Remove what make has made: the environment and the caches
	@rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# One lock for every platform and Python. No header and no index: the files name packages and hashes only.
LOCK_GROUP = $(VENV)/.lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links --group
LOCK = $(LOCK_GROUP) build

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Refeed needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another one: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON)' can't make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }

$(STAMPS)/run: requirements.lock pyproject.toml | $(BIN)/python
	@echo "Setting up $(VENV): hash-checked packages from requirements.lock (about 500 MB, once) ..." >&2
	@$(PIP) --no-deps --require-hashes -r requirements.lock
	@$(PIP) --no-deps --no-build-isolation --editable .
	@echo "Keeping Spark's classes at hand, so that every start is faster (half a minute, once) ..." >&2
	@$(BIN)/python -m connectors.spark.classes
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: requirements-dev.lock $(STAMPS)/run
	@echo "Setting up $(VENV): the tools of requirements-dev.lock ..." >&2
	@$(PIP) --no-deps --require-hashes -r requirements-dev.lock
	@touch $@

# The site needs neither Spark nor the tests' tools. Its diagrams need one script of npm's, whose hash is locked too.
$(STAMPS)/docs: requirements-docs.lock docs/site/package-lock.json | $(BIN)/python
	@command -v npm >/dev/null || { echo "The site's diagrams need npm; on Debian and Ubuntu: apt-get install npm" >&2; exit 2; }
	@echo "Setting up $(VENV): Sphinx of requirements-docs.lock, mermaid of docs/site/package-lock.json ..." >&2
	@$(PIP) --no-deps --require-hashes -r requirements-docs.lock
	@mkdir -p $(VENV)/docs $(STAMPS) && cp docs/site/package.json docs/site/package-lock.json $(VENV)/docs
	@npm ci --prefix $(VENV)/docs --ignore-scripts --no-audit --no-fund --silent
	@touch $@

# Google's engine is in no lock file: no test needs it, only the comparison with new expressions.
$(STAMPS)/oracle: $(STAMPS)/dev
	@echo "Setting up $(VENV): Google's SQL engine, zetasql ..." >&2
	@$(PIP) "zetasql>=0.1.5"
	@touch $@
