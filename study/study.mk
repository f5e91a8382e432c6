# The study of RESULTS.md: the demo over fresh seeds, and what else is compared. The Makefile's rules do the work.
#
#     make study SEEDS='1 3' CELLS=trials                 # six settings a method, on validation tasks
#     make study SEEDS='11 12 13 14 15 16 17 18 19 20'    # the demo's rows on test tasks, with the chosen settings
#     make study SEEDS='11 12 13 14 15 16' CELLS='equal grpo truth rounds parts'
#     make study SEEDS='21 22 23' SETTING=easy            # base agents that ask for 80%
#     make study SEEDS='11 12 13' DOMAIN=frontend         # pages
#     python study/over_seeds.py --add runs/study/1? runs/study/20    # tables and picture
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
# The first trial of a method has the settings of `make demo`.
SWEET := --method sweet $(POLICY)
IMITATE := --method rejection-ft $(REJECTION)
DPO := --method multi-turn-dpo $(TRAJECTORY)
trial-rejection-1 := $(IMITATE)
trial-dpo-1       := $(DPO)
trial-sweet-1     := $(SWEET)
ifneq ($(DOMAIN),frontend)    # those on pages stand in pages.mk
trial-rejection-2 := $(IMITATE) --lr 1e-3
trial-rejection-3 := $(IMITATE) --lr 2e-4
trial-rejection-4 := $(IMITATE) --epochs 3
trial-rejection-5 := $(IMITATE) --epochs 12
trial-rejection-6 := $(IMITATE) --batch-size 8
trial-dpo-2       := $(DPO) --lr 2e-4
trial-dpo-3       := $(DPO) --lr 5e-5
trial-dpo-4       := $(DPO) --beta 0.5
trial-dpo-5       := $(DPO) --beta 5
trial-dpo-6       := $(DPO) --epochs 6
trial-sweet-2     := $(SWEET) --lr 2e-4
trial-sweet-3     := $(SWEET) --lr 5e-5 --epochs 2
trial-sweet-4     := $(SWEET) --in $(RUN)/every.ranked.jsonl --pairs-per-turn 1
trial-sweet-5     := $(SWEET) --in $(RUN)/two.ranked.jsonl
trial-sweet-6     := $(SWEET) --in $(RUN)/eight.ranked.jsonl --pairs-per-turn 4
$(RUN)/trial-sweet-4/config.json: $(RUN)/every.ranked.done
$(RUN)/trial-sweet-5/config.json: $(RUN)/two.ranked.done
$(RUN)/trial-sweet-6/config.json: $(RUN)/eight.ranked.done
endif
TRIALS := $(sort $(filter trial-%,$(.VARIABLES)))

$(patsubst %,$(RUN)/%/config.json,$(filter trial-sweet-%,$(TRIALS))): $(RUN)/train.ranked.done
$(TRIALS:%=$(RUN)/%/config.json): $(RUN)/train.metrics.json
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) $($(notdir $(@D))) --out $(@D)

# Candidates at other turns: of every episode, of a task's two best ones, and twice as many at each turn.
candidates-every := --candidates 4
candidates-two   := --candidates 4 --per-task 2
candidates-eight := --candidates 8 --per-task 1
$(foreach kind,every two eight,$(RUN)/$(kind).ranked.done): $(RUN)/%.ranked.done: $(RUN)/critic/config.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train $(candidates-$*) $(SAMPLE) --out $(RUN)/$*.candidates.jsonl
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --score $(RUN)/$*.candidates.jsonl --out $(RUN)/$*.ranked.jsonl
	@touch $@

# ------------------------------------------------------------------------------------------------ what each part adds
critic-likelihood := $(CRITIC) --beta 1e-6
critic-sum        := $(CRITIC) --advantage sum --beta 0.3
$(RUN)/critic-%/config.json: $(RUN)/train.metrics.json
	$(EACH) train_critic.py $(FLAGS) $(FIT) --run-name $(NAME) $(critic-$*) --out $(@D)
$(RUN)/%.ranked.done: $(RUN)/critic-%/config.json $(RUN)/train.candidates.rollout.json
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --critic $(RUN)/critic-$* --score $(RUN)/train.candidates.jsonl \
	  --out $(RUN)/$*.ranked.jsonl
	@touch $@
$(RUN)/truth.ranked.done: $(RUN)/train.ranked.done    # what would a perfect critic be worth?
	$(EACH) study/rank_quality.py $(RUN)/train.ranked.jsonl --out $(RUN)/truth.ranked.jsonl
	@touch $@
$(RUN)/policy-%/config.json: $(RUN)/%.ranked.done
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) $(SWEET) --in $(RUN)/$*.ranked.jsonl --out $(@D)

# As many sampled tokens as SWEET-RL with its candidates: twice the episodes.
$(RUN)/twice.rollout.json: $(RUN)/base/config.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/tasks/train.jsonl $(TWICE) $(PLAY) \
	  --out $(RUN)/twice.trajectories.jsonl
$(RUN)/twice-dpo/config.json: $(RUN)/twice.metrics.json
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) $(DPO) --in $(RUN)/twice.scored.jsonl --out $(@D)

# An on-policy baseline, with as many episodes as the others.
$(RUN)/grpo/config.json: $(RUN)/base/config.json
	$(EACH) examples/grpo.py $(FLAGS) --run-name $(NAME) --in $(RUN)/tasks/train.jsonl $(PLAY) $(GRPO) --out $(@D)

# A second round: the agent of the first is the base agent of a run of its own.
define round
$(RUN)-$(1)/base/config.json: $(RUN)/$(1)/config.json
	mkdir -p $(RUN)-$(1)
	cp -r $(RUN)/tasks $(RUN)/demonstrations.done $(RUN)-$(1)
	cp -r $(RUN)/$(1) $(RUN)-$(1)/base.part && mv $(RUN)-$(1)/base.part $(RUN)-$(1)/base
$(RUN)/round-2-$(2).test.metrics.json: $(RUN)-$(1)/base/config.json
	$$(MAKE) -f study/study.mk SEED=$(SEED) NAME=$(NAME)-$(1) $(RUN)-$(1)/$(1).test.metrics.json
	cp $(RUN)-$(1)/$(1).test.metrics.json $$@
	mkdir -p $(RUN)/round-2-$(2) && cp $(RUN)-$(1)/$(1)/cost.json $(RUN)/round-2-$(2)
endef
$(eval $(call round,policy,policy))
$(eval $(call round,multi-turn-dpo,dpo))
# ------------------------------------------------------------------------------------------------ cells
at = $(foreach agent,$(2),$(RUN)/$(agent).$(1).metrics.json)
rows:   $(call at,test,$(AGENTS))
trials: $(call at,val,$(TRIALS))
equal:  $(call at,test,twice-dpo)
parts:  $(call at,test,policy-likelihood policy-sum)
truth:  $(call at,test,policy-truth)
grpo:   $(call at,test,grpo)
rounds: $(call at,test,round-2-policy round-2-dpo)
.PHONY: rows trials equal parts truth grpo rounds
