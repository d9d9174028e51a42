# `make demo` and `make test` set up everything they need on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint bench desk clean

help:
	@echo "make demo       set up .venv and run the main job"
	@echo "make test       set up .venv and run the tests (a few minutes, offline)"
	@echo "make test-slow  the tests that take longer"
	@echo "make lint       ruff and mypy"
	@echo "make bench      the benchmarks: ratios measured in one run"
	@echo "make desk       train the lab's models of the README (hours on 2 cores; goes on if stopped)"
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
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/games.py

TRAIN := $(BIN)/llmprobe train-synthetic --preset desk

desk: $(READY)
	$(TRAIN) --schedule constant --output runs/argmax_constant
	$(TRAIN) --variants baseline,layernorm,baseline+adaptive --output runs/argmax_cosine
	$(TRAIN) --variants baseline,standardize,rmsnorm --seeds 16 --output runs/argmax_norms
	$(TRAIN) --variants baseline,layernorm,headnorm --seeds 16 --heads 4 --output runs/argmax_heads
	$(TRAIN) --task dictionary --output runs/dictionary
	for run in argmax_constant argmax_cosine argmax_norms argmax_heads dictionary; do \
		mkdir -p figures/$$run && cp runs/$$run/*.json runs/$$run/*.npz runs/$$run/*.p?? figures/$$run; \
		rm figures/$$run/configuration.json; \
		$(BIN)/llmprobe plot figures/$$run --kind shift; \
	done

clean:
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
