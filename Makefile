# Two commands set everything up on a fresh machine: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
RUNTIME := .venv-runtime
DEMO := demo/text_encoder.tcpkg

.PHONY: demo test lint zoo docs clean

demo: $(DEMO) $(RUNTIME)/.installed
	@echo; echo "== The same file in an environment without torch and without a compiler"
	$(RUNTIME)/bin/python -m tcexport.tools.demo $(DEMO)

$(DEMO): $(VENV)/.installed
	mkdir -p demo
	$(VENV)/bin/tcexport tests/models/text_encoder.py \
		--dynamic batch=1..16 --dynamic seq=1..1024 -o $(DEMO)

test: lint
	$(VENV)/bin/python -m pytest -m "not zoo" -n 2 --dist loadfile
	$(VENV)/bin/python -m tcexport.tools.zoo --quarter "$$(git rev-parse HEAD || echo 0)"

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	ln -sfn $(CURDIR) $(VENV)/checkout/tcexport  # mypy checks the package by its name
	MYPYPATH=$(VENV)/checkout $(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

zoo: $(VENV)/.installed
	$(VENV)/bin/python -m tcexport.tools.zoo
	$(VENV)/bin/python -m pytest -m zoo

docs: $(VENV)/.installed
	$(VENV)/bin/python -m tcexport.tools.docs
	$(VENV)/bin/python -m tcexport.tools.ops

# Everything: the exporter, the runtime and the tools that check them.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -e '.[test]'
	mkdir -p $(VENV)/checkout
	touch $@

# The runtime alone, as it is deployed.
$(RUNTIME)/.installed: pyproject.toml
	$(PYTHON) -m venv $(RUNTIME)
	$(RUNTIME)/bin/pip install .
	touch $@

clean:
	rm -rf $(VENV) $(RUNTIME) demo build *.egg-info
