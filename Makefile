# make report, make test and make lab set up what they need by themselves: a bare Python 3.11 with pip is enough.
PYTHON ?= python3
BIN := .venv/bin
NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb))
# Where an NVIDIA driver is found, CuPy comes too.
GPU := $(shell { command -v nvidia-smi || ls -d /proc/driver/nvidia; } >/dev/null 2>&1 && echo gpu)
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-sanitize-with=tests/sanitize.cfg
comma := ,

.PHONY: report test lint lab bytecode notebooks readme-plot test-gpu test-browser lock clean
.DELETE_ON_ERROR:

report: .venv/.set-core bytecode
	$(BIN)/perflab report

# Every cell of every notebook runs again and must say what the file says. loadscope: a notebook's cells stay together.
# A test that hangs fails after five minutes, with the stack of every thread, and the rest runs on.
test: .venv/.set-test bytecode
	$(BIN)/python -m pytest -n2 --dist loadscope --timeout=300 $(NBVAL) tests $(NOTEBOOKS)

lint: .venv/.set-test
	$(BIN)/ruff check .
	$(BIN)/mypy

lab: .venv/.set-lab
	$(BIN)/jupyter lab

notebooks: .venv/.set-core bytecode
	$(BIN)/perflab notebooks

# docs/ladder.png and its sentence in README.md, from today's records; tests/test_readme.py fails where they are of others.
readme-plot: .venv/.set-core
	$(BIN)/perflab readme verify_attention

# With a Python of your own: make test-gpu GPU_PYTHON=python3. It needs pytest, numpy, CuPy, platformdirs, cuda-bindings, and
# nvidia-cuda-nvrtc, -runtime, -crt and -cccl.
GPU_PYTHON ?= $(BIN)/python
test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),.venv/.set-test)
	$(GPU_PYTHON) -m pytest -rs tests/gpu

# The pages of the report and JupyterLab in a real browser; skipped, with the reason, where there is no Chromium.
test-browser: .venv/.set-browser .venv/.set-lab report
	$(BIN)/python -m pytest -rs tests/browser

lock: .venv/.uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --all-extras --no-annotate \
		--no-header pyproject.toml -o requirements.lock

clean:
	rm -rf .venv site build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# Once for the many processes that follow: where PYTHONDONTWRITEBYTECODE is set, each would compile all for itself.
bytecode: .venv/.uv
	@$(BIN)/python -m compileall -q perflab kernels

.venv/.uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@touch $@

# One stamp for each set of extras, so that a report waits for neither JupyterLab nor the test tools.
.venv/.set-core: EXTRAS := fast$(if $(GPU),$(comma)gpu)
.venv/.set-test: EXTRAS := fast$(comma)test$(if $(GPU),$(comma)gpu)
.venv/.set-lab: EXTRAS := fast$(comma)lab$(if $(GPU),$(comma)gpu)
.venv/.set-browser: EXTRAS := fast$(comma)test$(comma)browser$(if $(GPU),$(comma)gpu)
.venv/.set-%: .venv/.uv pyproject.toml requirements.lock
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --compile-bytecode -c requirements.lock -e '.[$(EXTRAS)]'
	@touch $@
