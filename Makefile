PYTHON ?= python

.PHONY: check format lint types spelling test

check: lint types spelling test

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy

spelling:
	$(PYTHON) -m codespell_lib joblib_envs tests experiments README.md CHANGELOG.md

test:
	$(PYTHON) -m pytest
