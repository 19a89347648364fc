# Two verbs do everything on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench bench-loader format clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

demo: $(READY)
	$(BIN)/upshift tune --budget 180s --plan .demo/upshift.toml examples/image_pipeline.py

test: $(READY)
	$(BIN)/pytest -q

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)
	@test -n "$(CHECKOUTS)" || { echo "Say where the public scripts are: make bench CHECKOUTS=folder (see benchmarks/first_light.py)."; exit 2; }
	$(BIN)/python benchmarks/first_light.py $(CHECKOUTS)

bench-loader: $(READY)
	$(BIN)/python benchmarks/loader.py $(ARGUMENTS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .demo
