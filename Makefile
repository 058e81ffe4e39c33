# make demo: set up, sweep a small model, write a report.    make test: set up, run every check and test.
# make check: set up, run lint, types and the tests that start no process and go through few cases: a minute.
# make docs: set up, build the documentation into docs/_build/html, run its code blocks.
# make example: measure the example in outputs/ again.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
PARALLEL := --dist loadfile --no-loadscope-reorder
# What hundreds of processes import is compiled once, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo check lint test tests docs example env

demo: env
	$(BIN)/dsnb sweep params/quickstart.yaml
	$(BIN)/dsnb report outputs/quickstart

check: lint
	$(PYTEST) -m "not process and not draws" -n 2 $(PARALLEL)

# At once: types take a core 17 s.
test: env
	@$(MAKE) --no-print-directory -j 2 lint tests

# Four workers on two cores: tests that start processes wait for them, and each worker costs seconds of imports.
tests: env
	$(PYTEST) -m "not docs" -n 4 $(PARALLEL)

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: env
	$(BIN)/python -m sphinx -W --keep-going -n -q -j auto docs docs/_build/html
	$(PYTEST) -m docs -n 2 $(PARALLEL)
	@echo docs/_build/html/index.html

example: env
	$(BIN)/python -m docs.make_example

env: .venv/.installed

# The stamp is newer than what it was made from, so a second call installs nothing.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "dsnb needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,lab,torchao,test,docs]'
	touch $@
