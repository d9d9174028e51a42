# `make demo` and `make test` set up everything they need on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint bench clean

help:
	@echo "make demo       set up .venv and run the main job"
	@echo "make test       set up .venv and run the tests (a few minutes, offline)"
	@echo "make test-slow  the tests that take longer"
	@echo "make lint       ruff and mypy"
	@echo "make bench      the benchmarks: ratios measured in one run"
	@echo "make clean      remove .venv, runs/ and caches"

# The stamp is newer than what it was made from, so a second run starts at once.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "llmprobe needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/llmprobe variance builtin --at heads --query fixed --lengths 16..4096 --overwrite
	@echo "The figure: runs/variance-builtin/variance.png"

test: $(READY)
	$(BIN)/python -m pytest -n auto

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/moments.py
	$(BIN)/python benchmarks/capture.py

clean:
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
