# make demo: set up, sweep a small model, write a report.    make test: set up, run every check and test.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test env

demo: env
	$(BIN)/dsnb sweep params/quickstart.yaml
	$(BIN)/dsnb report outputs/quickstart

test: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -m "not alone" -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -q -m alone

env: .venv/.installed

# The stamp is newer than what it was made from, so a second call installs nothing.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "dsnb needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,lab,test]'
	touch $@
