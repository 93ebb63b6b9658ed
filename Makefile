# Every habit of this project is a target here; the same ones run by hand and by CI.

PYTHON ?= python3
BIN := .venv/bin
NOTEBOOK := notebooks/quickstart.ipynb
# Containers often set it. Each kernel and rank would then compile nbdist anew, and take twice as long.
unexport PYTHONDONTWRITEBYTECODE

# Side by side: two workers more than there are cores, up to four. On two cores three took 21:56 and four
# 20:47; a fifth gained nothing, for four leave neither core idle.
# ARGS goes to one process, which shows more.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores > 1 ? 4 : 3)))
SIDE_BY_SIDE = $(if $(ARGS),,-n $(WORKERS) --dist loadfile --no-loadscope-reorder)
# Storms wait a lot, for time limits too. More at once than there are cores only make each other late.
STORMS ?= $(shell getconf _NPROCESSORS_ONLN)
SHUFFLED = $(if $(SHUFFLE),--random-order --random-order-seed=$(SHUFFLE))
# With COVERAGE=1 every process of every target below notes which lines it ran; see `coverage`.
export NBDIST_COVERAGE := $(abspath build/coverage)
$(if $(COVERAGE),$(shell mkdir -p $(NBDIST_COVERAGE)))
PYTEST = -m $(if $(COVERAGE),coverage run -m )pytest $(SIDE_BY_SIDE) $(SHUFFLED)

PAGE := nbdist/widgets/static/metrics.js
PAGE_SOURCES := nbdist/version.py $(addprefix labextension/,package.json yarn.lock tsconfig.json tsconfig.build.json) \
	$(wildcard $(addprefix labextension/,tools/* schema/* style/* src/*.ts src/*/* src/*/*/*))

