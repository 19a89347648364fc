# Two verbs do everything on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
# make test VENV=.venv-2.5 TORCH=2.5.1 TORCHVISION=0.20.1 runs the tests on another torch.
TORCH ?= 2.13.0
TORCHVISION ?= 0.28.0
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LAGGARD := $(CURDIR)/tests/accelerator/laggard
# More than two at a time gain nothing on two cores: four took 13m45 in place of 13m15.
TESTS := $(BIN)/pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: demo test slow system check docs format mutants clean \
	bench bench-accelerator bench-branches bench-claims bench-edits bench-findings bench-gpu bench-launches bench-levers bench-loader bench-networks bench-overhead bench-priors bench-proofs bench-ranks bench-rivals bench-sweep

# Torch's thousands of files are compiled on one core while the other installs the rest.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile "torch==$(TORCH)" "torchvision==$(TORCHVISION)"
	$(BIN)/python -m compileall -qq $(VENV)/lib/python*/site-packages & \
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]" && wait
	touch $@

demo: $(READY)
	$(BIN)/hasten tune --budget 4m --plan .demo/hasten.toml examples/image_pipeline.py --batch-size 16

test: $(READY) system
	$(TESTS) -m "not measures and not slow"
	@if command -v g++ >/dev/null; then \
		$(BIN)/python tests/accelerator/laggard/laggard.py && \
		PYTHONPATH=$(LAGGARD) $(TESTS) -m "not measures and not slow" tests/accelerator; \
	elif [ -n "$$CI" ]; then echo "tests/accelerator needs g++"; exit 1; \
	else echo "Skipped tests/accelerator: there is no g++."; fi
	$(BIN)/pytest -q -m "measures and not slow" --reruns 1 -rR tests  # a machine with neighbours gets a second look

# Whole trainings: each script of the corpus, each data engine, tunings from end to end; and what is
# timed on the accelerator of the tests.
slow: $(READY) system
	$(TESTS) -m "slow and not measures" tests
	$(BIN)/pytest -q -m "measures and slow" --reruns 1 tests
	$(BIN)/python tests/accelerator/laggard/laggard.py
	PYTHONPATH=$(LAGGARD) $(TESTS) -m "slow and not measures" tests/accelerator
	PYTHONPATH=$(LAGGARD) $(BIN)/pytest -q -m measures --reruns 1 tests/accelerator

# What tests need of the system: a browser for the HTML report, a compiler, an allocator to preload,
# another user, a Slurm to submit jobs to. A test whose part is missing is skipped, and fails where CI is set.
PROGRAMS := chromium:chromium g++:g++ setpriv:util-linux /usr/bin/python3:python3 slurmd:slurm-wlm munged:munge ip:iproute2
system:
	@need=; for pair in $(PROGRAMS); do command -v $${pair%%:*} >/dev/null || need="$$need $${pair#*:}"; done; \
	ldconfig -p | grep -q libjemalloc || need="$$need libjemalloc2"; \
	for name in chromium-browser google-chrome; do command -v $$name >/dev/null && need=$${need# chromium}; done; \
	if [ -n "$$need" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		timeout 300 sh -c "apt-get -qq update && apt-get -qqy install --no-install-recommends $$need" \
			</dev/null >/dev/null || echo "These packages could not be installed:$$need"; \
	fi; true

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Faults planted in the source, which the tests must notice. ARGUMENTS="NAME..." runs some of them.
mutants: $(READY)
	$(BIN)/python tests/mutants/run.py --jobs $(JOBS) $(ARGUMENTS)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html; searching needs a server: $(BIN)/mkdocs serve"

# Each writes its page and its figures into benchmarks/; pass options by ARGUMENTS="...". They
# measure times: leave the machine alone meanwhile.
bench:
	@echo "make bench-claims CHECKOUTS=folder       what tune says beside what run gives; benchmarks/PROTOCOL.md says which scripts"
	@echo "make bench-launches CHECKOUTS=folder     how much two launches of one script differ"
	@echo "make bench-findings CHECKOUTS=folder     findings of public scripts, to be held against their source"
	@echo "make bench-rivals CHECKOUTS=folder       the same scripts beside other launchers"
	@echo "make bench-gpu CHECKOUTS=folder          public scripts on the GPU of this machine"
	@echo "make bench-proofs CHECKOUTS=folder       what may be done with datasets of public repositories; in any company"
	@echo "make bench-accelerator                   the search where the optimum is known, on the accelerator of the tests"
	@echo "make bench-levers                        levers one by one on scripts that were planted for them"
	@echo "make bench-loader                        the data engine on made data"
	@echo "make bench-ranks                         each batch in several processes, on six models"
	@echo "make bench-networks                      each batch shared over a network, beside what one writes by hand; as root"
	@echo "make bench-branches                      independent parts of a training side by side, by hand"
	@echo "make bench-sweep                         the search beside all combinations"
	@echo "make bench-overhead                      hasten run beside settings written by hand"
	@echo "make bench-edits                         hasten run beside the edits that the report prints"
	@echo "make bench-priors                        the priors of the search, from the figures above"
	@echo 'All but the last take ARGUMENTS="...", such as ARGUMENTS="--help".'

bench-claims bench-findings bench-launches bench-proofs bench-rivals: $(READY)
	@test -n "$(CHECKOUTS)" || { echo "Say where the public scripts are: make $@ CHECKOUTS=folder (see benchmarks/PROTOCOL.md)."; exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check six  # super resolution imports it
	PYTHONPATH=$(CURDIR)/tests/torchvision_ops $(BIN)/python benchmarks/$(subst -,_,$(@:bench-%=%)).py $(CHECKOUTS) $(ARGUMENTS)

bench-accelerator: $(READY) system
	$(BIN)/python tests/accelerator/laggard/laggard.py
	PYTHONPATH=$(LAGGARD) $(BIN)/python benchmarks/accelerator.py $(ARGUMENTS)

bench-gpu: $(READY)
	@test -n "$(CHECKOUTS)" || { echo "Say where the public scripts are: make $@ CHECKOUTS=folder (see benchmarks/PROTOCOL.md)."; exit 2; }
	$(BIN)/python benchmarks/rivals.py $(CHECKOUTS) --gpu $(ARGUMENTS)

bench-branches bench-edits bench-levers bench-loader bench-networks bench-overhead bench-priors bench-ranks bench-sweep: $(READY)
	PYTHONPATH=$(CURDIR)/tests/torchvision_ops $(BIN)/python benchmarks/$(@:bench-%=%).py $(ARGUMENTS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .demo
