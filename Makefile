# make demo, make explore, make test: each sets up .venv first if need be.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(wildcard src/liesparse/posterior/kernels/*.c)

.PHONY: install demo explore test test-whole test-parts lint clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt hatch_build.py $(KERNELS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[web,dev]'
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

# Two halves at a time, one thread each: twice as fast on two cores. The browser's tests make them equally long.
test: lint
	OMP_NUM_THREADS=1 $(MAKE) --no-print-directory --jobs 2 --output-sync=target test-whole test-parts

test-whole:
	$(BIN)/pytest tests/e2e --ignore tests/e2e/explorer

test-parts:
	$(BIN)/pytest tests/laws tests/oracle tests/unit tests/e2e/explorer -p no:cacheprovider

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
