# make help lists the targets. Everything is made inside this folder: .venv, build, dist, .cuda.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
# A GoogleTest source tree, for machines without a package of it.
GTEST_SOURCE_DIR ?=
PYTEST_ARGS ?=
CTEST_ARGS ?=

BIN := $(CURDIR)/$(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
CMAKE := $(BIN)/cmake
CTEST := $(BIN)/ctest --no-tests=error --output-on-failure --parallel $(JOBS) $(CTEST_ARGS)

export PATH := $(BIN):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

# nvcc of the machine, else the one that `make cuda-toolchain` installed.
CUDA_DIR := $(CURDIR)/.cuda
ifeq ($(shell command -v nvcc),)
ifneq ($(wildcard $(CUDA_DIR)/nvidia/cu13/bin/nvcc),)
export CUDACXX ?= $(CUDA_DIR)/nvidia/cu13/bin/nvcc
endif
endif

# GPU targets: this machine's. Where there is no GPU, `make cpp` compiles the kernels for one and the
# package installed here goes without. `make wheel` builds them all.
HAS_GPU := $(wildcard /dev/nvidiactl)
CUDA_ARCHITECTURES ?= $(if $(HAS_GPU),native,90a-real)
PACKAGE_CUDA ?= $(if $(HAS_GPU),AUTO,OFF)

HEADERS := $(shell find include src -name '*.hpp')
PIP_INSTALL := $(PIP) install --no-build-isolation --no-deps \
  --config-settings=cmake.define.MOE_EP_CUDA=$(PACKAGE_CUDA) \
  --config-settings=cmake.define.MOE_EP_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)
PACKAGE_FILES := CMakeLists.txt pyproject.toml $(HEADERS) \
  $(shell find bindings cmake src python -type f -not -name '*.pyc')

CMAKE_FLAGS := -G Ninja -DMOE_EP_WERROR=ON -DMOE_EP_BUILD_TESTS=ON \
  -DMOE_EP_GTEST_SOURCE_DIR=$(GTEST_SOURCE_DIR) \
  -DMOE_EP_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)
SANITIZE_FLAGS := -DCMAKE_BUILD_TYPE=Debug -DBUILD_SHARED_LIBS=OFF -DMOE_EP_CUDA=OFF

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

.PHONY: help
help:
	@echo 'make demo            install into $(VENV) and run moe-ep demo'
	@echo 'make test            all checks: lint, C++ tests, sanitizers, headers, Python tests'
	@echo 'make lint            style, types, layers'
	@echo 'make cpp             C++ tests, Release'
	@echo 'make tsan asan       C++ tests with ThreadSanitizer; with Address- and UBSanitizer'
	@echo 'make headers         compile each header alone'
	@echo 'make python          install the package and run the Python tests'
	@echo 'make develop         install the package in editable mode (again after a change of C++)'
	@echo 'make stub            regenerate python/moe_ep/_core.pyi'
	@echo 'make format          rewrite the sources in the project style'
	@echo 'make wheel           build a wheel in dist/'
	@echo 'make cuda-toolchain  install nvcc from PyPI in .cuda/'
	@echo 'make clean           remove what was built; distclean: the environment too'

.PHONY: demo
demo: $(VENV)/.package
	$(BIN)/moe-ep demo

# pytest stands last: its closing line is the one to read.
.PHONY: test
test: lint cpp tsan asan headers python

# ---- environment

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit("moe_ep needs Python 3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: requirements/build.txt requirements/run.txt requirements/constraints.txt \
  | $(VENV)/.created
	@echo '== installing requirements/build.txt and run.txt'
	$(PIP) install -r requirements/build.txt -r requirements/run.txt
	@touch $@

$(VENV)/.dev: $(wildcard requirements/*.txt) $(VENV)/.run
	@echo '== installing requirements/dev.txt'
	$(PIP) install -r requirements/dev.txt
	@touch $@

$(VENV)/.package: $(PACKAGE_FILES) $(VENV)/.run
	@echo '== installing the package'
	$(PIP_INSTALL) --force-reinstall .
	@touch $@

.PHONY: develop
develop: $(VENV)/.dev
	$(PIP_INSTALL) --editable .
	@touch $(VENV)/.package

.PHONY: cuda-toolchain
cuda-toolchain: $(VENV)/.created
	$(PIP) install --no-deps --target $(CUDA_DIR) -r requirements/cuda.txt
	ln -sfn lib $(CUDA_DIR)/nvidia/cu13/lib64
	ln -sf libcudart.so.13 $(CUDA_DIR)/nvidia/cu13/lib/libcudart.so

# ---- checks

.PHONY: lint
lint: $(VENV)/.dev
	@echo '== lint'
	@if git rev-parse --git-dir > /dev/null 2>&1; then $(BIN)/pre-commit run --all-files; \
	else echo 'skipped: this is no git checkout'; fi

.PHONY: gtest
gtest:
	@GTEST_SOURCE_DIR='$(GTEST_SOURCE_DIR)' tools/install_gtest.sh

.PHONY: cpp
cpp: $(VENV)/.dev gtest
	@echo '== C++ tests, Release'
	$(CMAKE) -S . -B build/release $(CMAKE_FLAGS) \
	  -DMOE_EP_BUILD_EXAMPLES=ON -DMOE_EP_BUILD_BENCHMARKS=ON
	$(CMAKE) --build build/release
	$(CTEST) --test-dir build/release

# Not among processes, which it cannot follow, nor what one thread does.
.PHONY: tsan
tsan: $(VENV)/.dev gtest
	@echo '== C++ tests, ThreadSanitizer'
	$(CMAKE) -S . -B build/tsan $(CMAKE_FLAGS) $(SANITIZE_FLAGS) -DMOE_EP_SANITIZE=thread
	$(CMAKE) --build build/tsan
	$(CTEST) --test-dir build/tsan --exclude-regex '[Pp]rocesses|EveryBitPattern|KernelsTest'

.PHONY: asan
asan: $(VENV)/.dev gtest
	@echo '== C++ tests, AddressSanitizer and UndefinedBehaviorSanitizer'
	$(CMAKE) -S . -B build/asan $(CMAKE_FLAGS) $(SANITIZE_FLAGS) -DMOE_EP_SANITIZE=address,undefined
	$(CMAKE) --build build/asan
	$(CTEST) --test-dir build/asan

.PHONY: headers
headers: build/.headers

build/.headers: $(HEADERS) tools/check_headers.py | $(VENV)/.dev
	@echo '== each header alone'
	@mkdir -p build
	$(BIN)/python tools/check_headers.py --jobs $(JOBS)
	@touch $@

.PHONY: python
python: $(VENV)/.dev $(VENV)/.package
	@echo '== Python tests'
	$(BIN)/pytest $(PYTEST_ARGS)

# ---- products

.PHONY: wheel
wheel: $(VENV)/.run
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .
	@ls dist

.PHONY: stub
stub: $(VENV)/.package
	$(BIN)/python -m nanobind.stubgen --module moe_ep._core --output-file python/moe_ep/_core.pyi

.PHONY: format
format: $(VENV)/.dev
	tools/format.sh

.PHONY: clean
clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f $(VENV)/.package

.PHONY: distclean
distclean: clean
	rm -rf $(VENV) .cuda
