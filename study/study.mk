# The study of RESULTS.md. `make study` runs it seed by seed; a folder runs/study/SEED holds one seed.
#
# The demo's rules make a seed's tasks, base agent, dialogues and candidates. One first model serves all seeds, as one
# pre-trained model serves all users. A cell below is one more critic, policy or baseline: its name, a line of flags,
# and the rule of its kind. What was stopped goes on.

SEED_MODEL := runs/demo/first-model/config.json
define newline


endef
include Makefile

# Beside each result stands the CPU time of what made it: $(RUN)/cpu.tsv.
EACH = OMP_NUM_THREADS=1 $(PY) study/timed.py $(RUN)/cpu.tsv

ifneq ($(NAME),demo)
$(SEED_MODEL):
	$(MAKE) NAME=demo SEED=0 $@
endif

# ------------------------------------------------------------------------------------------------ critics
critic-full             := $(CRITIC)
critic-without-c        := $(CRITIC) --context without-c
critic-likelihood-alone := $(CRITIC) --beta 1e-6
AMOUNTS                 := 50 100 200
$(foreach n,$(AMOUNTS),$(eval critic-full-$n := $(CRITIC) --limit-tasks $n))
$(foreach n,$(AMOUNTS),$(eval critic-without-c-$n := $(CRITIC) --context without-c --limit-tasks $n))

$(RUN)/critic-%/config.json: $(RUN)/train.metrics.json
	$(call stage,critic: $*)
	$(EACH) train_critic.py $(FLAGS) --run-name $(NAME) $(critic-$*) --out $(@D)

$(RUN)/ranked-%.jsonl: $(RUN)/critic-%/config.json $(RUN)/train.candidates.rollout.json
	$(EACH) train_critic.py --run-name $(NAME) --critic $(RUN)/critic-$* --score $(RUN)/train.candidates.jsonl --out $@

# ------------------------------------------------------------------------------------------------ policies
SWEET = $(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method sweet

# From the base agent.
$(RUN)/sweet-%/config.json: $(RUN)/ranked-%.jsonl
	$(call stage,policy: ranked by $*)
	$(SWEET) $(POLICY) --in $(RUN)/ranked-$*.jsonl --out $(@D)

# From the agent that imitated the base agent's winning dialogues, which is also the reference.
$(RUN)/imitated-%/config.json: $(RUN)/ranked-%.jsonl $(RUN)/rejection-ft/config.json
	$(call stage,policy after imitation: ranked by $*)
	$(SWEET) $(AFTER) --model $(RUN)/rejection-ft --in $(RUN)/ranked-$*.jsonl --out $(@D)

$(RUN)/imitated-dpo/config.json: $(RUN)/rejection-ft/config.json
	$(call stage,multi-turn DPO after imitation)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method multi-turn-dpo $(DPO_AFTER) --model $(RUN)/rejection-ft \
	  --out $(@D)

# Baselines on twice as many episodes, which is about what SWEET-RL samples with its candidates.
$(RUN)/twice.rollout.json: $(RUN)/base/config.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/tasks/train.jsonl --limit 800 --samples 6 \
	  $(PLAY) --out $(RUN)/twice.trajectories.jsonl

$(RUN)/twice-rejection/config.json: $(RUN)/twice.metrics.json
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method rejection-ft $(REJECTION) --in $(RUN)/twice.scored.jsonl \
	  --out $(@D)

$(RUN)/twice-dpo/config.json: $(RUN)/twice.metrics.json
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method multi-turn-dpo $(TRAJECTORY) \
	  --in $(RUN)/twice.scored.jsonl --out $(@D)

# ------------------------------------------------------------------------------------------------ Monte-Carlo truth
# About 150 turns of 24 validation tasks, 16 candidates each, each distinct one played to its end eight times.
TRUTH := $(EACH) rollout.py --seed 1$(SEED) --domain $(DOMAIN) --split val --model $(RUN)/base

$(RUN)/val.rollout.json: $(RUN)/base/config.json
	$(TRUTH) --in $(RUN)/tasks/val.jsonl --limit 24 $(PLAY) --out $(RUN)/val.trajectories.jsonl

$(RUN)/val.candidates.rollout.json: $(RUN)/val.metrics.json
	$(TRUTH) --candidates 16 --in $(RUN)/val.scored.jsonl $(SAMPLE) --out $(RUN)/val.candidates.jsonl

$(RUN)/val.continuations.rollout.json: $(RUN)/val.candidates.rollout.json
	$(TRUTH) --continue 8 --in $(RUN)/val.candidates.jsonl $(PLAY) --out $(RUN)/val.continuations.jsonl

$(RUN)/val.continuations.metrics.json: $(RUN)/val.continuations.rollout.json
	$(EACH) evaluate.py --in $(RUN)/val.continuations.jsonl

$(RUN)/val-ranked-%.jsonl: $(RUN)/critic-%/config.json $(RUN)/val.candidates.rollout.json
	$(EACH) train_critic.py --run-name $(NAME) --critic $(RUN)/critic-$* --score $(RUN)/val.candidates.jsonl --out $@

# ------------------------------------------------------------------------------------------------ cells
AFTER     ?= $(POLICY)
DPO_AFTER ?= --beta 2 --nll 1 --lr 2e-4 --epochs 3
MAIN      := base rejection-ft multi-turn-dpo imitated-dpo sweet-full imitated-full sweet-without-c imitated-without-c
LIKELY    := sweet-likelihood-alone imitated-likelihood-alone
COST      := twice-rejection twice-dpo
AMOUNT    := $(foreach n,$(AMOUNTS),sweet-full-$n sweet-without-c-$n imitated-full-$n imitated-without-c-$n)
RANKED    := full without-c likelihood-alone $(foreach n,$(AMOUNTS),full-$n without-c-$n)
at   = $(foreach agent,$(2),$(RUN)/$(agent).$(1).metrics.json)

$(eval $(call plays,cool,val,--temperature 0.5))
include study/trials.mk

agents:  $(call at,test,$(MAIN)) $(call at,half,$(MAIN))
likely:  $(call at,test,$(LIKELY)) $(call at,half,$(LIKELY))
cost:    $(call at,test,$(COST)) $(call at,half,$(COST))
amounts: $(call at,test,$(AMOUNT))
truth:   $(RUN)/val.continuations.metrics.json $(RANKED:%=$(RUN)/val-ranked-%.jsonl)

# ------------------------------------------------------------------------------------------------ tables
# Of the seeds 11 and up: what is there.
OF     := runs/study/[1-9][0-9]
made    = $(if $(wildcard $(OF)/$(2)),$(1)='$(OF)/$(2)')
agents  = $(strip $(foreach n,$(2),$(call made,$n,$n.$(1).metrics.json)))
compare = @echo '\#\# $(1)'; $(if $(call agents,$(2),$(3)),$(PY) study/over_seeds.py $(call agents,$(2),$(3)) || true,echo not run yet)

report:
	$(call compare,Agents at temperature 1,test,$(MAIN) $(LIKELY) $(COST))
	$(call compare,Agents at temperature 0.5,half,$(MAIN) $(LIKELY) $(COST))
	$(call compare,By amount of data,test,$(AMOUNT))
	@echo '## Critics'; $(PY) study/rank_critics.py --truth '$(OF)/val.continuations.scored.jsonl' \
	  $(foreach n,$(RANKED),$(call made,$n,val-ranked-$n.jsonl)) || true

.PHONY: agents likely cost amounts truth report
