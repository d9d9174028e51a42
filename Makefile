# `make demo` and `make test` set up everything they need on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PEERS := .venv-peers/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-thorough test-slow attack lint bench bench-full bench-check tables figures desk clean

help:
	@echo "make demo         set up .venv and run the main job"
	@echo "make test         set up .venv and run the tests (a few minutes, offline)"
	@echo "make test DEVICE=cuda    the suites that depend on the device, on a GPU (docs/gpu.md)"
	@echo "make test-thorough    more cases of the same laws (a few minutes; CI runs them too)"
	@echo "make test-slow    the tests that take longer"
	@echo "make attack       generated faults and forgeries (minutes; LLMPROBE_ATTACK_CASES, _SECONDS, _SEED)"
	@echo "make lint         ruff and mypy"
	@echo "make bench        against plain hooks, nnsight and TransformerLens, in one run (half an hour)"
	@echo "make bench DEVICE=cuda   a GPU against the CPU: equal numbers, time, waits"
	@echo "make bench-full   the same with longer prompts (more than an hour)"
	@echo "make bench-check  has a ratio lost 20 % since benchmarks/baseline.json?"
	@echo "make tables       write the tables of the documents from figures/ and benchmarks/"
	@echo "make figures      all recipes at their quick scale, into runs/figures (minutes, offline)"
	@echo "make desk         the trainings behind figures/ (hours on 2 cores; resumes if stopped)"
	@echo "make clean        remove .venv, runs/ and caches"

# The stamp is newer than what it was made from, so a second run starts at once.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "llmprobe needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

DEMO := runs/demo
demo: $(READY)
	$(BIN)/llmprobe variance builtin --at heads --query fixed --lengths 16..4096 --output $(DEMO) --overwrite
	$(BIN)/llmprobe report $(DEMO) --output $(DEMO)/report.html --overwrite
	@echo "The figure: $(DEMO)/variance.png. The page to explore: $(DEMO)/report.html"

# DEVICE=cuda runs the suites of captures, edits, probes and the lab there; DEVICE=sim on the
# simulated device of the tests.
test: $(READY)
	LLMPROBE_TEST_DEVICE=$(DEVICE) $(BIN)/python -m pytest $(if $(DEVICE),-m "not slow" $(ON_DEVICE),-n auto --dist worksteal)

ON_DEVICE := tests/base tests/capture tests/probes tests/synthetic tests/test_simulated.py tests/test_on_device.py

test-thorough: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal -m "thorough and not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# Cases of each class, seconds at most for each class, and which cases.
attack: export LLMPROBE_ATTACK_CASES ?= 1000
attack: export LLMPROBE_ATTACK_SECONDS ?= 300
attack: export LLMPROBE_ATTACK_SEED ?= 0
attack: $(READY)
	$(BIN)/python -m pytest -s -m slow tests/test_attack.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The peers have their own environment: nothing here depends on them.
# SMOLLM2=FILE.gguf measures that model in place of random weights of its shape.
$(PEERS): pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[gguf]' -r benchmarks/requirements.txt
	touch $@

BENCH := .venv-peers/bin/python benchmarks/run.py $(if $(SMOLLM2),--smollm2 $(SMOLLM2))

# DEVICE=cuda compares that device with the CPU instead, without the peers. On the simulated device
# times say nothing, so short prompts do.
ifdef DEVICE
bench: $(READY)
	$(BIN)/python benchmarks/device.py --device $(DEVICE) $(if $(filter sim%,$(DEVICE)),--lengths 16..64 --prompts 8)
else
bench: $(PEERS)
	$(BENCH)
endif

bench-full: $(PEERS)
	$(BENCH) --full

bench-check: $(PEERS)
	-$(BENCH)
	.venv-peers/bin/python benchmarks/check.py runs/bench/bench.json

tables: $(READY)
	$(BIN)/python docs/tables

RECIPES := proposition_1 figure_1_llm_variance figure_2_feature_distributions \
	figure_3_global_shift figure_4_attention_weights head_decay_map table_argmax \
	table_dictionary table_ablation set_complement_theory set_complement_search othello_length \
	train_builtin_model does_it_hurt what_helps norm_search anchor \
	why_larger_sets_fail norm_place_decoders itransformer \
	role_of_sparsity not_robustly attention_bias_calibration xpos \
	length_is_a_domain t2r reguformer differential normalized leaderboard

figures: $(READY)
	set -e; for recipe in $(RECIPES); do \
		echo "== $$recipe"; $(BIN)/python recipes/$$recipe.py --scale quick --output runs/figures; \
	done

RECIPE := $(BIN)/python recipes

# Not here is what needs a model of the hub (figure_1_llm_variance, head_decay_map) or novels
# (train_builtin_model).
desk: $(READY)
	$(RECIPE)/table_argmax.py
	$(RECIPE)/table_argmax.py --schedule constant
	$(RECIPE)/table_dictionary.py
	$(RECIPE)/table_ablation.py
	$(RECIPE)/figure_2_feature_distributions.py
	$(RECIPE)/figure_3_global_shift.py
	$(RECIPE)/figure_4_attention_weights.py
	$(RECIPE)/proposition_1.py
	$(RECIPE)/set_complement_theory.py
	$(RECIPE)/set_complement_search.py
	$(RECIPE)/set_complement_search.py --network attention
	$(RECIPE)/othello_length.py
	$(RECIPE)/othello_length.py --schedule cosine
	$(RECIPE)/norm_place_decoders.py
	$(RECIPE)/norm_place_decoders.py --task othello
	$(RECIPE)/itransformer.py
	$(RECIPE)/leaderboard.py --scale desk
	$(RECIPE)/norm_search.py
	$(RECIPE)/norm_search.py --task dictionary
	for task in argmax dictionary; do for part in main projected residual; do \
		$(RECIPE)/anchor.py --task $$task --part $$part || exit 1; done; \
		$(RECIPE)/why_larger_sets_fail.py --task $$task --trained runs/anchor_$${task}_main/desk || exit 1; done

clean:
	rm -rf .venv .venv-peers runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
