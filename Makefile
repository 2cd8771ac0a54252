# Needs git, make and Python 3.11 or later; everything else is installed into .venv, locked by hash.
# Another interpreter: make install PYTHON=/path/to/python3.12

# Another Spark than the locked one, in an environment of its own: make test SPARK=4.1.4

PYTHON ?= python3
SPARK ?=
VENV := .venv$(if $(SPARK),-spark-$(SPARK))
BIN := $(VENV)/bin
UV := $(BIN)/uv
INSTALLED := $(VENV)/.installed

# Hundreds of processes import the same modules: what is compiled is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test check check-types check-tests smoke docs bench bench-peers cases matrix matrix-one soak faults retries kills cluster schedulers image-test lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## prepare .venv with the command in it (.venv/bin/watersmeet)

# Done once, and again when what is locked changes. PySpark comes as source: build.txt locks what builds it.
$(INSTALLED): requirements/uv.txt requirements/build.txt requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) was not found; install Python 3.11 or later, or name one: make install PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old, Watersmeet needs Python 3.11 or later; name one: make install PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "make: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes --build-constraints requirements/build.txt -r requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(if $(SPARK),$(UV) pip install --quiet --python $(BIN)/python --no-deps --build-constraints requirements/build.txt pyspark==$(SPARK) $(if $(filter 4.0.%,$(SPARK)),'protobuf<7'))
	@touch $@

demo: install ## join two streams of made-up orders and deliveries on local Spark, under a minute
	$(BIN)/watersmeet demo

# Two processes with a Spark of their own each, which take whole files, and beside them one for what needs none: what
# waits in one leaves the cores to the others. Of the examples of property tests a share is enough.
EXAMPLES ?= 0.1
SHARED_OUT := --dist loadfile --no-loadscope-reorder
SLOWEST := --durations 25 --durations-min 3
# Named, so that no process reads the thousands of others.
ON_SPARK = $(shell grep -rl --include='test_*.py' 'mark.spark' tests | grep -v /matrix/ | sort)

test: install ## all tests, with Spark
	@mkdir -p build; WATERSMEET_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q -m "not spark" $(SLOWEST) \
		>build/tests-without-spark.log 2>&1 & without=$$!; \
	$(BIN)/python -m pytest -q -m spark -n 2 $(SHARED_OUT) $(SLOWEST) $(ON_SPARK); status=$$?; \
	wait $$without || status=$$?; cat build/tests-without-spark.log; exit $$status

smoke: install ## one test of each join family and each connector on Spark, two minutes
	$(BIN)/python -m pytest -q -m smoke $(shell grep -rl --include='test_*.py' 'mark.smoke' tests | sort)

check: install ## lint, types, layers and the tests that need no JVM
	@$(MAKE) --no-print-directory --output-sync -j2 check-types check-tests

check-types:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/basedpyright --level error

check-tests:
	WATERSMEET_EXAMPLES=0.3 $(BIN)/python -m pytest -q -m "not spark"

docs: .venv-docs/.installed ## the site, from docs/ into build/site; links that lead nowhere fail
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build
	.venv-docs/bin/python docs/check_site.py build/site
	@echo "Open build/site/index.html"

# The tools that build the site have their own environment, so that other targets need not install them.
.venv-docs/.installed: requirements/docs.txt
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

bench: install ## the same join through Watersmeet and through Spark's own, side by side
	$(BIN)/python -m bench
	$(BIN)/python -m bench.latency

# The others of the comparison, each in an environment of its own.
AIRFLOW := apache-airflow==3.3.2
FLINK := apache-flink==2.3.0
PATHWAY := pathway==0.33.0

bench-peers: install .venv-peers-flink/.installed .venv-peers-pathway/.installed ## the same queries, Nexmark's among them, on Flink, Pathway, Kafka Streams and Hazelcast
	$(BIN)/python -m bench.peers

.venv-peers-flink/.installed: PACKAGE = $(FLINK)
.venv-peers-pathway/.installed: PACKAGE = $(PATHWAY)
.venv-peers-%/.installed: Makefile | install
	$(UV) venv --quiet --clear --python $(BIN)/python .venv-peers-$*
	$(UV) pip install --quiet --python .venv-peers-$*/bin/python $(PACKAGE)
	@touch $@

