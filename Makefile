# `make serve` and `make test` set up everything they need.

PYTHON  ?= python3
# Test processes; twice the number of cores, because tests spend a third of their time waiting.
WORKERS ?= 4
ROUNDS  ?= 100
MINUTES ?= 10
SECONDS ?= 600
FAULTS  ?=
FEATURES ?= features
ARGS    ?=
PARTS   ?= serve test
TARBALL ?=
# Tests that the alternative engine, ladybug, has to pass, too.
SECOND  ?= tests/projections/cypher_engine/driver tests/projections/cypher_engine/engine tests/cypher tests/graph tests/property tests/stores tests/stores/backup tests/server/http/test_cypher.py \
           tests/server/http/test_cypher_beside.py tests/server/http/test_abuse_cypher.py tests/server/http/test_abuse_cypher_limits.py
# Randomized tests: FUZZED with `make fuzz`, SOAKED with `make soak`, with 20 times as many examples as `make test`.
FUZZED ?= tests/server/http/test_schemathesis.py tests/server/mcp/test_fuzz.py tests/storage/model tests/projections/catalog tests/graph/transfer/formats tests/projections
SOAKED ?= tests/property tests/bench/test_running.py tests/mcp_clients \
           tests/graph/cypher/test_concurrency.py tests/graph/cypher/test_removal.py tests/graph/cypher/test_warm_copy.py \
           tests/cypher/test_differential.py tests/projections/cypher_engine/driver/test_database.py

venv := .venv
bin  := $(venv)/bin
run  := $(venv)/.ready-to-run
dev  := $(venv)/.ready-to-develop

# Each process gets consecutive tests, which share servers; processes that finish take over tests from the end of others.
tests    := $(bin)/python -m pytest -q -n $(WORKERS) --dist worksteal
thorough := --hypothesis-profile thorough --timeout 3600

models := $(abspath $(or $(KGSERVE_MODELS_DIR),kgserve-data/models))
model  := $(models)/sentence-transformers--all-MiniLM-L6-v2/manifest.json
export KGSERVE_MODELS_DIR := $(models)
# Without cached bytecode, compilation takes half of the start of each process.
export PYTHONDONTWRITEBYTECODE :=
# Compile hnswlib for any x86-64 processor, not only for this machine's: docs/adr/0001-portable-hnswlib.md.
export HNSWLIB_NO_NATIVE := 1

.DEFAULT_GOAL := help
.PHONY: help setup serve test check fmt bench demo crash soak tck cluster-test abuse fuzz coverage docs site pictures pythons vendor constraints openapi clean-machine clean
MAKEFLAGS += --no-print-directory

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1	\2/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'

setup: $(dev) $(model) ## Create .venv with all tools, and prepare the embedding model

serve: $(run) $(model) ## Serve ./kgserve-data on http://127.0.0.1:8080 (options: ARGS="--port 9000")
	@echo "Starting the server …" >&2
	@$(bin)/kgserve serve $(ARGS)

test: $(dev) $(model) ## Run the tests (ARGS="-k words" for a part, WORKERS=8 for more processes)
	@$(tests) $(ARGS)

check: $(dev) ## Check style, formatting, types, layers, dependencies, spelling, names, prose and generated files
	@$(bin)/ruff check --quiet
	@$(bin)/ruff format --check --quiet || { echo "Not formatted; run: make fmt" >&2; exit 1; }
	@$(bin)/basedpyright --project pyproject.toml
	@$(bin)/lint-imports --no-cache --no-logo
	@$(bin)/deptry --no-ansi kgserve
	@$(bin)/codespell
	@$(bin)/python -m scripts.check_names
	@$(bin)/python -m scripts.check_prose
	@sh scripts/vendor/check.sh
	@$(bin)/python -m pytest -qq -p no:xdist tests/project/test_generated_files.py

fmt: $(dev) ## Format, and apply automatic fixes
	@$(bin)/ruff check --fix-only --quiet
	@$(bin)/ruff format --quiet

bench: $(dev) $(model) ## Run the benchmarks (ARGS="rows --quick" for one of rows, peers, write_rate, cypher, engine, footprint, growth, search, memory, notes)
	@$(bin)/python -m bench $(ARGS)

demo: $(run) ## Load a graph into a server, traverse it, and delete from it
	@$(bin)/python -m scripts.demo

crash: $(dev) ## Kill the server ROUNDS times, damage its files, and drop its unsynced writes
	@$(bin)/python -m bench.crash --rounds $(ROUNDS) $(ARGS)
	@$(bin)/python -m bench.damage
	@$(bin)/python -m bench.power_loss --states $(ROUNDS)

