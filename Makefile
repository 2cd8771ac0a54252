# Needs git, make and Python 3.11 or later; everything else is installed into .venv, locked by hash.
# Another interpreter: make install PYTHON=/path/to/python3.12

PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-spark test-more test-rest check check-types check-tests bench cases soak faults lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## prepare .venv with the command in it (.venv/bin/watersmeet)

# Done once, and again when what is locked changes. PySpark comes as source: build.txt locks what builds it.
$(INSTALLED): requirements/uv.txt requirements/build.txt requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) was not found; install Python 3.11 or later, or name one: make install PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old, Watersmeet needs Python 3.11 or later; name one: make install PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo "make: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; rm -rf .venv; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --build-constraints requirements/build.txt -r requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: install ## join two streams of made-up orders and deliveries on local Spark, under a minute
	$(BIN)/watersmeet demo

# Three processes: what waits in one of them leaves the two cores to the others. Two of them tell what they found at the
# end, so that their lines do not mix.
test: install ## all tests, with Spark
	@mkdir -p $(TOLD)
	@$(MAKE) --no-print-directory -j3 test-spark test-more test-rest; status=$$?; cat $(TOLD)/*.txt; exit $$status

TOLD := .pytest_cache/told
FIRST := tests/spark/test_[a-f]*.py tests/spark/test_[jw]*.py

test-spark:
	$(BIN)/python -m pytest -m spark tests/spark $(foreach part,$(FIRST),--ignore-glob='$(CURDIR)/$(part)')

test-more:
	@$(BIN)/python -m pytest -q -m spark $(FIRST) >$(TOLD)/more.txt 2>&1

test-rest:
	@$(BIN)/python -m pytest -q -m "not spark" >$(TOLD)/rest.txt 2>&1; status=$$?; \
	$(BIN)/python -m pytest -q -m spark --ignore=tests/spark >$(TOLD)/outside.txt 2>&1 && exit $$status

check: install ## lint, types, layers and the tests that need no JVM, under a minute
	@$(MAKE) --no-print-directory --output-sync -j2 check-types check-tests

check-types:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/basedpyright --level error

check-tests:
	WATERSMEET_EXAMPLES=0.3 $(BIN)/python -m pytest -q -m "not spark"

bench: install ## the same join through Watersmeet and through Spark's own, side by side
	$(BIN)/python -m bench

cases: install ## all cases on Spark, of which `make test` runs some
	WATERSMEET_CASES=all $(BIN)/python -m pytest -q tests/spark/test_cases_on_spark.py

soak: install ## an hour of event time: state and memory must stay flat
	$(BIN)/python -m bench.soak

faults: install ## two hundred kills, full disks and restarts; every row must be there once. Takes an hour
	$(BIN)/python -m faults

lock: install ## resolve the dependencies of pyproject.toml anew and write requirements/*.txt
	$(UV) pip compile --quiet --upgrade $(LOCK_OPTIONS) requirements/uv.in -o requirements/uv.txt
	$(UV) pip compile --quiet --upgrade $(LOCK_OPTIONS) requirements/build.in -o requirements/build.txt
	$(UV) pip compile --quiet --upgrade $(LOCK_OPTIONS) --extra spark --extra java --extra dev pyproject.toml -o requirements/dev.txt

# No index is written into the files: they install from whatever index the machine is set up with.
LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

clean: ## remove .venv and what the tools leave behind
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
