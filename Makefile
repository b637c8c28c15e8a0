# Tally's commands. `make` lists them. Each target sets up what it needs: a virtual environment and the npm tools.

PYTHON ?= python3
PORT ?= 8080
VENV := .venv
PY := $(VENV)/bin/python
LOCK := $(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-annotate --custom-compile-command "make lock"
PYTEST := $(PY) -m pytest --numprocesses auto --dist worksteal
UV := VIRTUAL_ENV="$(CURDIR)/$(VENV)" $(VENV)/bin/uv
# With ENGINE=dynamodb-local, `make dev` and the tests of `make test` that need a store run on AWS's DynamoDB Local.
export ENGINE
ENGINE_TARGET := $(if $(ENGINE),engine)
ifneq ($(filter-out dynamodb-local,$(ENGINE)),)
$(error tally: ENGINE=$(ENGINE) is not known: give dynamodb-local, or leave it out for the embedded engine)
endif
DEV_LOCK := tally/dev/requirements.txt
LOCKS := lambdas/requirements.txt $(DEV_LOCK) requirements.txt $(addsuffix /requirements.txt,tests tests/emulator tests/other_tools)
CDK := node_modules/.bin/cdk
NPM := npm ci --no-audit --no-fund --loglevel=error
export JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION := 20
export AWS_CDK_DISABLE_CLI_TELEMETRY := true
# Let Python write bytecode, which later processes read. Else each test worker compiles all modules: 8 s of CPU.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-cdk setup-tests engine dev demo bench soak test test-all emulator rehearse mutations openapi generate pictures fuzz lint synth diff deploy destroy cost smoke wheel npm lock audit clean

help: ## show this list
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / {printf "%-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# If somebody gives PYTHON and its version is not that of the environment, make replaces the environment.
PRINT_VERSION := -c 'import sys; print(sys.version)' 2>&1
ifneq ($(origin PYTHON),file)
ifneq "$(shell $(PYTHON) $(PRINT_VERSION))" "$(shell $(PY) $(PRINT_VERSION))"
.PHONY: $(VENV)/.ready
endif
endif

setup: $(VENV)/.ready $(VENV)/bin/tally node_modules/.ready ## install what `make dev` needs, as locked, and the command `tally`

setup-cdk: setup $(VENV)/.cdk node_modules/.cdk ## install what a deployment also needs: the CDK

setup-tests: setup $(VENV)/.tests node_modules/.tests ## install what checks, tests and benchmarks also need

# pip installs uv, and uv installs the other packages. Nothing needs pip after that.
$(VENV)/.ready: $(DEV_LOCK)
	@command -v $(PYTHON) >/dev/null || { echo "tally: $(PYTHON) is missing: install Python 3.11 or newer, or set PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tally: $(PYTHON) is older than Python 3.11: set PYTHON=… to a newer one" >&2; exit 1; }
	@echo "tally: setting up $(VENV) (some seconds, once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' $< > $(VENV)/uv.txt
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement $(VENV)/uv.txt
	@$(UV) pip install --quiet --require-hashes --requirement $<
	@$(UV) pip uninstall --quiet pip setuptools
	@touch $@

$(VENV)/.cdk: requirements.txt $(VENV)/.ready
	@echo "tally: adding the CDK, which a deployment needs (once)"
	@$(UV) pip install --quiet --require-hashes --requirement $<
	@touch $@

$(VENV)/.tests: requirements.txt tests/requirements.txt $(VENV)/.ready
	@echo "tally: adding the CDK and the packages of the tests"
	@$(UV) pip install --quiet --require-hashes $(addprefix --requirement ,$(filter %.txt,$^))
	@touch $(VENV)/.cdk $@

# The command `tally` runs from the checkout, and reads the checkout's counters.py.
$(VENV)/bin/tally: $(VENV)/.ready Makefile
	@printf '%s\n' '#!/bin/sh' 'TALLY_APP="$(CURDIR)" PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" exec "$(CURDIR)/$(VENV)/bin/python" -P -m tally.cli "$$@"' > $@
	@chmod +x $@

node_modules/.ready: package-lock.json
	@command -v npm >/dev/null || { echo "tally: Node is missing: install Node 20 or newer (it brings npm)" >&2; exit 1; }
	@node -e 'process.exit(Number(process.versions.node.split(".")[0] < 20))' || { echo "tally: Node is older than 20: install a newer one" >&2; exit 1; }
	@echo "tally: installing the npm tools"
	@$(NPM) --omit=dev --omit=peer
	@touch $@

# In package.json the command `cdk` is a peer dependency, so that npm can install `cdk` without the tools of the tests.
node_modules/.cdk: package-lock.json | node_modules/.ready
	@$(NPM) --omit=dev
	@touch node_modules/.ready $@

node_modules/.tests: package-lock.json | node_modules/.ready
	@$(NPM)
	@touch node_modules/.ready node_modules/.cdk $@

# Fetches DynamoDB Local once, before many tests need it at the same time.
engine: $(VENV)/.ready
	@$(PY) -m tally.dev.base.dynamodb_local

dev: setup ## run the whole stack on this machine: PORT (8080), TALLY_DATA (.tally), ENGINE (dynamodb-local)
	@$(PY) -m tally.dev --port $(PORT)

demo: setup ## replay a real web server log against `make dev` and recount it
	@$(PY) -m bench.demo --port $(PORT) $(ARGS)

bench: setup-tests ## measure six ways to count a play, the costs, the streams, the journal and one hot key
	@$(PY) -m bench $(ARGS)

soak: setup ## make a million changes while requests fail and consumers are killed, then compare every tally (ARGS=--operations=20000)
	@$(PY) -m bench.soak $(ARGS)

test: setup-tests lint $(ENGINE_TARGET) ## run lint and the tests of the product (ARGS=tests/unit for some; ENGINE=dynamodb-local for another engine)
	@$(PYTEST) -m "not long" --ignore=tests/emulator $(if $(ENGINE),$(or $(ARGS),tests/invariants tests/integration),$(ARGS))

# The tests of changes, limits, retries, keys and streams, which `test-all` also runs on DynamoDB Local. If a file has
# known failures there (tests/engines/dynamodb_local.py), it is in the list, so that somebody sees a new failure or pass.
ON_LOCAL := $(addprefix tests/invariants/test_,likes.py limits.py lost_answers.py keys.py cost.py streams_wire.py \
  changes.py changed_holds.py deletion.py holds.py forgetting.py overrides.py uniques.py voids.py settling.py late_commits.py team_heartbeats.py) \
  $(addprefix tests/integration/test_,reads.py sweep.py)
# The tests of `make dev` that also run on DynamoDB Local: README's session, the demo, kill -9, the engine's end, a new counter.
DEV_ON_LOCAL := $(addprefix tests/e2e/test_,readme.py demo.py $(addprefix make_dev.py::test_, \
  answered_changes_survive_a_kill_of_make_dev make_dev_ends_with_one_line_when_the_engine_dies \
  a_counter_that_is_declared_while_make_dev_runs_gets_its_routes))
# `browser` is BROWSER:PROGRAM. If the program and Xvfb are installed, the tests of the browser run.
IN_BROWSERS := tests/e2e/test_browsers.py
test-all: test ## run `make test`, and the long tests: tools, soak, quick bench, recipes, fuzz, emulator, Firefox, WebKit, DynamoDB Local, Python 3.14
	@$(PYTEST) -m long --ignore=$(IN_BROWSERS)
	@for browser in firefox:firefox-esr webkit:WebKitWebDriver; do \
	  if command -v $${browser#*:} && command -v Xvfb; then $(PY) -m pytest $(IN_BROWSERS) -k $${browser%:*} || exit 1; \
	  else echo "tally: LEFT OUT: the JavaScript client in $${browser%:*}: there is no $${browser#*:} with Xvfb here" >&2; fi; done
	@if command -v java && command -v mvn; then $(MAKE) test ENGINE=dynamodb-local ARGS="$(ON_LOCAL)"; \
	else echo "tally: LEFT OUT: the core's tests on DynamoDB Local: there is no Java with Maven (mvn) here" >&2; fi
	@if command -v java && command -v mvn; then ENGINE=dynamodb-local $(PYTEST) -m "" $(DEV_ON_LOCAL); fi
	@if command -v python3.14; then $(MAKE) test PYTHON=python3.14 VENV=.build/python3.14 ARGS="tests/unit tests/invariants"; \
	else echo "tally: LEFT OUT: the core's tests on Python 3.14, which Lambda runs: there is no python3.14 here" >&2; fi

emulator: setup-tests ## test the whole stack in an emulator of AWS, with the real cdk: deploy, change under traffic, roll back, restore, rehearse
	@$(PY) -m pytest -rP --tb=short tests/emulator $(ARGS)

rehearse: setup-tests ## run the commands of docs/first-deploy.md on the emulator: each must print what the page says
	@$(PY) -m pytest -q -s --tb=short tests/emulator/test_rehearsal.py

mutations: setup-tests ## remove each guard, one at a time: a test must fail (ARGS=part of a name)
	@$(PY) -m tests.mutations $(ARGS)

openapi: setup ## print the OpenAPI document
	@$(PY) -m tally.contract --openapi

generate: setup-tests ## generate files from the code: the samples in events/, the typed client, docs/reference.md
	@$(PY) -m tally.contract
	@$(PY) -m release.reference

pictures: setup-tests ## take the pictures of README.md and docs/: the console and the dashboard, with a day of a real log
	@PYTHONPATH=lambdas $(PY) -m tests.make_pictures

fuzz: setup-tests ## send thousands of random requests to a running `make dev`, and check the answers by its OpenAPI document
	@$(PY) -m tests.e2e.schemathesis_run --url http://localhost:$(PORT) $(ARGS)

# Lint reads the subjects of the commits after this commit, because some older subjects are longer. A comment behind the
# value would add spaces to the value.
SINCE := f778003
lint: setup-tests ## run ruff and mypy, and check the imports between subpackages (.importlinter) and the subjects of commits
	@$(VENV)/bin/ruff format --check --quiet . && $(VENV)/bin/ruff check --quiet . && $(VENV)/bin/mypy --no-error-summary
	@found=$$($(VENV)/bin/lint-imports --no-cache --no-logo) || { echo "$$found"; exit 1; }
	@git log --no-merges --format=%s $(SINCE)..HEAD 2>/dev/null | awk 'length > 72 || tolower($$1) ~ /^wip/ {print "commit: " $$0 "\n  a subject has at most 72 characters, and is not wip"; bad = 1} END {exit bad}' >&2

synth: setup-tests ## synthesize the CloudFormation template, and check it with cdk-nag and cfn-lint
	@$(CDK) synth --quiet $(ARGS) && $(VENV)/bin/cfn-lint

diff: setup-cdk ## show what a deploy would change
	@$(CDK) diff $(ARGS)

deploy: setup-cdk ## show the changes, ask, and deploy to the AWS account of your credentials (ARGS="-c stage=prod --yes")
	@$(PY) -m tally.cli deploy $(ARGS)

destroy: setup-cdk ## show what is kept and where, ask, and delete a deployed stack (ARGS="-c stage=prod")
	@$(PY) -m tally.cli destroy $(ARGS)

cost: setup ## update the figures of docs/cost.md: units times prices
	@$(PY) -m bench.cost_pages

smoke: setup ## call every operation of a deployed stack once: URL=https://… TOKEN=… PAGE=https://… WAIT=600
	@$(PY) -m tally.cli.smoke

wheel: setup-cdk ## build the distribution `tallystick` into dist/, without files that git ignores
	@$(PY) -m release.build $(ARGS)

npm: setup ## pack the JavaScript client as npm's `tally-client` into dist/, with the version of pyproject.toml
	@$(PY) -m release.npm $(ARGS)

lock: setup ## compile the pins of every requirements.in, with the hashes of their files
	@for lock in $(LOCKS); do $(LOCK) $${lock%.txt}.in -o $$lock || exit 1; done

# Both tools end with 1 for a known vulnerability and for a failed audit. An audit has failed if npm writes a warning or
# an error, or if pip-audit writes nothing to stdout. --offline=false: an offline npm reports no vulnerability.
audit: setup-tests ## list known vulnerabilities of the pinned packages, by PyPI and npm; fails if a registry does not answer
	@bad=0; mkdir -p .build; for lock in $(LOCKS); do \
	  if found=$$($(VENV)/bin/pip-audit --strict --progress-spinner off --disable-pip --require-hashes -r $$lock 2>.build/audit); \
	  then echo "$$lock: no known vulnerability"; else bad=1; \
	    if [ "$$found" ]; then printf '%s:\n%s\n' "$$lock" "$$found"; \
	    else echo "tally: not audited: $$lock: $$(tail -n 1 .build/audit)" >&2; fi; fi; done; \
	if found=$$(npm audit --package-lock-only --include=dev --offline=false --loglevel=warn 2>.build/audit); \
	then echo "package-lock.json: no known vulnerability"; else bad=1; \
	  why=$$(grep -E 'warn audit|error' .build/audit | head -n 1); \
	  if [ "$$why" ]; then echo "tally: not audited: package-lock.json: $$why" >&2; else printf '%s\n' "$$found"; fi; fi; \
	exit $$bad

clean: ## remove all generated files, but not the local data in .tally
	@rm -rf $(VENV) node_modules cdk.out dist .build .pytest_cache .mypy_cache .ruff_cache .hypothesis
