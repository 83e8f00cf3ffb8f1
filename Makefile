# The commands of this repository; `make help` lists them. Each works on a machine that has nothing but make: what is
# missing is installed first.

SHELL := /bin/sh
.SHELLFLAGS := -euc
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
# ON stops a build at a warning; compilers that this was not built with before may have warnings of their own.
WERROR ?= OFF
VENV := .venv/bin/python
SHAPES ?= 2048x768x128x8 2880x2880x32x4 7168x2048x16x8
# Recursive variables: read when a recipe starts, after the set-up has installed what they look for.
LAUNCHER = $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
CONFIGURE = CXX="$$(scripts/find_cxx.sh)" cmake --log-level=WARNING $(LAUNCHER) \
  -DMEGAMOE_WARNINGS_AS_ERRORS=$(WERROR)
WITH_PYTHON = -DMEGAMOE_BUILD_PYTHON=ON -DPython_EXECUTABLE="$(CURDIR)/$(VENV)" \
  -Dnanobind_DIR="$$($(VENV) -m nanobind --cmake_dir)"
COMPILE = cmake --build --parallel $(JOBS) --preset
CTEST = ctest --output-on-failure --parallel $(JOBS) --preset
# Tables (*.inc) are aligned by hand.
CXX_FILES = git ls-files --cached --others --exclude-standard -- '*.cc' '*.h' '*.c'

.PHONY: run
run: setup ## Build, then run the trained example on four ranks and print one table
	@$(CONFIGURE) --preset release >/dev/null
	@$(COMPILE) release --target megamoe_cli
	build/release/bin/megamoe run examples/tiny_moe/checkpoint --input examples/tiny_moe/captured.safetensors \
	  --scenario all --ranks 4 --transport shm

.PHONY: test
test: build ## Build, then run all C++ and Python tests but the long ones
	@status=0; $(CTEST) release --label-exclude long || status=$$?; \
	  $(VENV) -m pytest || status=$$?; \
	  exit $$status

.PHONY: build
build: setup-python ## Build the release preset: library, tool, tests, Python extension
	@$(CONFIGURE) --preset release $(WITH_PYTHON) >/dev/null
	@$(COMPILE) release

.PHONY: bench
bench: setup ## Measure the kernels, and two model shapes beside the ceilings of this machine
	@$(CONFIGURE) --preset release >/dev/null
	@$(COMPILE) release --target megamoe_cli kernel_bench quant_bench
	build/release/bin/megamoe ceilings
	build/release/bin/kernel_bench
	build/release/bin/quant_bench --benchmark_filter='^read|^(int8_per_token|mx_floor_e4m3|mx_floor_e2m1)/'
	build/release/bin/megamoe bench --shape 2048x768x128x8 --tokens 1,4,16,64,256,1024 --scenario all
	build/release/bin/megamoe bench --shape 2880x2880x32x4 --tokens 1,4,16,64,256,1024 --scenario all

.PHONY: peers
peers: setup-python ## Time the layer beside other libraries' (installs them into .venv-peers)
	@scripts/setup_peers.sh
	@$(CONFIGURE) -S . -B build/peers -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEGAMOE_BUILD_TESTS=OFF \
	  -DMEGAMOE_BUILD_BENCH=OFF $(subst .venv/,.venv-peers/,$(WITH_PYTHON)) >/dev/null
	@cmake --build build/peers --parallel $(JOBS)
	@for shape in $(SHAPES); do \
	  PYTHONPATH=build/peers/python:bench .venv-peers/bin/python -m peers --shape $$shape; \
	done

.PHONY: format
format: setup-python ## Rewrite the C++ sources in the house style
	@$(CXX_FILES) | xargs .venv/bin/clang-format -i

.PHONY: check
check: build ## Check layers, format, documents, symbols, instructions and the installed package
	$(VENV) scripts/check_layers.py
	$(VENV) scripts/check_text.py
	@$(CXX_FILES) | xargs .venv/bin/clang-format --dry-run -Werror
	$(VENV) scripts/check_symbols.py build/release
	$(VENV) scripts/check_disassembly.py build/release
	scripts/check_install.sh build/release

.PHONY: test-long
test-long: build ## Run the long C++ tests too
	@$(CTEST) release

.PHONY: asan ubsan tsan
asan ubsan tsan: setup ## Build the C++ tests under a sanitizer and run them
	@$(CONFIGURE) --preset $@ >/dev/null
	@$(COMPILE) $@
	@$(CTEST) $@ --label-exclude long

.PHONY: tidy
tidy: build ## Run clang-tidy over the sources (slow)
	@scripts/setup.sh --tidy
	@git ls-files -- 'src/*.cc' | grep -v '^src/kernel/isa/' | \
	  xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build/release

.PHONY: setup setup-python
setup: ## Install missing system packages
	@scripts/setup.sh
setup-python: ## Install missing system packages and make .venv
	@scripts/setup.sh --python

.PHONY: help
help: ## List the commands
	@sed -n 's/^\([a-z][a-z -]*\):[^#]*## \(.*\)/\1\t\2/p' Makefile | expand -t 20
