# `make help` lists what there is. Everything lives in virtual environments under this directory.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= [arrow,cli,testing]
TEST_GROUPS ?= test consumers spark browser
PYTEST ?=
# A process for each core; those with Spark have one of their own. PYTEST=-n0 has all in one.
# The scheduler of groups waits for ever for the tests of a process that died, unless nothing takes its place.
SHARED := -n auto --dist loadgroup --max-worker-restart=0

BIN := $(VENV)/bin
BUILT_FROM := pyproject.toml setup.py src/_codec.pyx $(wildcard src/codec/*.pxi)
CODE := $(wildcard src tests bench docs/site)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help docs test tables interop lowest lint types instructions demo bench bench-peers soak mutants sanitize fuzz coverage dist build-tools wheels workflows audit clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  make test PYTEST='-k decode -x'   passes arguments to pytest"
	@echo "  make test PYTHON=python3.13       chooses the interpreter of a new environment"

$(BIN)/activate:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "dcp-arrow needs Python 3.10 or newer: make PYTHON=python3.12 (or wherever yours is)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null \
		|| { echo "$(PYTHON) lacks venv or its C headers: apt-get install python3-venv python3-dev gcc (Debian, Ubuntu)," \
			"dnf install python3-devel gcc (Fedora), or name another interpreter: make PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

# A stamp says that the extension in the tree and the installed libraries are those of the files it depends on.
$(VENV)/.installed: $(BIN)/activate $(BUILT_FROM)
	@echo "Building the extension and installing libraries in $(VENV): two minutes or more, without output"
	$(BIN)/python -m pip install --quiet --editable '.$(EXTRAS)' $(TEST_GROUPS:%=--group %)
	@touch $@

$(VENV)/.docs $(VENV)/.interop $(VENV)/.lint $(VENV)/.bench $(VENV)/.coverage $(VENV)/.audit $(VENV)/.wheels: $(VENV)/.%: $(BIN)/activate pyproject.toml
	$(BIN)/python -m pip install --quiet --group $*
	@touch $@

test: $(VENV)/.installed ## build the extension and run the tests
	$(BIN)/python -m pytest $(SHARED) $(PYTEST)

# Builds what it tests with Maven, Go and npm, once for each version of its sources, in build/interop.
interop: $(VENV)/.installed $(VENV)/.interop ## SDKs and DCP clients of others against the embedded cluster
	$(BIN)/python -m tests.interop
	$(BIN)/python -m pytest tests/interop -n auto $(PYTEST)

# Each format has releases for some versions of Spark only, so each has an environment of its own. Spark downloads the
# jars from Maven Central.
TABLES ?= delta iceberg
SPARK_OF_delta := 4.2
SPARK_OF_iceberg := 4.1
$(VENV)-%/.installed: $(BUILT_FROM)
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)-$*/bin/python -m pip install --quiet --editable '.$(EXTRAS)' --group test --group spark 'pyspark==$(SPARK_OF_$*).*'
	@touch $@

tables: $(TABLES:%=$(VENV)-%/.installed) ## dcp.spark.append and mirror with Delta and Iceberg
	@set -e; for format in $(TABLES); do \
		$(VENV)-$$format/bin/python -m pytest -n0 tests/spark/test_tables.py tests/spark/test_sinks.py $(PYTEST); \
	done

comma := ,
# Named here as an extra, since only what is asked for directly is taken at its lowest.
lowest: ## run the tests with the oldest libraries the project says it works with
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --upgrade uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct \
		--editable '.$(EXTRAS:]=$(comma)spark])' --group test --group spark
	.venv-lowest/bin/python -m pytest $(SHARED) $(PYTEST)

lint: $(VENV)/.lint ## ruff, cython-lint, and a spell-checker
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PATH="$(abspath $(BIN)):$$PATH" cython-lint src
	$(BIN)/codespell $(CODE) docs .ci .github Makefile $(wildcard *.md *.toml)

# What Cython itself adds to a class and to a module, besides what the stub promises.
CYTHON_ADDS := .*\.__(reduce|setstate)_cython__|dcp\._codec\.__test__

types: $(VENV)/.installed $(VENV)/.lint $(VENV)/.docs ## mypy, and the extension's stub against the extension
	$(BIN)/mypy --strict $(CODE)
	echo '$(CYTHON_ADDS)' | MYPYPATH=src $(BIN)/python -m mypy.stubtest --mypy-config-file pyproject.toml \
		--ignore-disjoint-bases --allowlist /dev/stdin --ignore-unused-allowlist dcp._codec

# DOCS=serve shows the site at http://127.0.0.1:8000, and again after each change.
DOCS ?= build --strict
docs: $(VENV)/.installed $(VENV)/.docs ## the docs site in build/site; a dead link or an undocumented name fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(DOCS)

instructions: $(VENV)/.installed ## compare the instructions of the hot loop with the recorded ones; needs valgrind
	$(BIN)/python -m bench.recorded

demo: $(VENV)/.installed ## copy a million documents with Spark, through a failover
	$(BIN)/dcp demo

# BENCH=--quick is a look; BENCH='--only decode' takes one of them.
BENCH ?=
bench: $(VENV)/.installed $(VENV)/.bench ## the benchmarks; tables, JSON and a plot in build/bench
	$(BIN)/dcp bench --out build/bench $(BENCH)

# PEERS='--turns 1 --bytes 64m' is a look; PEERS='--pages README.md docs/benchmarks.md' writes their tables.
PEERS ?=
bench-peers: $(VENV)/.installed $(VENV)/.bench ## this client beside java-dcp-client and gocbcore; needs Java, Maven and Go
	$(BIN)/python -m bench.peers --out build/bench $(PEERS)

# SOAK='--seconds 600' is shorter.
SOAK ?= --seconds 3600
soak: $(VENV)/.installed ## an hour of writes, faults and restarts; memory, threads and lag in build/soak
	$(BIN)/python -m tests.soak --out build/soak $(SOAK)

# MUTANTS=--known runs those that no test noticed once; `python -m tests.mutants --help` says what else there is.
MUTANTS ?= --count 40
mutants: $(VENV)/.installed $(VENV)/.coverage ## change the code in one place at a time, and report the changes that no test notices
	$(BIN)/python -m tests.mutants $(MUTANTS)

# The sanitizers' run time has to be loaded before Python, and the C++ one with it: pyarrow throws exceptions.
# The interpreter frees little at its end, so leaks are not looked for here. pytest may not capture file descriptors,
# or the report of a finding would go with the process that it ends.
sanitize: ## run the tests on an extension built with the address and undefined-behaviour sanitizers
	$(PYTHON) -m venv --clear .venv-sanitize
	.venv-sanitize/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	DCP_BUILD=sanitize .venv-sanitize/bin/python -m pip install --quiet '.$(EXTRAS)' --group test
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
		.venv-sanitize/bin/python -m pytest --capture=sys $(PYTEST)

CLANG ?= clang
FUZZ ?= -runs=5000
FUZZ_TARGETS ?= frames splitter codec decoder rows arrow encoder bodies documents
FUZZ_ASAN := detect_leaks=0:malloc_context_size=0:quarantine_size_mb=8:thread_local_quarantine_size_kb=64

# atheris steers by the coverage that clang builds in, and brings the sanitizers' run time; it needs Python 3.11 to 3.13.
# The objects of gcc and of clang do not mix, so none are left behind. Where memory was allocated is not written down,
# which would take most of the time: tests/fuzz/README.md says how to see it.
fuzz: ## fuzz for a while, longer with FUZZ=-max_total_time=600 (seconds for each of FUZZ_TARGETS)
	$(PYTHON) -m venv --clear .venv-fuzz
	.venv-fuzz/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	rm -rf build/sanitize
	DCP_BUILD=sanitize CC=$(CLANG) LDSHARED='$(CLANG) -shared' CFLAGS=-fsanitize=fuzzer-no-link \
		.venv-fuzz/bin/python -m pip install --quiet '.[arrow]' 'atheris==3.0.*'
	rm -rf build/sanitize
	mkdir -p build/fuzz
	@set -e; runtime="$$(.venv-fuzz/bin/python -c 'import atheris; print(atheris.path())')/asan_with_fuzzer.so"; \
	for target in $(FUZZ_TARGETS); do \
		echo "$$target: $(FUZZ)"; \
		LD_PRELOAD="$$runtime $$(gcc -print-file-name=libstdc++.so.6)" PYTHONMALLOC=malloc UBSAN_OPTIONS=print_stacktrace=1 \
			ASAN_OPTIONS="$(FUZZ_ASAN):$$ASAN_OPTIONS" \
			.venv-fuzz/bin/python -m tests.fuzz.run $$target build/fuzz/$$target -artifact_prefix=build/fuzz/$$target- $(FUZZ); \
	done

# From 3.13 on Cython reports its lines in a way that its coverage plugin does not see: say PYTHON=python3.12.
coverage: ## which lines the tests run, of the Python and of the Cython code
	$(PYTHON) -m venv --clear .venv-trace
	.venv-trace/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	DCP_BUILD=trace .venv-trace/bin/python -m pip install --quiet '.$(EXTRAS)' --group test --group coverage
	.venv-trace/bin/python -m coverage run --parallel-mode -m pytest $(PYTEST)
	.venv-trace/bin/python -m coverage combine --quiet
	.venv-trace/bin/python -m coverage report

# Build tools have pinned hashes, and an environment of their own.
$(VENV)-dist/.installed: .github/build-tools.txt
	$(PYTHON) -m venv --clear $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install --quiet --require-hashes --requirement $<
	@touch $@

build-tools: $(VENV)/.audit ## .github/build-tools.txt anew: newest versions of the group `dist`, with hashes
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-header --no-annotate \
		--group dist --output-file .github/build-tools.txt

# Two builds of one commit are the same, bit for bit, with the same interpreter, compiler and build tools.
dist wheels: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct 2>/dev/null || stat -c %Y pyproject.toml)
dist: $(VENV)-dist/.installed $(VENV)/.audit ## sdist and wheel in dist/, built twice, and the tests of the sdist against the wheel alone
	rm -rf dist build/dist build/again
	$(VENV)-dist/bin/python -m build --no-isolation
	$(VENV)-dist/bin/python -m build --no-isolation --outdir build/again
	for file in dist/*; do cmp $$file build/again/$${file#dist/} || exit 1; done
	$(BIN)/twine check --strict dist/*
	mkdir -p build/dist
	tar -xzf dist/*.tar.gz -C build/dist --strip-components=1
	$(PYTHON) -m venv build/dist/.venv
	build/dist/.venv/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	cd build/dist && .venv/bin/python -m pip install --quiet "$$(echo ../../dist/*.whl)$(EXTRAS)" --group test
	cd build/dist && .venv/bin/python -m pytest $(PYTEST)

# zig brings the headers of every glibc, and musl. The interpreter's own headers serve for both processors. The only library
# that the extension needs is that of C. Releases are built by cibuildwheel, on machines of each kind.
WHEELS ?= x86_64-linux-gnu.2.17 aarch64-linux-gnu.2.17 x86_64-linux-musl aarch64-linux-musl
wheels: $(VENV)-dist/.installed $(VENV)/.wheels ## wheels for glibc 2.17 and musl, x86-64 and aarch64, in build/wheels
	rm -rf build/wheels build/zig
	mkdir -p build/zig
	printf '#!/bin/sh\nexec $(abspath $(BIN))/python -m ziglang cc -target "$$TARGET" "$$@"\n' > build/zig/cc
	chmod +x build/zig/cc
	@set -e; abi="$$($(VENV)-dist/bin/python -c 'import sysconfig; print("-".join(sysconfig.get_config_var("SOABI").split("-")[:2]))')"; \
	for target in $(WHEELS); do \
		processor=$${target%%-*}; libc=$${target#*-linux-}; echo "$$target"; rm -rf build/release; \
		TARGET=$$target CC=$(CURDIR)/build/zig/cc LDSHARED="$(CURDIR)/build/zig/cc -shared" CFLAGS= \
			SETUPTOOLS_EXT_SUFFIX=.$$abi-$$processor-linux-$${libc%%.*}.so _PYTHON_HOST_PLATFORM=linux-$$processor \
			$(VENV)-dist/bin/python -m build --no-isolation --wheel --outdir build/zig/$$target > build/zig/$$target.log; \
		case $$libc in \
			musl) mkdir -p build/wheels; cp build/zig/$$target/*.whl build/wheels; \
				$(BIN)/python -m wheel tags --remove --platform-tag musllinux_1_2_$$processor build/wheels/*-linux_$$processor.whl;; \
			*) PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir build/wheels build/zig/$$target/*.whl; \
				ls build/wheels/*manylinux_$$(echo $${libc#gnu.} | tr . _)_$$processor*;; \
		esac; \
	done; rm -rf build/release

# Go builds actionlint from its module proxy, which checks its hashes.
ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
workflows: $(VENV)/.audit ## errors and risks in .github
	$(BIN)/zizmor --offline --no-progress --quiet .github
	go run $(ACTIONLINT)

# Asks the package index itself: a mirror may not know them, and then this fails.
audit: $(VENV)/.audit ## known faults of the newest versions of all extras, and of the build tools
	mkdir -p build
	$(BIN)/uv pip compile --quiet --all-extras --no-header --no-annotate --output-file build/libraries.txt pyproject.toml
	$(BIN)/pip-audit --strict --progress-spinner off --disable-pip --no-deps --requirement build/libraries.txt
	$(BIN)/pip-audit --strict --progress-spinner off --disable-pip --require-hashes --requirement .github/build-tools.txt

clean: ## everything that can be made again
	rm -rf .venv .venv-* build dist src/*.egg-info src/_codec.c src/dcp/_codec*.so .coverage*
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +
