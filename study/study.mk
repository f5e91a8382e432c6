# The study of RESULTS.md. `make study` runs it seed by seed; the folder runs/study/SEED holds one seed.
#
#     make study SEEDS='1 2' CELLS=trials                        # three settings of each method, on validation tasks
#     make study SEEDS='21 22 23 24 25' CELLS='tuned'            # the best of them, on fresh seeds and test tasks
#     make study SEEDS='23 24' CELLS='ablated twice truth'       # other critics; twice the data; Monte-Carlo returns
#     make study SEEDS='31' ASKING=hard CELLS=leaders            # where asking is the hard part: trials
#     make study SEEDS='32 33 34 35 36' ASKING=hard CELLS='tuned twice'    # the best settings; twice the data
#     make study SEEDS='32 33 34' ASKING=hard CELLS=rounds       # more rounds, on dialogues of the last round's agent
#     make study SEEDS='41' ASKING=hard CELLS='table3 best amounts'    # the paper's Table 3 and Fig. 3
#
# The demo's rules make a seed's tasks, base agent, dialogues and candidates. One first model serves all. Runs resume.

SEED_MODEL := runs/demo/first-model/config.json
include Makefile

# Asking is hard: the base agent asks for half of the details, and seven turns are six questions and the answer.
ifdef ASKING
IMPERFECT := --demonstrations 4000 --ask 0.5 --waste 0.2
PLAY       = $(SAMPLE) --max-turns 7
endif

# Beside each result stands the CPU time of what made it: $(RUN)/cpu.tsv.
EACH = OMP_NUM_THREADS=1 $(PY) study/timed.py $(RUN)/cpu.tsv

ifeq ($(LLM)$(filter demo,$(NAME)),)
$(SEED_MODEL):
	$(MAKE) NAME=demo SEED=0 $@
endif

# ------------------------------------------------------------------------------------------------ critics
critic-full       := $(CRITIC)
critic-nll-0.2    := $(CRITIC) --nll 0.2
critic-nll-0.02   := $(CRITIC) --nll 0.02
critic-all-pairs  := $(CRITIC) --nll 0.2 --pair-rule all --min-gap 0.1 --epochs 1
critic-without-c  := $(CRITIC) --nll 0.2 --context without-c
critic-likelihood := $(CRITIC) --nll 0.2 --beta 1e-6
CRITICS           := nll-0.2 without-c likelihood    # of these the study measures the ranking

# The paper's Table 3 (sum: no length normalisation), and a value head for best of N. None of them had trials.
critic-sum        := $(CRITIC) --nll 0.2 --advantage sum --beta 0.3
critic-regression := $(CRITIC) --nll 0.2 --head regression
critic-value      := --head value --lr 3e-4 --epochs 3
TABLE3            := without-c sum regression

$(RUN)/critic-%/config.json: $(RUN)/train.metrics.json
	$(call stage,critic: $*)
	$(EACH) train_critic.py $(FLAGS) $(FIT) --run-name $(NAME) $(critic-$*) --out $(@D)

$(RUN)/ranked-%.jsonl: $(RUN)/critic-%/config.json $(RUN)/train.candidates.rollout.json
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --critic $(RUN)/critic-$* \
	  --score $(RUN)/train.candidates.jsonl --out $@

# ------------------------------------------------------------------------------------------------ policies
# Imitation comes first: what starts at the imitating agent starts at the setting that was taken there.
REJECTION_TRIAL := --method rejection-ft --batch-size 16
DPO_TRIAL       := --method multi-turn-dpo --nll 1 --epochs 3
SWEET_TRIAL     := --method sweet --beta 2 --nll 1 --epochs 1 --pairs-per-turn 2 --lr 2e-4
IMITATED         = --model $(RUN)/trial-rejection-2

trial-rejection-1 := $(REJECTION_TRIAL) --lr 1e-3 --epochs 6
trial-rejection-2 := $(REJECTION_TRIAL) --lr 1e-3 --epochs 3
trial-rejection-3 := $(REJECTION_TRIAL) --lr 5e-4 --epochs 6

trial-dpo-1 := $(DPO_TRIAL) --beta 2 --lr 4e-4
trial-dpo-2 := $(DPO_TRIAL) --beta 0.5 --lr 4e-4
trial-dpo-3 := $(DPO_TRIAL) --beta 2 --lr 2e-4

