# make repro: everything, from an empty clone to a registered model. `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
PORT ?= 5000
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.DEFAULT_GOAL := help

help:  ## List what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Make .venv and install the locked requirements

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "error: Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ". Name one: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(STAMP)

repro: setup  ## Run the whole pipeline (only what has changed)
	dvc repro

test: setup  ## Lint, check types, run all tests
	$(MAKE) lint
	pytest --cov --cov-report=term

lint: setup  ## Check style and types
	ruff check .
	ruff format --check .
	mypy

ui: setup  ## Browse the runs (PORT=5000)
	tenfold ui --port $(PORT)

serve: setup  ## Serve the champion (PORT=5001)
	tenfold serve

bench: setup  ## Run the benchmarks
	@for script in benchmarks/*.py; do echo "== $$script"; python $$script || exit 1; done

.PHONY: help setup repro test lint ui serve bench
