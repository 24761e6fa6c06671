# make demo, make explore, make test, make docs: each sets up .venv first if need be.
PYTHON ?= python3
# Bytecode is written on first import, wherever the environment forbids it: importing torch anew takes seconds, a hundred times.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
KERNELS := $(wildcard src/liesparse/posterior/kernels/*.c)
PLATFORMS := linux-x86_64 linux-aarch64 macos-arm64 windows-x86_64
# As many processes as cores, one thread each; a module's tests stay together and share what they train.
# In the order of the folders: the long tests of e2e come first, and the many short ones fill what time is left.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

.PHONY: install demo explore lint test suite test-fast test-portable test-long fuzz sanitize soak docs wheels clean

# Without compiling every module of every package to bytecode: Python does that for the few that are imported.
install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt hatch_build.py $(KERNELS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[web,dev]'
	touch $@

demo: install
	$(BIN)/liesparse demo

explore: install
	$(BIN)/liesparse explore

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Beside each other: the linters and types need one core for about a minute.
test: install
	$(MAKE) --no-print-directory -j2 lint suite

suite: install
	$(PYTEST)

test-fast: install
	$(PYTEST) -m 'not slow and not browser'

# The suite under the arithmetic of other processors; about an hour on two cores.
test-portable: install
	$(BIN)/python tests/portable.py

test-long: install
	OMP_NUM_THREADS=1 $(BIN)/pytest -m long

# Damaged inputs, the kernels with sanitizers, and killed trainings; OPTIONS="--minutes 60 --seed 3" for more and others.
fuzz: install
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/fuzz $(OPTIONS)

sanitize: install
	$(BIN)/python tests/sanitize.py $(OPTIONS)

soak: install
	$(BIN)/python tests/soak.py $(OPTIONS)

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[web,docs]'
	touch $@

# The site, in build/docs; runs the tutorial and the how-tos, and fails on any warning.
docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky -b html docs build/docs
	@echo "Look at build/docs/index.html."

# Wheels with kernels for every platform; that of Linux on x86-64 is tried in an empty environment without a compiler.
wheels: install
	rm -rf dist build/wheel-test
	for platform in $(PLATFORMS); do \
		LIESPARSE_PLATFORM=$$platform $(BIN)/python -m build --wheel --no-isolation --outdir dist . || exit 1; \
	done
	$(PYTHON) -m venv build/wheel-test
	build/wheel-test/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*manylinux*_x86_64.whl
	cd build && env -i PATH=$(abspath build/wheel-test/bin) LIESPARSE_KERNEL=avx2 wheel-test/bin/liesparse doctor
	@echo "Tried: Linux x86-64 here; Linux aarch64 by the suite, under an emulator. Not tried: macOS, Windows."

clean:
	rm -rf $(VENV) build dist docs/generated .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f $(addprefix src/liesparse/posterior/kernels/,*.so *.dylib *.dll)
