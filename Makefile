# make demo   a fresh machine -> a trained LDM and its PreLN twin, compared, with pictures
# make test   the whole proof: lint, format, types, tests, README blocks
# make help   every target

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo

.DEFAULT_GOAL := help
.PHONY: help demo test lint format types browser unit reliability clean

help:  ## Show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(BIN)/depth-memory: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plot]'
	@touch $@

$(BIN)/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(BIN)/depth-memory $@

demo: $(BIN)/depth-memory  ## Train LDM and PreLN on the embedded corpus, compare, sample, inspect
	$(BIN)/depth-memory train demo --stream preln --out $(DEMO)/preln
	$(BIN)/depth-memory train demo --stream ldm --out $(DEMO)/ldm
	$(BIN)/depth-memory evaluate $(DEMO)/preln $(DEMO)/ldm --figure $(DEMO)/comparison.png
	$(BIN)/depth-memory generate $(DEMO)/ldm --prompt "The old house" --tokens 60 --seed 1
	$(BIN)/depth-memory inspect $(DEMO)/ldm --out $(DEMO)/inspect

lint: $(BIN)/.dev  ## Lint
	$(BIN)/ruff check .

format: $(BIN)/.dev  ## Check the format
	$(BIN)/ruff format --check .

types: $(BIN)/.dev  ## Check the types
	$(BIN)/ty check

browser:
	@(command -v chromium || command -v chromium-browser || command -v google-chrome) > /dev/null \
	  && command -v chromedriver > /dev/null || \
	  { echo "chromium and chromedriver: got none; allowed: apt-get install chromium chromium-driver"; exit 1; }

unit: $(BIN)/.dev browser  ## Run the tests, two at a time
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test: lint format types unit  ## All of the above

reliability: $(BIN)/.dev  ## Kill training and data preparation 50 times, and compare to the bit
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability --kills 50 --out results/reliability-cpu.json

clean:  ## Remove the environment and the demo
	rm -rf $(VENV) $(DEMO)
