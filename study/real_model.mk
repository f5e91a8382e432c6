# The study of a real model, SmolLM2-135M-Instruct, where asking is the hard part (study/real_model.md).
#
#     make -f study/real_model.mk real SEED=1    # the methods
#     make -f study/real_model.mk stop SEED=1    # the critic or an oracle, with and without stop pairs (study/oracle.md)
#     make -f study/real_model.mk again SEED=2   # a second round, on dialogues of the imitating agent (study/stop.md)
#     make -f study/real_model.mk perfect SEED=2 # what a perfect agent's dialogues teach (study/perfect.md)
#     make -f study/real_model.mk three SEED=2   # three trials of each method (study/three_trials.md)
#     make -f study/real_model.mk more SEED=2    # from four times the dialogues (study/more_dialogues.md)
#     make -f study/real_model.mk which SEED=2   # which pairs teach (study/which_pairs.md)
#     make -f study/real_model.mk most SEED=2    # stage 2 from the agent that imitates all wins (study/more_dialogues.md)
#     make -f study/real_model.mk last SEED=3    # three trials of each method from there (study/last_recipe.md); pooled: seeds 3 and 4
#
# The folder runs/real/SEED holds one seed. Each stage takes both cores.

NAME   := real/$(SEED)
LLM    := yes
ASKING := hard

# Whose candidates cell last ranks, by which critic, and where.
OWN        := all-rejection most-dpo
OWN_CRITIC := all
OWN_NEEDS   = $(RUN)/first.scored.jsonl
OWN_FLAGS   = --in $(RUN)/first.scored.jsonl --candidates 8 --temperature 1
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
trial-imitated-sweet-2 = $(RANKED) --pairs-per-turn 2 --in $(RUN)/ranked-nll-0.2.jsonl
RANKED                 = $(IMITATED) --method sweet --beta 2 --nll 1 --lr 5e-5 --batch-size 32 --epochs 1

real: $(call at,test,base trial-rejection-2 trial-imitated-sweet-2 trial-imitated-dpo-2)

# Candidates of the imitating agent, at the temperature of the episodes (fresh) or at 1 (warm), ranked by an oracle, by the
# critic, or by a critic that learned from rewards less the dialogue's cost.
DRAWN := fresh warm
fresh := 0.5
warm  := 1
$(DRAWN:%=$(RUN)/%.candidates.rollout.json): $(RUN)/%.candidates.rollout.json: $(RUN)/trial-rejection-2/config.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --candidates 8 --fraction 0.25 --temperature $($*) \
	  $(SAMPLE) --model $(<D) --out $(RUN)/$*.candidates.jsonl

$(DRAWN:%=$(RUN)/%-oracle.jsonl): $(RUN)/%-oracle.jsonl: $(RUN)/%.candidates.rollout.json
	$(EACH) study/rank_oracle.py --in $(RUN)/$*.candidates.jsonl --out $@

define rank
$(RUN)/$(1)-%.jsonl: $(RUN)/critic-%/config.json $(RUN)/$(1).candidates.rollout.json
	$$(EACH) train_critic.py $$(FIT) --run-name $$(NAME) --critic $$(<D) --score $(RUN)/$(1).candidates.jsonl --out $$(PART)
	mv $$(PART) $$@
endef
$(foreach one,$(DRAWN) own-most-dpo,$(eval $(call rank,$(one))))

critic-shaped = --beta 5 --nll 0.2 --lr 5e-5 --epochs 1 --in $(RUN)/shaped.scored.jsonl --pair-rule all --min-gap 0.3
$(RUN)/critic-shaped/config.json: $(RUN)/shaped.scored.jsonl
$(RUN)/shaped.scored.jsonl: $(RUN)/train.metrics.json
	$(EACH) study/shape_rewards.py --in $(RUN)/train.scored.jsonl --out $@

# Each with stop pairs behind it, and stop pairs alone.
FRESH := $(addprefix fresh-,oracle nll-0.2 shaped)
STOP  := stop-only $(FRESH:%=stop-%)
WARM  := $(addprefix warm-,oracle nll-0.2 all)
RANKINGS := $(FRESH) $(WARM)
FLIPPED  := $(addprefix flipped-,critic random)
$(RANKINGS:%=$(RUN)/stop-%.jsonl): $(RUN)/stop-%.jsonl: $(RUN)/%.jsonl