cases: install ## all cases, types and readers on Spark, of which `make test` runs some
	WATERSMEET_CASES=all $(BIN)/python -m pytest -q tests/tools/testing/test_on_spark.py \
		tests/spark/state/test_state_formats.py tests/spark/compile/test_types.py tests/spark/compile/test_key_types.py \
		tests/spark/connectors/test_ranges.py tests/spark/connectors/test_file_order.py tests/cli/test_dev.py \
		tests/spark/test_local_functions.py tests/spark/connectors/test_kafka.py tests/test_internal_names.py

# The latest of each line of Spark.
SPARKS := 4.0.5 4.1.4 4.2.1 4.3.0

matrix: ## the demo, every family, restarts, types, connectors on each Spark that is supported
	@for spark in $(SPARKS); do echo "Spark $$spark"; $(MAKE) --no-print-directory matrix-one SPARK=$$spark || exit 1; done

# One case of each family, and what differs between versions if anything does.
MATRIX_TESTS := tests/spark/compile/test_types.py tests/spark/run/test_recovery.py \
	tests/spark/state/test_state_formats.py tests/spark/connectors/test_avro.py tests/spark/connectors/test_protobuf.py \
	tests/spark/exchange/test_columns.py tests/spark/exchange/test_shard_groups.py tests/spark/private/test_sockets.py \
	tests/spark/private/test_compiled_classes.py tests/spark/connectors/test_snapshots.py \
	tests/tools/testing/test_on_spark.py
MATRIX_CASES := window/count-and-time or window/time or sync/idle or asof/tolerance or lookup/of-a-join or \
	changelog/full-join or group/aggregates or top/of-a-table or interval/restart-keeps-matched or not case_on_spark

matrix-one: install
	$(BIN)/watersmeet demo $(VENV)/demo
	WATERSMEET_CASES=all $(BIN)/python -m pytest -q $(MATRIX_TESTS) -k '$(MATRIX_CASES)'
	for file in tests/matrix/test_*.py; do $(BIN)/python -m pytest -q $$file || exit 1; done

soak: install ## an hour of event time: state and memory must stay flat
	$(BIN)/python -m bench.soak

faults: install ## two hundred kills, full disks and restarts; every row must be there once. Takes an hour
	$(BIN)/python -m faults

cluster: install ## storages on HDFS and S3, YARN, all commands, two drivers on one storage; says so if Maven Central cannot be reached
	WATERSMEET_CLUSTER=1 $(BIN)/python -m pytest -q -rs tests/cluster

image-test: install ## every line of deploy/Dockerfile in changed roots, and the image on a project; needs root, debootstrap and npm
	WATERSMEET_IMAGE=1 $(BIN)/python -m pytest -q -rs tests/deploy --timeout 3600

schedulers: install .venv-airflow/.installed ## the DAG of the examples in Airflow, and the script of the review comment
	WATERSMEET_SCHEDULERS=1 $(BIN)/python -m pytest -q -rs tests/schedulers

# Airflow needs other versions of many packages.
.venv-airflow/.installed: Makefile | install
	$(UV) venv --quiet --clear --python $(BIN)/python .venv-airflow
	$(UV) pip install --quiet --python .venv-airflow/bin/python $(AIRFLOW)
	@touch $@

kills: install ## two hundred kills of processes of a cluster, with storages on HDFS and S3. Takes hours
	$(BIN)/python -m faults.cluster

retries: install ## tasks that fail, are overtaken or lose their executor, for every family. Takes half an hour
	$(BIN)/python -m faults.retries

lock: install ## resolve the dependencies of pyproject.toml again and write requirements/*.txt
	$(UV) pip compile --quiet --upgrade $(LOCK_OPTIONS) requirements/uv.in -o requirements/uv.txt
	$(UV) pip compile --quiet --upgrade $(LOCK_OPTIONS) requirements/build.in -o requirements/build.txt
	$(UV) pip compile --quiet --upgrade $(LOCK_OPTIONS) requirements/docs.in -o requirements/docs.txt
	$(UV) pip compile --quiet --upgrade $(LOCK_OPTIONS) --extra spark --extra java --extra dev pyproject.toml -o requirements/dev.txt
	$(UV) pip compile --quiet --upgrade $(LOCK_OPTIONS) --extra spark --extra kafka --extra postgres --extra ui --constraints requirements/dev.txt pyproject.toml -o requirements/image.txt

# No index is written into the files: they install from whatever index the machine is set up with.
LOCK_OPTIONS := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

clean: ## remove .venv and what the tools leave behind
	rm -rf .venv .venv-docs .venv-spark-* .venv-peers-* .venv-airflow build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
