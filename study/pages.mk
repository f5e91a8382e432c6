# Settings of `make demo DOMAIN=frontend`: web pages of about fifty tokens with five or six hidden choices. The simulated
# human names two differences a turn, so an agent that puts everything right needs four or five turns. The tiny model
# sees no pictures: its critic is the text critic of Eq. 3. Pages are rendered only where they are played or scored.
GENERATE    := --level plain --train 1500 --val 200 --test 200
COMPLETE    := --demonstrations 10000 --ask 1 --waste 0 --max-turns 5
IMPERFECT   := --demonstrations 2400 --ask 0.5 --waste 0.3 --max-turns 5
FIRST       := --lr 2e-3 --batch-size 8 --epochs 1
SAMPLE      := --max-tokens 96
PLAY        := --max-turns 5 $(SAMPLE)
OFFLINE     := --limit 250 --samples 4
TWICE       := --limit 500 --samples 4
PAIRS       := --pair-rule all --min-gap 0.05
CRITIC      := $(PAIRS) --beta 5 --nll 2 --lr 3e-4 --epochs 2
CANDIDATES  := --candidates 16 --fraction 0.25
POLICY      := --beta 2 --nll 1 --lr 2e-4 --epochs 1 --pairs-per-turn 4
REJECTION   := --lr 1e-3 --batch-size 16 --min-reward 0.9 --epochs 4
TRAJECTORY  := $(PAIRS) --beta 0.5 --nll 1 --lr 4e-4 --epochs 2
SHOW        := --report-limit 60
ROWS        := base rejection-ft multi-turn-dpo policy    # the paper's; the study plays these two as well
AGENTS      := $(ROWS) policy-without-c after-imitation
# The settings above are the best of three trials a method on seed 1 (study.mk).
trial-rejection-2 = $(IMITATE) --min-reward 0.95
trial-rejection-3 = $(IMITATE) --min-reward 0.95 --lr 5e-4
trial-dpo-2 = $(DPO) --beta 2
trial-dpo-3 = $(DPO) --beta 2 --lr 2e-4
trial-sweet-2 = $(SWEET) --lr 4e-4
trial-sweet-3 = $(SWEET) --beta 0.5
