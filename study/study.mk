# The study of RESULTS.md. `make study` runs it seed by seed; the folder runs/study/SEED holds one seed.
#
#     make study SEEDS='1 2' CELLS=trials                        # three settings of each method, on validation tasks
#     make study SEEDS='51 52 53 54 55' CELLS='tuned'            # the best of them, on fresh seeds and test tasks
#     make study SEEDS='51 52' CELLS='ablated twice truth fewer' # other critics; twice the data; Monte-Carlo returns
#     make study SEEDS='31' ASKING=hard CELLS=leaders            # where asking is the hard part: trials
#     make study SEEDS='41 42 43 44 45' ASKING=hard CELLS='tuned twice stopped'    # the best settings; pairs that show when to stop
#     make study SEEDS='46 47 48' ASKING=hard CELLS=rounds       # more rounds, on dialogues of the last round's agent
#     make study SEEDS='41' ASKING=hard CELLS='table3 best amounts'    # the paper's Table 3 and Fig. 3
#     make study SEEDS='41' ASKING=hard CELLS='parts own'        # which pairs teach; whose candidates
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
critic-likelihood := $(CRITIC) --nll 0.2 --beta 1e-6
critic-full-without-c       := $(critic-full) --context without-c
critic-without-c            := $(critic-nll-0.2) --context without-c
critic-0.02-without-c       := $(critic-nll-0.02) --context without-c
critic-likelihood-without-c := $(critic-likelihood) --context without-c
CRITICS := full full-without-c nll-0.2 likelihood likelihood-without-c    # of these the study measures the ranking

# The paper's Table 3 (sum: no length normalisation), and a value head for best of N. None of them had trials.
critic-sum        := $(CRITIC) --advantage sum --beta 0.3
critic-regression := $(CRITIC) --head regression
critic-value      := --head value --lr 3e-4 --epochs 3
TABLE3            := full-without-c sum regression

$(RUN)/critic-%/config.json: $(RUN)/train.metrics.json
	$(call stage,critic: $*)
	$(EACH) train_critic.py $(FLAGS) $(FIT) --run-name $(NAME) $(critic-$*) --out $(@D)

# A half-written ranking is not the target.
PART = $(@:.jsonl=.part.jsonl)
$(RUN)/ranked-%.jsonl: $(RUN)/critic-%/config.json $(RUN)/train.candidates.rollout.json
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --critic $(RUN)/critic-$* \
	  --score $(RUN)/train.candidates.jsonl --out $(PART)
	mv $(PART) $@

# ------------------------------------------------------------------------------------------------ policies
# A first trial has the demo's settings. What starts at the imitating agent starts at its best trial, the second.
REJECTION_TRIAL := --method rejection-ft $(REJECTION)
DPO_TRIAL       := --method multi-turn-dpo $(TRAJECTORY)
SWEET_TRIAL     := --method sweet $(POLICY)
IMITATED         = --model $(RUN)/trial-rejection-2

trial-rejection-1 := $(REJECTION_TRIAL)
trial-rejection-2 := $(REJECTION_TRIAL) --epochs 3
trial-rejection-3 := $(REJECTION_TRIAL) --lr 5e-4

trial-dpo-1 := $(DPO_TRIAL)
trial-dpo-2 := $(DPO_TRIAL) --beta 0.5
trial-dpo-3 := $(DPO_TRIAL) --lr 2e-4

trial-imitated-dpo-1 = $(IMITATED) $(DPO_TRIAL) --lr 2e-4
trial-imitated-dpo-2 = $(IMITATED) $(DPO_TRIAL) --lr 1e-4
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

# Other critics than that of trial-imitated-sweet-1 or -2.
ABLATED := 0.02-without-c without-c likelihood likelihood-without-c $(TABLE3)
$(foreach critic,$(ABLATED),$(eval trial-$(critic) = $$(IMITATED) $$(SWEET_TRIAL) --in $$(RUN)/ranked-$(critic).jsonl))

# Stop pairs: behind SWEET-RL's, or alone from the imitating agent and from multi-turn DPO's.
STOP_PAIRS = $(EACH) study/stop_pairs.py --seed $(SEED) --in $(RUN)/train.scored.jsonl --add
STOPPED := stop-imitated-sweet-2 stop-without-c stop-only
$(foreach one,$(STOPPED),$(eval trial-$(one) = $$(IMITATED) $$(SWEET_TRIAL) --in $$(RUN)/$(one).jsonl))
trial-stop-dpo = --model $(RUN)/trial-imitated-dpo-2 $(SWEET_TRIAL) --in $(RUN)/stop-only.jsonl

