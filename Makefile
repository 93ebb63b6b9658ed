# Every habit of this project is a target here; the same ones run by hand and by CI.

PYTHON ?= python3
BIN := .venv/bin
NOTEBOOK := notebooks/quickstart.ipynb

.DEFAULT_GOAL := help
.PHONY: help env demo lab test lint format bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: .venv/made ## make .venv with all that the other targets need

.venv/made: pyproject.toml constraints.txt tools/make-env
	PYTHON="$(PYTHON)" tools/make-env
	@touch $@

demo: env ## run the quickstart headless and show what its cells print
	$(BIN)/python tools/run_notebook.py $(NOTEBOOK) build/quickstart.ipynb

lab: env ## open JupyterLab with the quickstart
	$(BIN)/jupyter lab $(NOTEBOOK)

test: lint ## lint, check types, run the tests (ARGS="-k name" to choose)
	$(BIN)/python -m pytest $(ARGS)

lint: env ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: env ## format the sources and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: env ## measure beside the peers, print the table, write benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove .venv and all that was built
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
