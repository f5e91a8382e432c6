# The study of a real model, SmolLM2-135M-Instruct, where asking is the hard part (study/real_model.md).
#
#     make -f study/real_model.mk real SEED=1
#
# The folder runs/real/SEED holds one seed. Each stage takes both cores.

NAME   := real/$(SEED)
LLM    := yes
ASKING := hard
include study/study.mk

GENERATE  := --plain --kinds total,average --train 1600 --val 100 --test 200
IMPERFECT := --demonstrations 1200 --ask 0.7 --waste 0.2
PLAY       = $(SAMPLE) --concurrency 64 --max-turns 7
OFFLINE   := --limit 160 --samples 6 --temperature 0.5
FIT       := --dtype $(BF16) --micro-tokens 2048 --save-every 100 --keep 1
EACH       = OMP_NUM_THREADS=2 $(PY) study/timed.py $(RUN)/cpu.tsv
ALONE      = $(EACH)
$(RUN)/train.rollout.json: private EACH = OMP_NUM_THREADS=2 $(PY) study/timed.py $(RUN)/cpu.tsv

# One setting a method, in the places of study.mk's settings for the small model.
critic-nll-0.2        := --beta 5 --nll 0.2 --lr 5e-5 --epochs 2
trial-rejection-2     := --method rejection-ft --lr 2e-4 --batch-size 16 --epochs 4
trial-imitated-dpo-2   = $(IMITATED) --method multi-turn-dpo --beta 2 --nll 1 --lr 3e-5 --epochs 2
trial-imitated-sweet-2 = $(IMITATED) --method sweet --in $(RUN)/ranked-nll-0.2.jsonl --pairs-per-turn 2 \
  --beta 2 --nll 1 --lr 5e-5 --batch-size 32 --epochs 1

real: $(call at,test,base trial-rejection-2 trial-imitated-sweet-2 trial-imitated-dpo-2)
.PHONY: real