trial-imitated-dpo-1 = $(IMITATED) $(DPO_TRIAL) --beta 2 --lr 2e-4
trial-imitated-dpo-2 = $(IMITATED) $(DPO_TRIAL) --beta 2 --lr 1e-4
trial-imitated-dpo-3 = $(IMITATED) $(DPO_TRIAL) --beta 5 --lr 2e-4
trial-imitated-dpo-4 = $(trial-imitated-dpo-2) --pair-rule all --min-gap 0.1 --epochs 1

# Three critics, by their NLL weight.
trial-sweet-1          = $(SWEET_TRIAL) --in $(RUN)/ranked-full.jsonl
trial-sweet-2          = $(SWEET_TRIAL) --in $(RUN)/ranked-nll-0.2.jsonl
trial-sweet-3          = $(SWEET_TRIAL) --in $(RUN)/ranked-nll-0.02.jsonl
trial-imitated-sweet-1 = $(IMITATED) $(trial-sweet-1)
trial-imitated-sweet-2 = $(IMITATED) $(trial-sweet-2)
trial-imitated-sweet-3 = $(IMITATED) $(trial-sweet-3)
trial-imitated-sweet-4 = $(IMITATED) $(SWEET_TRIAL) --in $(RUN)/ranked-all-pairs.jsonl

# Ablations of trial-imitated-sweet-2.
ABLATED := likelihood $(TABLE3)
$(foreach critic,$(ABLATED),$(eval trial-$(critic) = $$(IMITATED) $$(SWEET_TRIAL) --in $$(RUN)/ranked-$(critic).jsonl))

# Baselines on twice as many episodes, which is about what SWEET-RL samples with its candidates.
trial-twice-rejection    = $(trial-rejection-2) --in $(RUN)/twice.scored.jsonl
trial-twice-imitated-dpo = --model $(RUN)/trial-twice-rejection $(DPO_TRIAL) --beta 2 --lr 1e-4 --in $(RUN)/twice.scored.jsonl

$(RUN)/trial-%/config.json: $(RUN)/train.metrics.json
	$(call stage,policy: $*)
	$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) $(trial-$*) --out $(@D)

# What each of them reads.
LEADERS := $(foreach n,1 2 3 4,imitated-dpo-$(n) imitated-sweet-$(n))
needs = $(foreach trial,$(1),$(RUN)/trial-$(trial)/config.json): $(2)
$(call needs,sweet-1 imitated-sweet-1,$(RUN)/ranked-full.jsonl)
$(call needs,sweet-2 imitated-sweet-2,$(RUN)/ranked-nll-0.2.jsonl)
$(call needs,sweet-3 imitated-sweet-3,$(RUN)/ranked-nll-0.02.jsonl)
$(call needs,imitated-sweet-4,$(RUN)/ranked-all-pairs.jsonl)
$(foreach critic,$(ABLATED),$(eval $(call needs,$(critic),$(RUN)/ranked-$(critic).jsonl)))
$(call needs,$(LEADERS) $(ABLATED),$(RUN)/trial-rejection-2/config.json)
$(call needs,twice-rejection twice-imitated-dpo,$(RUN)/twice.metrics.json)
$(call needs,twice-imitated-dpo,$(RUN)/trial-twice-rejection/config.json)

$(RUN)/twice.rollout.json: $(RUN)/base/config.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/tasks/train.jsonl --limit 800 --samples 6 \
	  $(PLAY) --out $(RUN)/twice.trajectories.jsonl

# ------------------------------------------------------------------------------------------------ play
$(RUN)/%.val-0.3.metrics.json: $(RUN)/%/config.json
	$(EACH) study/play.py --temperatures 1 0.5 0.3 --split val --model $(RUN)/$* -- $(FLAGS) --run-name $(NAME) \
	  --in $(RUN)/tasks/val.jsonl $(PLAY)

$(RUN)/%.test-0.3.metrics.json: $(RUN)/%/config.json
	$(EACH) study/play.py --temperatures 1 0.3 --split test --model $(RUN)/$* -- $(FLAGS) --run-name $(NAME) \
	  --in $(RUN)/tasks/test.jsonl $(PLAY)