# Baselines on twice as many episodes, which is about what SWEET-RL samples with its candidates.
trial-twice-rejection    = $(trial-rejection-2) --in $(RUN)/twice.scored.jsonl
trial-twice-imitated-dpo = --model $(RUN)/trial-twice-rejection $(DPO_TRIAL) --lr 1e-4 --in $(RUN)/twice.scored.jsonl

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
$(foreach one,$(STOPPED),$(eval $(call needs,$(one),$(RUN)/$(one).jsonl)))
$(call needs,stop-dpo,$(RUN)/stop-only.jsonl $(RUN)/trial-imitated-dpo-2/config.json)
$(call needs,$(LEADERS) $(ABLATED) $(STOPPED),$(RUN)/trial-rejection-2/config.json)
$(call needs,twice-rejection twice-imitated-dpo,$(RUN)/twice.metrics.json)
$(call needs,twice-imitated-dpo,$(RUN)/trial-twice-rejection/config.json)

$(RUN)/twice.rollout.json: $(RUN)/base/config.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/tasks/train.jsonl --limit 800 --samples 6 \
	  $(PLAY) --out $(RUN)/twice.trajectories.jsonl

$(RUN)/stop-only.jsonl: $(RUN)/train.metrics.json
	$(EACH) study/stop_pairs.py --in $(RUN)/train.scored.jsonl --out $@

$(RUN)/stop-imitated-sweet-2.jsonl: $(RUN)/ranked-nll-0.2.jsonl
$(RUN)/stop-without-c.jsonl: $(RUN)/ranked-without-c.jsonl
$(RUN)/stop-%.jsonl:
	$(STOP_PAIRS) $< --out $@

# ------------------------------------------------------------------------------------------------ play
$(RUN)/%.val-0.3.metrics.json: $(RUN)/%/config.json
	$(EACH) study/play.py --temperatures 1 0.5 0.3 --split val --model $(RUN)/$* -- $(FLAGS) --run-name $(NAME) \
	  --in $(RUN)/tasks/val.jsonl $(PLAY)

$(RUN)/%.test-0.3.metrics.json: $(RUN)/%/config.json
	$(EACH) study/play.py --temperatures 1 0.3 --split test --model $(RUN)/$* -- $(FLAGS) --run-name $(NAME) \
	  --in $(RUN)/tasks/test.jsonl $(PLAY)

include study/critics.mk

# ------------------------------------------------------------------------------------------------ runs from runs
# $(call run_from,folder,agent): a run on the same tasks that begins with this base agent; a newer agent begins it again
define run_from
$(1)/base/config.json: $(2)/config.json
	rm -rf $(1)
	mkdir -p $(1)
	cp -r $(RUN)/tasks $(RUN)/demonstrations.done $(1)
	cp -r $(2) $(1)/base.part
	mv $(1)/base.part $(1)/base
endef

# Each round is a run whose base agent is that of the last one: $(call round,method,number,folder of the last round)
LAST-dpo   := trial-imitated-dpo-2
LAST-sweet := trial-half-twice
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
TUNED := base trial-rejection-2 trial-dpo-3 trial-imitated-dpo-2 trial-sweet-1 trial-imitated-sweet-1 trial-imitated-sweet-2
TUNED += $(if $(ASKING),trial-rejection-1)    # six epochs

trials:  $(call at,val,$(TRIED))
leaders: $(call at,val,$(call three,trial-rejection) $(LEADERS:%=trial-%))
tuned:   $(call at,test,$(TUNED))
ablated: $(call at,test,trial-without-c trial-likelihood)
twice:   $(call at,test,trial-twice-rejection trial-twice-imitated-dpo)
table3:  $(call at,test,trial-imitated-sweet-1 $(TABLE3:%=trial-%))
amount:  $(call at,test,trial-rejection-2 trial-imitated-dpo-2 trial-imitated-sweet-1 trial-full-without-c)
amounts: amount
stopped: $(call at,test,base $(addprefix trial-,rejection-2 imitated-dpo-2 imitated-sweet-2 without-c stop-dpo $(STOPPED)))
best:    $(call at,test,base)
rounds:  $(call at,test,$(LAST-dpo) $(LAST-sweet))
truth:   $(RUN)/val.continuations.metrics.json $(CRITICS:%=$(RUN)/val-ranked-%.jsonl)

include study/parts.mk

.PHONY: trials leaders tuned ablated twice table3 amount amounts stopped best truth rounds
