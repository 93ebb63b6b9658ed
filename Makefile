# Every habit of this project is a target here; the same ones run by hand and by CI.

PYTHON ?= python3
BIN := .venv/bin
NOTEBOOK := notebooks/quickstart.ipynb

PAGE := nbdist/widgets/static/metrics.js
PAGE_SOURCES := labextension/package.json labextension/yarn.lock labextension/tools/bundle.mjs \
	$(wildcard labextension/src/metrics/*)

.DEFAULT_GOAL := help
.PHONY: help env demo lab test test-browser test-xla screenshots lint format bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: .venv/made $(PAGE) ## make .venv with all that the other targets need

.venv/made: pyproject.toml constraints.txt tools/make-env
	PYTHON="$(PYTHON)" tools/make-env
	@touch $@

$(PAGE): .venv/made $(PAGE_SOURCES)
	tools/page build

demo: env ## run the quickstart headless and show what its cells print
	$(BIN)/python tools/run_notebook.py $(NOTEBOOK) build/quickstart.ipynb

lab: env ## open JupyterLab with the quickstart
	$(BIN)/jupyter lab $(NOTEBOOK)

test: lint ## lint, check types, run the tests (ARGS="-k name" to choose)
	tools/page test
	$(BIN)/python -m pytest $(ARGS)

test-browser: env ## try the live metrics in real JupyterLab and Notebook pages (ARGS="-g dark")
	tools/page browser $(ARGS)

test-xla: .venv-xla/made ## run the tests of --backend xla, in an environment of their own (ARGS="-k name" to choose)
	.venv-xla/bin/python -m pytest tests/xla $(ARGS)

.venv-xla/made: pyproject.toml tools/make-env
	PYTHON="$(PYTHON)" tools/make-env xla
	@touch $@

screenshots: env ## make the README's pictures of the live metrics anew
	tools/page screenshots

lint: env ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	tools/page lint

format: env ## format the sources and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	tools/page format

bench: env ## measure beside the peers, print the table, write benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove .venv and all that was built
	rm -rf .venv .venv-xla build dist .mypy_cache .pytest_cache .ruff_cache nbdist/widgets/static
	rm -rf labextension/node_modules labextension/lib tests/browser/node_modules
