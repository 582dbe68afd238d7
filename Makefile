# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all lint format bench clean

demo: $(READY)
	$(BIN)/stgt demo --out demo --force

test: $(READY)
	$(BIN)/pytest -n 2 --ignore tests/trainer
	$(BIN)/pytest tests/trainer # its own eight processes fill the machine

test-all: $(READY)
	$(BIN)/pytest -n 2 --ignore tests/trainer -m ""
	$(BIN)/pytest tests/trainer -m ""

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
