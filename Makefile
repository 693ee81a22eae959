# make repro: everything, from an empty clone to a registered model. `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# What the others share, and what needs a GPU.
NO_BENCHMARKS := benchmarks/lab.py benchmarks/gpu.py

help:  ## List what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## Make .venv and install the locked requirements

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(None if sys.version_info >= (3, 11) else f"error: Python 3.11 or newer is needed, {sys.executable} is {v}. Name one: make PYTHON=python3.11 repro")'
	$(PYTHON) -m venv $(VENV)
	pip install --quiet --disable-pip-version-check --requirement requirements.lock
	pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

repro: setup  ## Run the pipeline: whatever has changed, and all of it the first time
	dvc repro

ui: setup  ## Browse the runs, on port 5000 (PORT=… for another)
	tenfold ui $(if $(PORT),--port $(PORT))

serve: setup  ## Serve the champion, on port 5001 (PORT=… for another)
	tenfold serve $(if $(PORT),--port $(PORT))

lint: setup  ## Check style and types
	ruff check .
	ruff format --check .
	mypy

test: lint  ## Check style and types, and run all tests
	OMP_NUM_THREADS=1 pytest --numprocesses 3 --dist loadgroup --durations=15

coverage: setup  ## Run all tests, and list the lines that none of them reaches
	OMP_NUM_THREADS=1 pytest --numprocesses 2 --dist loadgroup --cov --cov-report=term-missing:skip-covered

bench: setup  ## Run the benchmarks
	@missed=""; for script in $(filter-out $(NO_BENCHMARKS),$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; python "$$script" || missed="$$missed $$script"; done; \
	  test -z "$$missed" || { echo "error: failed, or a target was missed:$$missed"; exit 1; }

lock:  ## Pin every package anew, for all platforms (needs uv)
	uv pip compile --universal --python-version 3.11 --extra dev --no-annotate \
	  --custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

.PHONY: help setup repro ui serve lint test coverage bench lock
