# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all lint format bench clean

demo: $(READY)
	$(BIN)/stgt demo --out demo --force

# These start processes of their own, which fill the machine.
FLOWER := $(addprefix tests/flower/test_flower_,ray.py example.py deployment.py)
APART := $(addprefix --ignore ,tests/trainer $(FLOWER))

test: $(READY)
	$(BIN)/pytest -n 2 $(APART)
	$(BIN)/pytest tests/trainer
	$(BIN)/pytest $(FLOWER)

test-all: $(READY)
	$(BIN)/pytest -n 2 $(APART) -m ""
	$(BIN)/pytest tests/trainer -m ""
	$(BIN)/pytest $(FLOWER) -m ""

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/trainer.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv demo .pytest_cache .ruff_cache .hypothesis
