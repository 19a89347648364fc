# Two verbs do everything on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs_ready

.PHONY: demo test browser check docs format clean \
	bench bench-edits bench-findings bench-first-light bench-loader bench-overhead bench-priors bench-rivals bench-sweep

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

demo: $(READY)
	$(BIN)/upshift tune --budget 4m --plan .demo/upshift.toml examples/image_pipeline.py --batch-size 16

test: $(READY) browser
	$(BIN)/pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not measures"
	$(BIN)/pytest -q -m measures tests

# The HTML report is also tested in a real browser. Where none can be had, those tests are skipped.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		timeout 120 sh -c "apt-get -qq update && apt-get -qqy install --no-install-recommends chromium" \
			</dev/null >/dev/null 2>&1; \
	fi; true

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html; searching needs a server: $(BIN)/mkdocs serve"

# Each writes its page and its figures into benchmarks/; pass options by ARGUMENTS="...". They
# measure times: leave the machine alone meanwhile.
bench:
	@echo "make bench-first-light CHECKOUTS=folder  public scripts; benchmarks/first_light.py says which"
	@echo "make bench-findings CHECKOUTS=folder     findings of public scripts, to be held against their source"
	@echo "make bench-rivals CHECKOUTS=folder       the same scripts beside other launchers"
	@echo "make bench-loader                        the data engine on made data"
	@echo "make bench-sweep                         the search beside all combinations"
	@echo "make bench-overhead                      upshift run beside settings written by hand"
	@echo "make bench-edits                         upshift run beside the edits that the report prints"
	@echo "make bench-priors                        the priors of the search, from the figures above"
	@echo 'All but the last take ARGUMENTS="...", such as ARGUMENTS="--help".'

bench-findings bench-first-light bench-rivals: $(READY)
	@test -n "$(CHECKOUTS)" || { echo "Say where the public scripts are: make $@ CHECKOUTS=folder (see benchmarks/first_light.py)."; exit 2; }
	$(BIN)/python benchmarks/$(subst -,_,$(@:bench-%=%)).py $(CHECKOUTS) $(ARGUMENTS)

bench-edits bench-loader bench-overhead bench-priors bench-sweep: $(READY)
	$(BIN)/python benchmarks/$(@:bench-%=%).py $(ARGUMENTS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .demo
