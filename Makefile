# One command each. Nothing here needs root, or the network beyond the package registries.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

SOURCES := pyproject.toml CMakeLists.txt README.md \
  $(shell find src csrc -type f \( -name '*.py' -o -name '*.pyi' -o -name '*.cpp' -o -name '*.h' -o -name '*.html' -o -name CMakeLists.txt \))
CXX_SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h')

.DEFAULT_GOAL := help
.PHONY: help serve test lint format bench contract parity native-test sanitize emulate size clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

serve: $(VENV)/installed ## set up everything and serve the default model on port 8000 (ARGS="...": more flags)
	@exec $(BIN)/legato serve $(ARGS)

test: $(VENV)/dev $(VENV)/installed ## set up everything and run the tests
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/dev $(VENV)/installed ## formatting, lint, types; prints what is over the size budget
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)
	$(BIN)/python tools/size.py

format: $(VENV)/dev ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CXX_SOURCES)

bench: $(VENV)/installed ## the benchmarks that need no peer, one round each; results and a page in bench-results
	$(BIN)/legato bench throughput --format int8 $(ARGS)
	for each in kernels idle start build; do \
	  $(BIN)/python benchmarks/$$each.py --rounds 1 --results bench-results || exit 1; \
	done
	$(BIN)/python benchmarks/report.py --results bench-results --output bench-results/benchmarks.md

contract: $(VENV)/installed ## clients and load generators, each in an environment of its own, against the default model
	$(PYTHON) tests/contract/run.py $(BIN)/python $(ARGS)

parity: $(VENV)/dev $(VENV)/installed ## regenerate the golden files with torch and transformers, and check against them
	tools/parity.sh $(ARGS)

build/native/build.ninja: $(VENV)/dev
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake -S . -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release \
	  -DLEGATO_TESTS=ON -DLEGATO_PYTHON=OFF

native-test: build/native/build.ninja ## build and run the C++ tests; no weak symbols in the ISA objects
	$(BIN)/ninja -C build/native
	$(BIN)/python tools/check_isa_objects.py build/native
	$(BIN)/ctest --test-dir build/native --output-on-failure

sanitize: $(VENV)/dev ## the C++ tests under ASan + UBSan, then under TSan
	for kind in address thread; do \
	  PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake -S . -B build/$$kind -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	    -DLEGATO_TESTS=ON -DLEGATO_PYTHON=OFF -DLEGATO_SANITIZE=$$kind && \
	  $(BIN)/ninja -C build/$$kind && \
	  $(BIN)/ctest --test-dir build/$$kind --output-on-failure || exit 1; \
	done

emulate: build/native/build.ninja ## the C++ tests under qemu: x86-64 without AVX, with AVX2 only, and 64-bit ARM
	$(BIN)/ninja -C build/native
	PATH="$(abspath $(BIN)):$$PATH" tools/emulate.sh build/native

size: $(VENV)/bin/python ## lines and tokens per package
	$(BIN)/python tools/size.py

clean: ## remove the virtual environment and build folders
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	@$(PYTHON) tools/check_system.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip uninstall --quiet --yes setuptools  # older Pythons put it there, and nothing here needs it

# The development tools include the build requirements, so that later builds are incremental.
$(VENV)/dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

$(VENV)/installed: $(SOURCES) | $(VENV)/bin/python
	@$(PYTHON) tools/check_system.py
	@echo "building Legato (some minutes the first time)"
	@if [ -e $(VENV)/dev ]; then \
	  PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation -C build-dir=build/wheel .; \
	else \
	  $(BIN)/python -m pip install --quiet .; \
	fi
	@touch $@
