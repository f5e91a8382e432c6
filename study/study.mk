# The study of RESULTS.md: the demo over fresh seeds, and what else is compared. The Makefile's rules do the work.
#
#     make study SEEDS='1 2' CELLS=trials                 # three settings a method, on validation tasks
#     make study SEEDS='11 12 13 14 15 16 17 18'          # the demo's rows on test tasks, with the chosen settings
#     make study SEEDS='11 12 13 14 15 16' CELLS='equal grpo rounds parts'
#     make study SEEDS='21 22 23' SETTING=easy            # base agents that ask for 80%
#     make study SEEDS='11 12 13' DOMAIN=frontend         # pages
#     python study/over_seeds.py --add runs/study/1?      # tables and picture
#
# A seed lives in runs/SETTING/SEED. One first model serves all seeds: the demo's. Runs resume.

SETTING    ?= $(if $(filter frontend,$(DOMAIN)),pages,study)
FIRST_RUN  := demo$(if $(filter frontend,$(DOMAIN)),-frontend)
SEED_MODEL := runs/$(FIRST_RUN)/first-model/config.json
include Makefile

# The easier setting: the base agent asks for most details and has all ten turns.
ifeq ($(SETTING),easy)
IMPERFECT := $(subst --ask 0.45,--ask 0.8,$(IMPERFECT))
PLAY       = $(SAMPLE)
endif

$(SEED_MODEL):
	$(MAKE) -f Makefile SEED=0 NAME=$(FIRST_RUN) $@

# ------------------------------------------------------------------------------------------------ trials
# Each method has three. The demo's settings on functions are the best by the mean of seeds 1 and 2.
SWEET := --method sweet $(POLICY)
ifeq ($(DOMAIN),frontend)
trial-rejection-1 := --method rejection-ft $(REJECTION)
trial-rejection-2 := $(trial-rejection-1) --lr 5e-4
trial-rejection-3 := $(trial-rejection-1) --min-reward 0.9
trial-dpo-1       := --method multi-turn-dpo $(TRAJECTORY)
trial-dpo-2       := $(trial-dpo-1) --lr 2e-4
trial-dpo-3       := $(trial-dpo-1) --beta 0.5
trial-sweet-1     := $(SWEET)
trial-sweet-2     := $(SWEET) --lr 4e-4
trial-sweet-3     := $(SWEET) --beta 0.5
else
trial-rejection-1 := --method rejection-ft $(REJECTION) --lr 1e-3
trial-rejection-2 := $(trial-rejection-1) --epochs 3
trial-rejection-3 := --method rejection-ft $(REJECTION)
trial-dpo-1       := --method multi-turn-dpo $(TRAJECTORY) --lr 2e-4
trial-dpo-2       := $(trial-dpo-1) --beta 0.5
trial-dpo-3       := --method multi-turn-dpo $(TRAJECTORY)
trial-sweet-1     := $(SWEET)
trial-sweet-2     := $(SWEET) --in $(RUN)/all.ranked.jsonl
trial-sweet-3     := $(SWEET) --lr 2e-4
$(RUN)/trial-sweet-2/config.json: $(RUN)/all.ranked.done
endif
TRIALS := $(foreach n,1 2 3,trial-rejection-$(n) trial-dpo-$(n) trial-sweet-$(n))

$(TRIALS:%=$(RUN)/%/config.json): $(RUN)/train.metrics.json
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) $($(notdir $(@D))) --out $(@D)

$(foreach n,1 2 3,$(RUN)/trial-sweet-$(n)/config.json): $(RUN)/train.ranked.done

# ------------------------------------------------------------------------------------------------ what each part adds
critic-all        := $(CRITIC) --pair-rule all
critic-likelihood := $(CRITIC) --beta 1e-6
critic-sum        := $(CRITIC) --advantage sum --beta 0.3

$(RUN)/critic-%/config.json: $(RUN)/train.metrics.json
	$(EACH) train_critic.py $(FLAGS) $(FIT) --run-name $(NAME) $(critic-$*) --out $(@D)

$(RUN)/%.ranked.done: $(RUN)/critic-%/config.json $(RUN)/train.candidates.rollout.json
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --critic $(RUN)/critic-$* --score $(RUN)/train.candidates.jsonl \
	  --out $(RUN)/$*.ranked.jsonl
	@touch $@

$(RUN)/policy-%/config.json: $(RUN)/%.ranked.done
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) $(SWEET) --in $(RUN)/$*.ranked.jsonl --out $(@D)

$(RUN)/dpo-after-imitation/config.json: $(RUN)/rejection-ft/config.json
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method multi-turn-dpo $(TRAJECTORY) \
	  --model $(RUN)/rejection-ft --out $(@D)

# As many sampled tokens as SWEET-RL with its candidates: twice the episodes.
$(RUN)/twice.rollout.json: $(RUN)/base/config.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/tasks/train.jsonl $(TWICE) $(PLAY) \
	  --out $(RUN)/twice.trajectories.jsonl

$(RUN)/twice-dpo/config.json: $(RUN)/twice.metrics.json
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method multi-turn-dpo $(TRAJECTORY) \
	  --in $(RUN)/twice.scored.jsonl --out $(@D)

# An on-policy baseline, with as many episodes as the others.
$(RUN)/grpo/config.json: $(RUN)/base/config.json
	$(EACH) examples/grpo.py $(FLAGS) --run-name $(NAME) --in $(RUN)/tasks/train.jsonl $(PLAY) $(GRPO) --out $(@D)

# A second round: the agent of the first is the base agent of a run of its own.
define round
$(RUN)-$(1)/base/config.json: $(RUN)/$(1)/config.json
	mkdir -p $(RUN)-$(1)
	cp -r $(RUN)/tasks $(RUN)/demonstrations.done $(RUN)-$(1)
	cp -r $(RUN)/$(1) $(RUN)-$(1)/base.part
	mv $(RUN)-$(1)/base.part $(RUN)-$(1)/base
$(RUN)/round-2-$(2).test.metrics.json: $(RUN)-$(1)/base/config.json
	$$(MAKE) -f study/study.mk SEED=$(SEED) NAME=$(NAME)-$(1) $(RUN)-$(1)/$(1).test.metrics.json
	cp $(RUN)-$(1)/$(1).test.metrics.json $$@
	mkdir -p $(RUN)/round-2-$(2)
	cp $(RUN)-$(1)/$(1)/cost.json $(RUN)/round-2-$(2)
endef
$(eval $(call round,policy,policy))
$(eval $(call round,multi-turn-dpo,dpo))

# ------------------------------------------------------------------------------------------------ cells
at = $(foreach agent,$(2),$(RUN)/$(agent).$(1).metrics.json)
rows:   $(call at,test,$(AGENTS))
trials: $(call at,val,$(TRIALS))
equal:  $(call at,test,twice-dpo dpo-after-imitation)
parts:  $(call at,test,policy-likelihood policy-sum)
grpo:   $(call at,test,grpo)
rounds: $(call at,test,round-2-policy round-2-dpo)

.PHONY: rows trials equal parts grpo rounds
