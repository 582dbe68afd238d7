# `make demo` and `make test` set up what they need in .venv.
PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
READY := .venv/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

.PHONY: demo test test-rest test-release test-all lint format bench soak docs notebook pictures clean

demo: $(DEMO)
	$(BIN)/stgt demo --out demo --force

# These start processes of their own, which fill the machine or must be heard within seconds. Whole trainings, of which
# much is the start of one process after another, are none of them.
WHOLE := $(addprefix %/test_,language_model.py recipes.py routes.py train_command.py train_endings.py train_example.py)
APART := $(filter-out $(WHOLE),$(wildcard tests/trainer/test_*.py))
APART += $(addprefix tests/flower/test_flower_,ray.py example.py deployment.py under_fire.py) tests/study/test_on_ray.py
TOGETHER := -n 2 --dist worksteal $(addprefix --ignore ,$(APART))

test: $(READY)
	$(BIN)/pytest $(TOGETHER)
	$(BIN)/pytest $(APART)

# What `make test` leaves out. Of what is marked release (deployments, browsers, recipes, runs that are killed again and
# again: long, and seldom touched) a share, in turn: K/N is one Nth of the files.
SHARE ?= 0/1
test-rest: $(READY)
	$(BIN)/pytest $(TOGETHER) -m 'thorough or release' --share $(SHARE)
	$(BIN)/pytest $(APART) -m 'thorough or release' --share $(SHARE)

test-release: $(READY)
	$(BIN)/pytest $(TOGETHER) -m release
	$(BIN)/pytest $(APART) -m release
	$(BIN)/python tests/trainer/soak.py --minutes 10

test-all: test test-rest

# What people read: pages, and the docstrings, comments and messages of the code.
PROSE = $(shell find *.md docs src reproductions examples benchmarks -name '*.md' -o -name '*.py' -o -name '*.j2')

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python tests/vocabulary.py
	@$(BIN)/codespell $(PROSE)
	@$(BIN)/proselint check --config tests/proselint.json $(PROSE)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/simulator.py
	$(BIN)/python benchmarks/theory.py
	$(BIN)/python benchmarks/trainer.py

# Eight nodes under random faults, for an hour; the table and all events go to soak/.
MINUTES ?= 60
soak: $(READY)
	$(BIN)/python tests/trainer/soak.py --minutes $(MINUTES) --out soak

# The site, into site/. The variable silences a notice of the theme's authors.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# docs/own_problem.ipynb and docs/theory.ipynb, from the pages of those names.
notebook: $(READY)
	$(BIN)/python docs/notebook.py

# docs/images/drift.gif and docs/images/round.svg.
pictures: $(READY)
	$(BIN)/python docs/drift.py
	$(BIN)/python docs/round.py

$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $(DEMO)

$(READY): $(DEMO)
	$(INSTALL) '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv demo site .pytest_cache .ruff_cache .hypothesis
