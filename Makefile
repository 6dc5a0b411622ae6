# Clew's tasks; `make help` lists them. They need make, Python 3.11 or newer, and pip's package index; the tests npm's too.

.DEFAULT_GOAL := help
.NOTPARALLEL:

# What is started here sees this checkout and its environments, and no settings of the shell; and it keeps the bytecode
# that it compiles, because the tests start the command hundreds of times.
unexport CLEW_DB PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH

# PYTHON=… chooses the interpreter. Otherwise it is python3 if that is new enough, else the newest of its kind.
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
CHOSEN := $(shell for python in $(CANDIDATES); do \
    version=$$("$$python" -c 'import sys; sys.version_info >= (3, 11) and print("%d.%d.%d" % sys.version_info[:3])' \
        2>/dev/null) && [ -n "$$version" ] && echo "$$python $$version" && break; done)
INTERPRETER := $(word 1,$(CHOSEN))
VERSION := $(word 2,$(CHOSEN))

VENV_PYTHON := .venv/bin/python
PIP := $(VENV_PYTHON) -m pip --disable-pip-version-check
INSTALL := install --quiet --quiet --no-compile --constraint constraints.txt
# Two more than there are cores: many tests wait for a disk, a server or a process. PROCESSES=… chooses another number.
PROCESSES ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
PYTEST := -m pytest --numprocesses $(PROCESSES)

# The Pythons that the wheel is tested on, as far as they are there.
OWN := $(basename $(VERSION))
PYTHONS := $(sort 3.11 3.12 3.13 $(OWN))
NEWEST := $(lastword $(PYTHONS))

# The stamps name the version, so that another PYTHON gets another environment.
RUNTIME := .venv/.runtime-$(VERSION)
TOOLS := .venv/.tools-$(VERSION)

.PHONY: help
help: ## List the tasks
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: $(RUNTIME) ## Show what Clew does, on a temporary database
	@.venv/bin/clew demo

# What the tests need is installed next to the tools and the type checks, which take one core, and longer. On the other
# Pythons the wheel does everything that the front door offers; the command is also tested on the newest of them. `make
# acceptance` runs all on each.
.PHONY: test
test: $(RUNTIME) ## Run everything: linters, types, imports, the wheel on each Python, tests at a tenth of the scale
	@$(MAKE) --no-print-directory servers & servers=$$!; $(MAKE) --no-print-directory wheels & wheels=$$!; \
	$(MAKE) --no-print-directory check; checked=$$?; \
	wait $$servers && wait $$wheels && exit $$checked
	@$(MAKE) --no-print-directory tested-wheels ON_OWN=tests/acceptance/test_command_line_bad_input.py \
	    ON_NEWEST=tests/acceptance/test_command_line.py
	@echo "All other tests, on Python $(VERSION):"
	@CLEW_SCALE=0.1 $(VENV_PYTHON) $(PYTEST) --ignore tests/acceptance

.PHONY: check
check: $(TOOLS) ## Run the linters and the type checks only
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy
	.venv/bin/lint-imports --no-logo

.PHONY: servers
servers: $(RUNTIME) ## Install the servers that the tests talk to, into .venv-servers
	@$(VENV_PYTHON) -m tests.servers.installation