STOPPING := $(STOP) $(WARM:%=stop-%)
$(foreach one,$(RANKINGS),$(eval trial-$(one) = $$(RANKED) --pairs-per-turn 2 --in $$(RUN)/$(one).jsonl))
$(foreach one,$(STOPPING),$(eval trial-$(one) = $$(RANKED) --in $$(RUN)/$(one).jsonl))
$(foreach one,$(RANKINGS) $(STOPPING),$(eval $(call needs,$(one),$(RUN)/$(one).jsonl)))
$(call needs,$(RANKINGS) $(STOPPING),$(RUN)/trial-rejection-2/config.json)

stop: $(call at,test,$(addprefix trial-,rejection-2 imitated-dpo-2 $(FRESH) $(STOP)))

# What a perfect agent's dialogues teach, by their number (study/perfect.md).
$(RUN)/perfect.jsonl: $(RUN)/tasks/done
	$(EACH) $(TASKS) $(FLAGS) --in $(RUN)/tasks/train.jsonl --demonstrations 1200 --ask 1 --waste 0 --out $@

$(RUN)/perfect-%.jsonl: $(RUN)/perfect.jsonl
	head -n $* $< > $@

LEARN              = --method sft --batch-size 8 --epochs 1
trial-perfect-1200 = $(LEARN) --model $(RUN)/base --lr 3e-4 --with-c 0.33 --in $(RUN)/perfect-1200.jsonl
trial-perfect-400  = $(LEARN) $(IMITATED) --lr 2e-4 --in $(RUN)/perfect-400.jsonl
trial-perfect-120  = $(LEARN) $(IMITATED) --lr 2e-4 --in $(RUN)/perfect-120.jsonl
trial-longer-120   = $(trial-perfect-120) --batch-size 16 --epochs 4
$(foreach n,120 400 1200,$(eval $(call needs,perfect-$(n),$(RUN)/perfect-$(n).jsonl $(RUN)/trial-rejection-2/config.json)))
$(call needs,longer-120,$(RUN)/perfect-120.jsonl $(RUN)/trial-rejection-2/config.json)

# The oracle's pairs at another rate, from likelihood alone, from candidates at temperature 1, and these three times over.
trial-oracle-fast   = $(trial-stop-fresh-oracle) --lr 2e-4
trial-oracle-nll    = $(trial-oracle-fast) --beta 1e-6
trial-longer-oracle = $(trial-stop-warm-oracle) --epochs 3
$(call needs,oracle-fast oracle-nll,$(RUN)/stop-fresh-oracle.jsonl $(RUN)/trial-rejection-2/config.json)
$(call needs,longer-oracle,$(RUN)/stop-warm-oracle.jsonl)

perfect: $(call at,val,$(addprefix trial-,rejection-2 perfect-120 longer-120 perfect-400 perfect-1200))
perfect: $(call at,val,$(addprefix trial-,stop-fresh-oracle oracle-fast oracle-nll stop-warm-oracle longer-oracle))
perfect: $(call at,test,trial-rejection-2 trial-longer-oracle)

# Three trials of each method: on validation tasks first, then what is best there on test tasks.
trial-rejection-1    := $(trial-rejection-2) --epochs 8
trial-rejection-3    := $(trial-rejection-2) --epochs 2
trial-imitated-dpo-1  = $(trial-imitated-dpo-2) --lr 1e-4
trial-imitated-dpo-3  = $(trial-imitated-dpo-2) --epochs 6
trial-longer-critic   = $(trial-stop-warm-nll-0.2) --epochs 3
trial-surest          = $(trial-longer-critic) --surest 0.25
$(call needs,longer-critic surest,$(RUN)/stop-warm-nll-0.2.jsonl)

# The oracle's pairs with the critic's errors, or as many random ones.
flip-random := --random --seed $(SEED)
$(FLIPPED:%=$(RUN)/stop-%.jsonl): $(RUN)/stop-flipped-%.jsonl: $(RUN)/stop-warm-oracle.jsonl $(RUN)/warm-nll-0.2.jsonl
	$(EACH) study/flip_pairs.py --in $< --by $(RUN)/warm-nll-0.2.jsonl $(flip-$*) --out $@

$(foreach one,$(FLIPPED),$(eval trial-$(one) = $$(RANKED) --in $$(RUN)/stop-$(one).jsonl --epochs 3))
$(foreach one,$(FLIPPED),$(eval $(call needs,$(one),$(RUN)/stop-$(one).jsonl $(RUN)/trial-rejection-2/config.json)))