soak: $(dev) $(model) ## Write, read, back up and kill a server for MINUTES and compare; then run randomized tests, and those of ladybug
	@$(bin)/python -m bench.soak --minutes $(MINUTES) $(ARGS)
	@$(tests) $(thorough) $(SOAKED)
	@KGSERVE_ENGINE=ladybug $(tests) $(SECOND)

tck: $(dev) ## Run the openCypher compatibility kit (FEATURES=FOLDER)
	@$(bin)/python -m tests.cypher.tck $(FEATURES) $(ARGS)

cluster-test: $(dev) ## Test a cluster with faults in network namespaces for SECONDS (FAULTS="kill cut" for some); as root
	@$(bin)/python -m bench.cluster_nemesis --seconds $(SECONDS) --faults "$(FAULTS)" $(ARGS)

abuse: $(dev) $(model) ## Run the tests of abuse, and print a table of results
	@$(bin)/python -m tests.abuse -n $(WORKERS) $(ARGS)

fuzz: $(dev) $(model) ## Test with random requests to REST and MCP in every role, and with random rows, filters and files
	@$(tests) $(thorough) $(FUZZED) $(ARGS)

coverage: $(dev) $(model) ## Run the tests and report the code that they do not cover
	@$(bin)/coverage erase
	@$(bin)/coverage run -m pytest -q -p no:xdist $(ARGS)
	@$(bin)/coverage combine --quiet
	@$(bin)/coverage report

docs: $(dev) ## Generate tables of the documentation, the clients' methods, and cached answers
	@$(bin)/python -m scripts.generate_clients
	@$(bin)/python -m scripts.tables
	@$(bin)/python -m scripts.cached_answers

site: $(dev) ## Build the documentation website into build/site
	@NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build --quiet --strict --site-dir build/site

pictures: $(dev) ## Retake the screenshots in docs/, and those of all states of the explorer in build/screenshots (needs chromium; ARGS="FOLDER")
	@$(bin)/python -m tests.explorer.pictures $(ARGS)

pythons: $(dev) ## Test installation and serving with the other Python versions of this machine
	@mkdir -p build/pythons
	@sh scripts/pythons.sh $(bin)/python

vendor: ## Rebuild the bundled libraries of the explorer and of /docs (needs node)
	@cd scripts/vendor && npm install --no-save --silent --ignore-scripts && node build.mjs

constraints: $(dev) ## Update constraints.txt to the newest compatible versions
	@PYTHON=$(PYTHON) sh scripts/constraints.sh

openapi: $(dev) ## Generate a client from /openapi-3.0.json, and use it
	@$(bin)/python -m scripts.generated_client

clean-machine: export ARGS := $(ARGS)
clean-machine: export PARTS := $(PARTS)
clean-machine: export WORKERS := $(WORKERS)
clean-machine: ## Run `make serve` and `make test` from a tarball of HEAD with an empty HOME (PARTS=serve for the first)
	@sh scripts/clean_machine.sh $(TARBALL)

clean: ## Remove .venv and generated files, but no data
	@rm -rf $(venv) build dist .coverage .coverage.* htmlcov .hypothesis .pytest_cache .ruff_cache .import_linter_cache
	@find kgserve tests bench scripts -name __pycache__ -type d -prune -exec rm -rf {} +

$(bin)/python:
	@sh scripts/preflight.sh $(PYTHON)
	@echo "Creating $(venv) with $$($(PYTHON) -V) …" >&2
	@$(PYTHON) -m venv --without-pip $(venv) || { rm -rf $(venv); exit 1; }

$(run): pyproject.toml constraints.txt scripts/install.sh scripts/portable.sh | $(bin)/python
	@echo "Installing the packages of constraints.txt into $(venv): up to a minute, seconds if they are cached …" >&2
	@sh scripts/install.sh $(bin)/python "$$(sh scripts/preflight.sh $(PYTHON) extras)prepare"
	@sh scripts/portable.sh $(bin)/python
	@touch $@

$(dev): pyproject.toml constraints.txt scripts/install.sh scripts/portable.sh | $(bin)/python
	@echo "Installing the packages of constraints.txt into $(venv): up to a minute, seconds if they are cached …" >&2
	@sh scripts/install.sh $(bin)/python "$$(sh scripts/preflight.sh $(PYTHON) extras)dev,prepare"
	@sh scripts/portable.sh $(bin)/python
	@touch $(run) $@

# Optional: without the model, search is by words only. Compiles the server's modules at the same time, for a fast start.
$(model): | $(run)
	@echo "Preparing the embedding model in $(models) …" >&2
	@$(bin)/python -c "import kgserve.server.app" 2>/dev/null & $(bin)/kgserve model prepare || echo "Continuing without the model; search will be by words only." >&2