.PHONY: wheels
wheels: $(RUNTIME)
	@rm -rf dist
	@$(VENV_PYTHON) -m hatchling build --target wheel
	@set -e; \
	find_python() { \
	    pyenv_python=$$(pyenv prefix "$$(pyenv whence "python$$1" 2>/dev/null | tail -n 1)" 2>/dev/null || :)/bin/python$$1; \
	    for found in $(VENV_PYTHON) "python$$1" "$$pyenv_python"; do \
	        if "$$found" -c 'import sqlite3, sys, venv; sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$$1" \
	            2>/dev/null; then echo "$$found"; return; fi; \
	    done; \
	}; \
	wheel=$$(echo dist/*.whl); \
	for version in $(PYTHONS); do \
	    python=$$(find_python "$$version"); \
	    env=.venv-wheel/$$version; \
	    if [ -z "$$python" ]; then rm -rf "$$env"; continue; fi; \
	    if "$$env/bin/python" -c '' 2>/dev/null \
	        && [ -z "$$(find pyproject.toml constraints.txt -newer "$$env/.ready" 2>&1)" ]; then \
	        $(PIP) --python "$$env" $(INSTALL) --no-deps --force-reinstall "$$wheel"; \
	    else \
	        echo "Setting up $$env for the wheel"; \
	        rm -rf "$$env"; \
	        "$$python" -m venv --without-pip "$$env"; \
	        $(PIP) --python "$$env" $(INSTALL) "$$wheel[test]"; \
	        touch "$$env/.ready"; \
	    fi; \
	done

.PHONY: acceptance
acceptance: servers wheels tested-wheels ## Run the acceptance tests against the built wheel, on each Python that is there

.PHONY: tested-wheels
tested-wheels: $(TOOLS)
	@set -e; tested=; missing=; \
	for version in $(PYTHONS); do \
	    env=.venv-wheel/$$version; \
	    if [ ! -e "$$env/.ready" ]; then missing="$$missing $$version"; continue; fi; \
	    echo "Acceptance tests of the wheel, on Python $$version:"; \
	    left=; \
	    case "$$version" in \
	        $(OWN)) ;; \
	        $(NEWEST)) left="$(addprefix --ignore ,$(ON_OWN))" ;; \
	        *) left="$(addprefix --ignore ,$(ON_OWN) $(ON_NEWEST))" ;; \
	    esac; \
	    CLEW_SCALE=0.1 CLEW_EXPECT_WHEEL=1 "$$env/bin/python" $(PYTEST) tests/acceptance $$left; \
	    tested="$$tested $$version"; \
	done; \
	echo "The wheel passed on Python$$tested. Not on this machine:$${missing:- none}."

.PHONY: docs
docs: $(RUNTIME) ## Write docs/reference.md from the docstrings
	@$(VENV_PYTHON) -m docs.make_reference

.PHONY: generate
generate: $(TOOLS) ## Generate the sync face from the asyncio face, and the lists of public names
	@$(VENV_PYTHON) tools/sync_twin.py
	@$(VENV_PYTHON) tools/public_names.py

.PHONY: bench
bench: $(TOOLS) ## Print the figures of the benchmarks next to their budgets
	@$(VENV_PYTHON) -m benchmarks

.PHONY: soak
soak: $(TOOLS) servers ## Run all tests at full scale, without a time limit
	@CLEW_SCALE=1 $(VENV_PYTHON) $(PYTEST) --timeout 0

.PHONY: clean
clean: ## Remove the environments, builds and caches
	rm -rf .venv .venv-bench .venv-servers .venv-wheel dist build
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): pyproject.toml constraints.txt
ifeq ($(VERSION),)
	@echo "Clew needs Python 3.11 or newer, and none of these is one: $(CANDIDATES). Install one, or name it: make PYTHON=…" >&2
	@exit 1
else
	@"$(INTERPRETER)" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(INTERPRETER) ($(VERSION)) cannot make environments: it has no ensurepip." \
	        "Install it (Debian, Ubuntu: apt install python3-venv), or name another Python: make PYTHON=…" >&2; exit 1; }
	@echo "Setting up .venv with Python $(VERSION)"
	@[ "$$($(VENV_PYTHON) -c 'import pip, platform; print(platform.python_version())' 2>/dev/null)" = "$(VERSION)" ] \
	    || { rm -rf .venv && "$(INTERPRETER)" -m venv .venv; }
	@$(PIP) $(INSTALL) hatchling
	@$(PIP) $(INSTALL) --no-build-isolation --editable .
	@touch $@
endif

$(TOOLS): $(RUNTIME)
	@echo "Adding the linters and the test tools"
	@$(PIP) $(INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@