three: $(call at,val,$(addprefix trial-,surest $(FLIPPED)))
three: $(call at,val,$(foreach method,rejection imitated-dpo,$(call three,trial-$(method))))
three: $(call at,val,$(addprefix trial-,stop-warm-nll-0.2 longer-critic))
three: $(call at,test,$(addprefix trial-,rejection-2 rejection-1 imitated-dpo-2 longer-critic longer-oracle))

# Four times the dialogues: the base agent plays 480 further tasks. Critics from all and from the first ones.
$(RUN)/further.jsonl: $(RUN)/tasks/done
	sed -n 161,640p $(RUN)/tasks/train.jsonl > $@

$(RUN)/all.scored.jsonl: $(RUN)/further.jsonl $(RUN)/train.metrics.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $< --samples 6 --temperature 0.5 $(PLAY) \
	  --out $(RUN)/further.trajectories.jsonl
	$(EACH) evaluate.py --in $(RUN)/further.trajectories.jsonl
	cat $(RUN)/train.scored.jsonl $(RUN)/further.scored.jsonl > $@

ALL             = $(critic-nll-0.2) --in $(RUN)/all.scored.jsonl
critic-all      = $(ALL)
critic-all-fast = $(ALL) --lr 1e-4
critic-all-once = $(ALL) --epochs 1
critic-all-likelihood = $(critic-all-once) --beta 1e-6
critic-blind    = $(ALL) --epochs 1 --context without-c
critic-fast     = $(critic-nll-0.2) --lr 1e-4 --epochs 4
critic-wide     = $(critic-nll-0.2) --lr 1e-4 --epochs 1 --pair-rule all --min-gap 0.3
MORE := all all-fast all-once blind fast wide
$(foreach one,$(filter all% blind,$(MORE)),$(RUN)/critic-$(one)/config.json): $(RUN)/all.scored.jsonl
more: $(MORE:%=$(RUN)/warm-%.jsonl)

trial-all-critic    = $(RANKED) --in $(RUN)/stop-warm-all.jsonl --epochs 3
trial-all-dpo       = $(trial-imitated-dpo-2) --epochs 1 --in $(RUN)/all.scored.jsonl
trial-all-rejection = $(trial-rejection-2) --in $(RUN)/all.scored.jsonl
AGENTS := $(addprefix trial-,all-critic all-dpo all-rejection)
$(call needs,all-critic,$(RUN)/stop-warm-all.jsonl)
$(call needs,all-dpo all-rejection,$(RUN)/all.scored.jsonl)
$(call needs,all-critic all-dpo,$(RUN)/trial-rejection-2/config.json)
more: $(call at,val,trial-rejection-2 $(AGENTS)) $(call at,test,$(AGENTS))

# Which pairs teach (study/parts.mk makes them)? And the test tasks once more, four episodes each.
TAUGHT := unlike-warm-all questions-warm-oracle answers-warm-oracle
trial-half-warm-all = $(trial-all-critic) --surest 0.5
$(call needs,half-warm-all,$(RUN)/stop-warm-all.jsonl)
$(foreach one,$(TAUGHT),$(eval trial-$(one) = $$(RANKED) --in $$(RUN)/$(one).jsonl --epochs 3))
$(foreach one,$(TAUGHT),$(eval $(call needs,$(one),$(RUN)/$(one).jsonl $(RUN)/trial-rejection-2/config.json)))
which: $(call at,val,$(TAUGHT:%=trial-%) trial-half-warm-all) $(call at,test,trial-half-warm-all) $(call at,four,trial-rejection-2 $(AGENTS))

# $(call play,name,split,episodes of each task,temperature)
define play
$(RUN)/%.$(1)-$(4).metrics.json: $(RUN)/%/config.json
	$$(EACH) rollout.py $$(FLAGS) --run-name $$(NAME) --split $(2) --in $$(RUN)/tasks/$(2).jsonl --samples $(3) \
	  --seed $$(SEED)0 --temperature $(4) $$(PLAY) --model $$(<D) --out $$(RUN)/$$*.$(1)-$(4).trajectories.jsonl
	$$(EACH) evaluate.py --in $$(RUN)/$$*.$(1)-$(4).trajectories.jsonl
endef
$(eval $(call play,four,test,4,0.3))
$(eval $(call play,tried,val,4,0.3))
$(eval $(call play,test,test,1,0))

