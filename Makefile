# Everything runs in .venv, which `make setup` (or the first target that needs it) creates.
#   PYTHON       the interpreter to build .venv from (3.11 or newer)
#   TORCH_INDEX  an extra package index for torch, e.g. https://download.pytorch.org/whl/cpu for the small CPU build
#   JOBS         test processes

PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= 2

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip -qq --disable-pip-version-check

# One thread per process: small matrices gain nothing from more, and parallel tests would compete for the cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help setup lint test test-all golden mutants docs wheel report bench format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install everything, pinned
	@echo "Ready: $(BIN)/hessianlens --help"

# Three pip calls instead of one; constraints.txt says why.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null || { echo "'$(PYTHON)' was not found. Name an interpreter: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "hessianlens needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
		echo "Name another interpreter: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || { echo "Creating $(VENV) with $$($(PYTHON) --version) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "Installing torch ..."
	@$(PIP) install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c constraints.txt torch
	@echo "Installing the other packages ..."
	@$(PIP) install --no-deps -c constraints.txt -r constraints.txt
	@$(PIP) install --no-deps -c constraints.txt -e .
	@touch $@

lint: $(STAMP)
	@echo "ruff check";     $(BIN)/ruff check --quiet .
	@echo "ruff format";    $(BIN)/ruff format --quiet --check . || { echo "Run: make format"; exit 1; }
	@echo "mypy";           $(BIN)/mypy --no-error-summary
	@echo "import layers";  $(BIN)/lint-imports > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }

test: lint  ## lint, type-check, check the import layers, then run the tests
	@$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not long"

test-all: test  ## the same, then the long tier: the other cases, hundreds of random modules, a walk over transformers
	@$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m long

golden: $(STAMP)  ## compare today's numbers with the recorded ones (python -m tests.golden --record records anew)
	@$(ONE_THREAD) $(BIN)/python -m tests.golden

mutants: $(STAMP)  ## break the code in many small ways, one at a time, and see whether a test fails
	@$(ONE_THREAD) $(BIN)/python -m tests.mutants

docs: $(STAMP)  ## build the site, and run its gallery: docs/_build/html/index.html (warnings are errors, nothing is fetched)
	@$(ONE_THREAD) $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

wheel:  ## build wheel and sdist into dist/, install the wheel alone into an empty environment, run every command there
	@rm -rf dist build/wheel
	@$(PYTHON) -m venv build/wheel/tools
	@build/wheel/tools/bin/python -m pip -qq --disable-pip-version-check install build twine
	@build/wheel/tools/bin/python -m build --outdir dist . > build/wheel/build.log || { tail -20 build/wheel/build.log; exit 1; }
	@build/wheel/tools/bin/twine check --strict dist/*
	@$(PYTHON) -m venv build/wheel/empty
	@build/wheel/empty/bin/python -m pip -qq --disable-pip-version-check install \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $$(grep '^torch==' constraints.txt) dist/*.whl
	@$(ONE_THREAD) $(PYTHON) .ci/smoke.py build/wheel/empty/bin/hessianlens

report: $(STAMP)  ## reproduce every figure in laptop size, test every claim, write the story (report/index.html) and the lab book
	@$(BIN)/hessianlens report --out report
	@echo "The commands are in $(BIN): $(BIN)/hessianlens --help, or source $(BIN)/activate and then hessianlens --help"

bench: $(STAMP)  ## run the benchmarks
	@$(BIN)/python -m benchmarks

format: $(STAMP)  ## format the code and apply safe lint fixes
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

clean:  ## delete .venv, the report and every cache
	@rm -rf $(VENV) report build dist docs/_build docs/gallery docs/*/generated .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