# Best of N: the base agent samples N actions a turn, and a step reward plays one. $(call best,critic,N,step reward)
define best
best: $(RUN)/best-$(1)-$(2).test.metrics.json
$(RUN)/best-$(1)-$(2).test.rollout.json: $(RUN)/critic-$(1)/config.json
	$$(EACH) rollout.py $$(FLAGS) --run-name $$(NAME) --split test --in $$(RUN)/tasks/test.jsonl $$(PLAY) \
	  --model $$(RUN)/base --best-of-n $(2) --step-reward $(3) --critic $$(<D) --out $$(@:rollout.json=trajectories.jsonl)
endef
$(foreach n,2 4 8,$(eval $(call best,nll-0.2,$n,critic)) \
  $(eval $(call best,without-c,$n,critic-without-c)) $(eval $(call best,value,$n,value)))

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

# ------------------------------------------------------------------------------------------------ runs from runs
# $(call run_from,folder,agent): a run on the same tasks that begins with this base agent
define run_from
$(1)/base/config.json: $(2)/config.json
	rm -rf $(1)
	mkdir -p $(1)
	cp -r $(RUN)/tasks $(RUN)/demonstrations.done $(1)
	cp -r $(2) $(1)/base.part
	mv $(1)/base.part $(1)/base
endef

# Its base agent is the agent of the last round: $(call round,method,number,folder of the last round)
LAST-dpo   := trial-imitated-dpo-2
LAST-sweet := trial-imitated-sweet-3
define round
rounds: $(RUN)-$(1)-$(2)/$(LAST-$(1)).test-0.3.metrics.json
$(call run_from,$(RUN)-$(1)-$(2),$(3)/$(LAST-$(1)))
$(RUN)-$(1)-$(2)/$(LAST-$(1))/config.json: $(RUN)-$(1)-$(2)/$(LAST-$(1)).test-0.3.metrics.json
$(RUN)-$(1)-$(2)/$(LAST-$(1)).test-0.3.metrics.json: $(RUN)-$(1)-$(2)/base/config.json
	$$(MAKE) -f study/study.mk SEED=$(SEED) NAME=$(NAME)-$(1)-$(2) $$@
endef
$(foreach method,dpo sweet,$(eval $(call round,$(method),2,$(RUN))))
$(foreach method,dpo sweet,$(eval $(call round,$(method),3,$(RUN)-$(method)-2)))
$(eval $(call round,dpo,4,$(RUN)-dpo-3))

# Amounts of data: fewer tasks, in folders of their own. All 400: the seed's own folder.
define amount
amounts: amount-$(1)
$(call run_from,$(RUN)-$(1),$(RUN)/base)
amount-$(1): $(RUN)-$(1)/base/config.json
	$$(MAKE) -f study/study.mk SEED=$(SEED) NAME=$(NAME)-$(1) OFFLINE='--limit $(1) --samples 6' amount
endef
$(foreach tasks,50 100 200,$(eval $(call amount,$(tasks))))

# ------------------------------------------------------------------------------------------------ cells
three = $(1)-1 $(1)-2 $(1)-3
at    = $(foreach agent,$(2),$(RUN)/$(agent).$(1)-0.3.metrics.json)
TRIED := $(foreach method,rejection dpo sweet imitated-dpo imitated-sweet,$(call three,trial-$(method)))
TUNED := trial-imitated-sweet-2 trial-imitated-dpo-2 trial-dpo-3 trial-rejection-2 trial-sweet-3 base
TUNED += $(if $(ASKING),trial-imitated-sweet-3 trial-rejection-1)    # the best of cell leaders

trials:  $(call at,val,$(TRIED))
leaders: $(call at,val,$(call three,trial-rejection) $(LEADERS:%=trial-%))
tuned:   $(call at,test,$(TUNED))
ablated: $(call at,test,trial-imitated-sweet-1 trial-without-c trial-likelihood)
twice:   $(call at,test,trial-twice-rejection trial-twice-imitated-dpo)
table3:  $(call at,test,trial-imitated-sweet-2 $(TABLE3:%=trial-%))
amount:  $(call at,test,trial-rejection-2 trial-imitated-dpo-2 trial-imitated-sweet-2 trial-without-c)
amounts: amount
best:    $(call at,test,base)
truth:   $(RUN)/val.continuations.metrics.json $(CRITICS:%=$(RUN)/val-ranked-%.jsonl)

.PHONY: trials leaders tuned ablated twice table3 amount amounts best truth rounds