# What lints and tests the page, which takes a core 50 s, is run again when one of these has changed.
PAGE_CHECKED := $(PAGE_SOURCES) tools/page tests/amounts.json $(addprefix labextension/,eslint.config.mjs install.json server-config.json) \
	$(wildcard labextension/tests/* tests/browser/*.ts tests/browser/*.json)

TORCH ?= 2.15.0
TORCH_TESTS := torch_private nccl recovery ddp_backend between_cells faults deaths hangs torchrun launch orphans names

.DEFAULT_GOAL := help
.PHONY: help env demo quickstart lab check test test-long test-all coverage coverage-report programs storm docs test-browser test-torch test-xla test-tensorflow test-gpu gpu-wheels test-oldest test-newest screenshots lint format bench dist clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Both at once with `make -j2 env`: one downloads while the other builds.
env: .venv/made $(PAGE) ## make .venv with all that the other targets need
	@tools/page link

# Each of the three adds to the one before.
.venv/demo: pyproject.toml constraints.txt tools/make-env
	PYTHON="$(PYTHON)" tools/make-env demo
	@touch $@

.venv/lab: .venv/demo
	PYTHON="$(PYTHON)" tools/make-env lab
	@touch $@

.venv/made: .venv/lab
	PYTHON="$(PYTHON)" tools/make-env
	@touch $@

$(PAGE): .venv/lab $(PAGE_SOURCES)
	tools/page build

demo: .venv/demo ## run the quickstart headless and show what its cells print
	$(BIN)/python tools/run_notebook.py $(NOTEBOOK) build/quickstart.ipynb

quickstart: .venv/demo $(PAGE) ## run the quickstart and store its outputs in it, as GitHub shows them
	$(BIN)/python tools/run_notebook.py $(NOTEBOOK) --store

lab: .venv/lab $(PAGE) ## open JupyterLab with the quickstart
	tools/page link
	$(BIN)/jupyter lab $(NOTEBOOK)

# Each worker imports all tests, which takes it as long as it tests: as many as cores are fastest.
check: lint ## for every save: lint, check types, run what needs no kernel and no ranks; a minute
	$(BIN)/python -m pytest -n logical --dist loadfile -m light -q $(ARGS)

test: lint ## lint, check types, run all but long tests (ARGS="-k name" for any of pytest's, SHUFFLE=17 in another order)
	$(BIN)/python $(PYTEST) $(or $(ARGS),-m "not long")

test-long: env ## the long tests alone, which try at length what others try in short
	$(BIN)/python $(PYTEST) -m long $(ARGS)

test-all: lint ## lint, check types, run all tests, the long ones included
	$(BIN)/python $(PYTEST) $(ARGS)

coverage: ## run all tests, list the lines of nbdist that no process ran, fail below the floor
	rm -rf build/coverage
	$(MAKE) test-all COVERAGE=1
	$(MAKE) coverage-report

coverage-report: ## report the coverage of all that ran with COVERAGE=1 (lines: build/coverage/html/index.html)
	@# What a process was writing when it was killed is warned of, and no loss.
	PYTHONWARNINGS=ignore $(BIN)/coverage combine --keep -q build/coverage
	$(BIN)/coverage html -q
	$(BIN)/coverage report

programs: env ## make random notebooks (N=2000), compare what they compute here, on ranks and as scripts
	NBDIST_PROGRAMS=$(or $(N),2000) $(BIN)/python -m pytest -n logical --dist worksteal -rP tests/test_programs.py tests/test_rank_programs.py $(ARGS)

storm: env ## throw faults into N random trainings (N=300 SEED=1), list those that do not recover
	$(BIN)/python -m pytest tests/test_storm.py -k by_hand -s --timeout 0 --storm $(or $(N),300) --storm-seed $(or $(SEED),1) \
		--storm-workers $(STORMS) $(ARGS)

docs: .venv-docs/made ## build the site, reference made from the code included, into build/docs/index.html
	.venv-docs/bin/python -m sphinx -q -W --keep-going -c docs . build/docs

.venv-docs/made: pyproject.toml constraints.txt tools/make-env
	PYTHON="$(PYTHON)" tools/make-env docs
	@touch $@

test-browser: env ## run the tests of JupyterLab's and Notebook's pages in a browser (ARGS="-g dark")
	tools/page browser $(ARGS)

test-torch: .venv-torch-$(TORCH)/made ## try what torch can break, with another release (TORCH=2.15.0 ARGS="-k name")
	.venv-torch-$(TORCH)/bin/python $(PYTEST) $(addprefix tests/test_,$(TORCH_TESTS:=.py)) $(ARGS)

.venv-torch-%/made: pyproject.toml tools/make-env
	PYTHON="$(PYTHON)" tools/make-env torch $*
	@touch $@

test-xla: .venv-xla/made ## try --backend xla, in an environment of its own (ARGS="-k name" to choose)
	.venv-xla/bin/python $(PYTEST) tests/xla $(ARGS)

.venv-xla/made: pyproject.toml tools/make-env
	PYTHON="$(PYTHON)" tools/make-env xla
	@touch $@

# Each worker starts ranks with TensorFlow for itself: four took two cores 3:54, two take them 3:27.
test-tensorflow: WORKERS = logical
test-tensorflow: .venv-tensorflow/made ## try TensorFlow through Horovod, in an environment of its own (ARGS="-k name")
	.venv-tensorflow/bin/python $(PYTEST) tests/tensorflow $(ARGS)

.venv-tensorflow/made: pyproject.toml tools/make-env
	PYTHON="$(PYTHON)" tools/make-env tensorflow
	@touch $@

# Anything that is lacking is told before anything is made, with exit code 2.
test-gpu: ## try two ranks on a GPU with PYTHON, which holds torch; see CONTRIBUTING (REHEARSE=1 without a GPU)
	@PYTHON="$(PYTHON)" WHEELS="$(WHEELS)" REHEARSE="$(REHEARSE)" LIMIT="$(LIMIT)" tools/test-gpu $(ARGS)

gpu-wheels: ## download the wheels that test-gpu needs where there is no network (PYTHON_VERSION=3.12)
	@PYTHON="$(PYTHON)" WHEELS="$(WHEELS)" PYTHON_VERSION="$(PYTHON_VERSION)" NUMPY="$(NUMPY)" tools/test-gpu wheels

test-oldest: .venv-oldest/made $(if $(ARGS),,$(PAGE)) ## try the lowest versions that are allowed, on Python 3.10 (ARGS="-k name")
	.venv-oldest/bin/python $(PYTEST) $(ARGS)

.venv-oldest/made: PYTHON = python3.10
.venv-oldest/made: pyproject.toml constraints.txt tools/make-env
	PYTHON="$(PYTHON)" tools/make-env oldest
	@touch $@

test-newest: .venv-newest/made $(if $(ARGS),,$(PAGE)) ## try the newest of everything that day, on Python 3.13 (ARGS="-k name")
	.venv-newest/bin/python $(PYTEST) $(ARGS)

.PHONY: .venv-newest/made # looks each time
.venv-newest/made: PYTHON = python3.13
.venv-newest/made:
	PYTHON="$(PYTHON)" tools/make-env newest

screenshots: env ## make the pictures of the documents anew (ARGS="--project sidebar")
	tools/page screenshots $(ARGS)

lint: env build/page-checked ## check style, format, types and that imports run downwards
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@mkdir -p build
	$(BIN)/lint-imports --no-logo --cache-dir build/imports >build/imports.log || { cat build/imports.log; exit 1; }

build/page-checked: $(PAGE_CHECKED) | $(PAGE)
	tools/page lint
	tools/page test
	@# Without a Node.js both have said so, and done nothing.
	@mkdir -p build && [ ! -d labextension/node_modules ] || touch $@

format: env ## format the sources and mend what ruff can mend; write the table of rooms
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/python tools/rooms.py
	tools/page format

bench: env ## measure beside the peers, print the table, write benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks $(ARGS)

# What runs in the page is built anew, not taken over from some other day.
dist: env ## build sdist and wheel into dist/, check and install them; CONTRIBUTING says how to publish
	rm -rf dist nbdist/labextension nbdist/widgets/static
	$(BIN)/python -m build --installer uv
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/check_dist.py dist

clean: ## remove .venv and all that was built
	rm -rf .venv .venv-xla .venv-tensorflow .venv-torch-* .venv-oldest .venv-newest .venv-gpu .venv-docs build dist .mypy_cache .pytest_cache .ruff_cache nbdist/labextension nbdist/widgets/static
	rm -rf labextension/node_modules labextension/.yarn labextension/lib
	rm -rf tests/browser/node_modules tests/browser/.yarn tests/browser/results