# Stage 2 from the agent that imitates all wins.
trial-most-critic = $(trial-half-warm-all) --model $(RUN)/trial-all-rejection
trial-most-dpo    = $(trial-all-dpo) --model $(RUN)/trial-all-rejection
$(call needs,most-critic,$(RUN)/stop-warm-all.jsonl)
$(call needs,most-dpo,$(RUN)/all.scored.jsonl)
$(call needs,most-critic most-dpo,$(RUN)/trial-all-rejection/config.json)
MOST := $(addprefix trial-,all-rejection most-critic most-dpo)
most: $(call at,test,$(MOST)) $(call at,four,$(MOST))

# Three trials of each method from all dialogues (study/last_recipe.md). SWEET-RL's candidates are those of the agent that it
# starts from, at the first dialogue of each task.
$(RUN)/first.scored.jsonl: $(RUN)/all.scored.jsonl
	grep '"sample": 0,' $< > $@

trial-all-rejection-2 = $(trial-all-rejection) --epochs 2
trial-all-rejection-8 = $(trial-all-rejection) --epochs 8
trial-most-dpo-2      = $(trial-most-dpo) --epochs 2
trial-most-dpo-4      = $(trial-most-dpo) --epochs 4
trial-most-sweet      = $(RANKED) $(call own,all-rejection) --epochs 3
trial-after-dpo-1     = $(RANKED) $(call own,most-dpo) --epochs 1
trial-after-dpo-3     = $(RANKED) $(call own,most-dpo) --epochs 3
trial-after-likelihood = $(trial-after-dpo-1) --in $(RUN)/stop-own-most-dpo-all-likelihood.jsonl
trial-after-dpo-stop  = $(RANKED) --model $(RUN)/trial-most-dpo --in $(RUN)/stop-only.jsonl --epochs 3
$(call needs,after-dpo-stop,$(RUN)/trial-most-dpo/config.json $(RUN)/stop-only.jsonl)
$(RUN)/stop-own-most-dpo-all-likelihood.jsonl: $(RUN)/own-most-dpo-all-likelihood.jsonl
$(call needs,after-likelihood,$(RUN)/trial-most-dpo/config.json $(RUN)/stop-own-most-dpo-all-likelihood.jsonl)
$(call needs,all-rejection-2 all-rejection-8 most-dpo-2 most-dpo-4,$(RUN)/all.scored.jsonl)
$(call needs,most-dpo-2 most-dpo-4 most-sweet,$(RUN)/trial-all-rejection/config.json)
$(call needs,after-dpo-1 after-dpo-3,$(RUN)/trial-most-dpo/config.json $(RUN)/stop-own-most-dpo.jsonl)
$(call needs,most-sweet,$(RUN)/stop-own-all-rejection.jsonl)
TRIALS := $(addprefix all-rejection,-2 -8) all-rejection most-dpo $(addprefix most-dpo,-2 -4) most-sweet after-dpo-1 after-dpo-3
most: $(call at,four,trial-after-dpo-stop)
last: $(foreach split,tried four test,$(call at,$(split),$(TRIALS:%=trial-%))) $(TRIALS:%=$(RUN)/trial-%.test-0.metrics.json)

# Seeds 3 and 4 as one; a task's name begins with its seed there: $(call pool,name,trial of seed 3,trial of seed 4)
define pool
runs/real/pooled/$(1).%.scored.jsonl:
	mkdir -p $$(@D)
	sed 's/"task_id": "/&3-/' runs/real/3/trial-$(2).$$*.scored.jsonl > $$@.part
	sed 's/"task_id": "/&4-/' runs/real/4/trial-$(3).$$*.scored.jsonl >> $$@.part
	mv $$@.part $$@
endef
$(foreach trial,$(TRIALS),$(eval $(call pool,$(trial),$(trial),$(trial))))
$(eval $(call pool,chosen-dpo,most-dpo-2,most-dpo))
pooled: $(foreach play,four-0.3 test-1 test-0,$(foreach trial,$(TRIALS) chosen-dpo,runs/real/pooled/$(trial).$(play).scored.jsonl))

# A second round: the imitating agent is the base agent of a run of its own.
$(eval $(call run_from,$(RUN)-again,$(RUN)/trial-rejection-2))
again: $(RUN)-again/base/config.json
	$(MAKE) -f study/real_model.mk SEED=$(SEED) NAME=$(NAME)-again OFFLINE='--limit 100 --samples 6 --temperature 0.5' round
round: $(call at,test,$(addprefix trial-,rejection-2 imitated-dpo-2 stop-fresh-nll-0.2))

.PHONY: real stop perfect three more which most last pooled again round
