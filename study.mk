# The study: is it the critic, and is it what the critic sees? Run through `make study`; RESULTS.md has what came out.
#
# A world and a seed are one folder, runs/study/WORLD/SEED, made by the demo's rules. A cell is one more critic, policy
# or baseline in it: a name, a line of flags below, and the rule of its kind. What was stopped goes on.

# One copyist for all seeds of a world (four: one a seed): what a pre-trained model is to real tasks.
FIRST := runs/study/$(WORLD)/11
ifneq ($(filter-out four,$(WORLD)),)
SEED_MODEL := $(FIRST)/copyist/config.json
endif
comma := ,
define newline


endef
include Makefile
ifneq ($(RUN),$(FIRST))
$(FIRST)/copyist/config.json:
	$(MAKE) -f study.mk $@ SEED=11 NAME=study/$(WORLD)/11
endif

# ------------------------------------------------------------------------------------------------ worlds
# four: the demo's families. eight: the first eight families of generate_tasks.py, with as many more demonstrations.
# vague: the same eight, with requests that do not say what the function is to do; questions about another family's
# details get "I do not know.", and only the reference tells from the start which those are.
# hazy: vague, of which a second copyist failed the criterion below, with a copyist of three epochs and a base agent that
# asks for more.
# wide: four with twice the width, a stronger base (Table 4).
# A world counts if its copyist succeeds in more than 85% of the tasks and its base agent in 10 to 40% (cell: world);
# none was changed after its results were seen.
# All worlds were made so; the demo's copyist has since had half of that, and every core.
COPYIST  := --epochs 2
ALONE    := $(EACH)
ifeq ($(WORLD),wide)
COPYIST  += --tiny-width 256
endif
ifneq ($(filter eight vague hazy,$(WORLD)),)
GENERATE := --families total,average,best,fee,score,code,group,tiers --train 1600 --val 200 --test 500
COMPLETE := --demonstrations 14000 --ask 1 --waste 0
endif
ifneq ($(filter vague hazy,$(WORLD)),)
GENERATE += --request vague
endif
ifeq ($(WORLD),hazy)
COPYIST   := --epochs 3
IMPERFECT := --demonstrations 4000 --ask 0.85 --waste 0.4
endif

# ------------------------------------------------------------------------------------------------ critics
critic-full             := $(CRITIC)
critic-without-c        := $(CRITIC) --context without-c
critic-likelihood-alone := $(CRITIC) --beta 1e-6
critic-one-mean         := $(CRITIC) --advantage mean-per-trajectory
critic-sum              := $(CRITIC) --advantage sum --beta 0.1
critic-regression       := $(CRITIC) --head regression --nll 0.01
critic-value            := --head value --lr 3e-4 --epochs 3
critic-q-without-c      := --head q --context without-c --lr 3e-4 --epochs 3
critic-paper            :=
SIZES                   := 25 50 100 200
$(foreach n,$(SIZES),$(eval critic-full-$n := $(CRITIC) --limit-tasks $n))
$(foreach n,$(SIZES),$(eval critic-without-c-$n := $(CRITIC) --context without-c --limit-tasks $n))
critic-full-1600        := $(CRITIC) --in $(RUN)/all.scored.jsonl
critic-without-c-1600   := $(critic-full-1600) --context without-c
critic-full-800         := $(CRITIC) --in $(RUN)/twice.scored.jsonl
# Less of the NLL term, which could do Eq. 2's work: the demo's weight is 2, the paper's 0.01.
NLL                     := 0.01 0.2
$(foreach n,$(NLL),$(eval critic-full-nll-$n := $(CRITIC) --nll $n))
$(foreach n,$(NLL),$(eval critic-without-c-nll-$n := $(CRITIC) --nll $n --context without-c))
MANY       := full-1600 without-c-1600
SURFACE    := full without-c $(foreach n,$(SIZES),full-$n without-c-$n)
LESS_NLL   := $(foreach n,$(NLL),full-nll-$n without-c-nll-$n)
INGREDIENT := likelihood-alone one-mean sum regression value q-without-c

$(RUN)/critic-%/config.json: $(RUN)/train.metrics.json
	$(call stage,critic: $*)
	$(EACH) train_critic.py $(FLAGS) --run-name $(NAME) $(critic-$*) --out $(RUN)/critic-$*
$(MANY:%=$(RUN)/critic-%/config.json): $(RUN)/all.metrics.json
$(RUN)/critic-full-800/config.json: $(RUN)/twice.metrics.json

# ------------------------------------------------------------------------------------------------ policies
# Settings, here and of the baselines, are the demo's: the best of the grids below.
RANKED = $(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method sweet $(POLICY)

$(RUN)/policy-random/config.json: $(RUN)/train.candidates.rollout.json
	$(call stage,policy: ranked at random)
	$(RANKED) --critic random --out $(@D)

$(RUN)/policy-monte-carlo-%/config.json: $(RUN)/%.continuations.metrics.json
	$(call stage,policy: ranked by Monte-Carlo returns of $*)
	$(RANKED) --critic $(RUN)/$*.continuations.scored.jsonl --out $(@D)

$(RUN)/policy-%/config.json: $(RUN)/critic-%/config.json $(RUN)/train.candidates.rollout.json
	$(call stage,policy: ranked by $*)
	$(RANKED) --critic $(RUN)/critic-$* --out $(@D)

# The flags' defaults are the paper's Table 5: 16 candidates, one pair a turn, learning rates of 2e-7.
$(RUN)/policy-paper/config.json: $(RUN)/critic-paper/config.json $(RUN)/sixteen.candidates.rollout.json
	$(call stage,policy: the settings of the paper)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method sweet --in $(RUN)/sixteen.candidates.jsonl \
	  --critic $(RUN)/critic-paper --out $(@D)

# 16 candidates a turn: as many tokens as five times the episodes sample.
$(RUN)/sixteen.candidates.rollout.json: $(RUN)/train.metrics.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --candidates 16 --fraction 0.25 $(SAMPLE) \
	  --out $(RUN)/sixteen.candidates.jsonl

$(RUN)/policy-sixteen/config.json: $(RUN)/critic-full/config.json $(RUN)/sixteen.candidates.rollout.json
	$(call stage,policy: ranked by full, 16 candidates)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method sweet $(sweet-1) --pairs-per-turn 4 \
	  --in $(RUN)/sixteen.candidates.jsonl --critic $(RUN)/critic-full --out $(@D)

# ------------------------------------------------------------------------------------------------ Fig. 3 of the paper
# 3a: the base agent samples N actions a turn, and a step reward plays one: $(call best,critic,N,its --step-reward)
BEST := 2 4 8 16
define best
$(RUN)/best-$(1)-$(2).test.rollout.json: $(RUN)/critic-$(1)/config.json
	$$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split test --in $(RUN)/tasks/test.jsonl $(PLAY) --limit 200 \
	  --model $(RUN)/base --best-of-n $(2) --step-reward $(3) --critic $(RUN)/critic-$(1) \
	  --out $(RUN)/best-$(1)-$(2).test.trajectories.jsonl
endef
$(foreach n,$(BEST),$(eval $(call best,full,$n,critic)))
$(foreach n,$(BEST),$(eval $(call best,without-c,$n,critic-without-c)))
$(foreach n,$(BEST),$(eval $(call best,value,$n,value)))

# 3b: all stages on the first N tasks alone; 800 are the baselines' twice
AMOUNTS := 50 100 200
# $(call of-tasks,method,its critic)
define of-tasks
$(RUN)/$(1)-of-%/config.json: $(RUN)/$(2)-%/config.json $(RUN)/train.candidates.rollout.json
	$$(call stage,SWEET-RL on $$* tasks: $(2))
	$$(RANKED) --limit-tasks $$* --critic $(RUN)/$(2)-$$* --out $$(@D)
endef
$(eval $(call of-tasks,sweet,critic-full))
$(eval $(call of-tasks,without-c,critic-without-c))

$(RUN)/twice.candidates.rollout.json: $(RUN)/twice.metrics.json
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/twice.scored.jsonl $(CANDIDATES) $(SAMPLE) \
	  --out $(RUN)/twice.candidates.jsonl

$(RUN)/sweet-of-800/config.json: $(RUN)/critic-full-800/config.json $(RUN)/twice.candidates.rollout.json
	$(call stage,SWEET-RL on 800 tasks)
	$(RANKED) --in $(RUN)/twice.candidates.jsonl --critic $(RUN)/critic-full-800 --out $(@D)

$(RUN)/rejection-of-%/config.json: $(RUN)/train.metrics.json
	$(call stage,rejection fine-tuning on $* tasks)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) $(base-rejection) --limit-tasks $* --out $(@D)

$(RUN)/dpo-of-%/config.json: $(RUN)/train.metrics.json
	$(call stage,multi-turn DPO on $* tasks)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) $(base-dpo) --limit-tasks $* --out $(@D)

# Its control: baselines of 200 tasks that train as long as both stages of SWEET-RL on these, by tokens or by steps.
tokens-rejection := --epochs 35
tokens-dpo       := --epochs 8
steps-rejection  := --epochs 110
steps-dpo        := --epochs 24
LONGER           := as-many-tokens-rejection as-many-tokens-dpo as-many-steps-rejection as-many-steps-dpo

$(RUN)/as-many-%/config.json: $(RUN)/train.metrics.json
	$(call stage,baseline on 200 tasks with as many $*)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) $(base-$(lastword $(subst -, ,$*))) --limit-tasks 200 $($*) --out $(@D)

# ------------------------------------------------------------------------------------------------ Table 4 of the paper
# A stronger base learns from what the weaker one gathered: after the cell with-c of world four, same seed.
WEAKER := runs/study/four/$(SEED)
$(RUN)/of-weaker-sweet/config.json: $(RUN)/base/config.json $(WEAKER)/critic-full/config.json
	$(RANKED) --in $(WEAKER)/train.candidates.jsonl --critic $(WEAKER)/critic-full --out $(@D)

$(RUN)/of-weaker-%/config.json: $(RUN)/base/config.json
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) $(base-$*) --in $(WEAKER)/train.scored.jsonl --out $(@D)

# ------------------------------------------------------------------------------------------------ baselines
# On the demo's 2,400 episodes, and on twice as many, which is about what SWEET-RL samples with four candidates a turn.
base-rejection   := --method rejection-ft $(REJECTION)
base-dpo         := --method multi-turn-dpo $(TRAJECTORY)
base-dpo-6        = --method multi-turn-dpo $(dpo-6)    # the grid's best, had two seeds chosen (RESULTS.md)
base-normalised  := --method multi-turn-dpo --loss length-normalised-dpo --beta 50 --nll 1 --lr 4e-4 --epochs 3
twice-episodes   := --limit 800 --samples 6
all-episodes     := --samples 6

$(RUN)/once-%/config.json: $(RUN)/train.metrics.json
	$(call stage,baseline on as many episodes: $*)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) $(base-$*) --out $(RUN)/once-$*

$(RUN)/twice.rollout.json $(RUN)/all.rollout.json: $(RUN)/%.rollout.json: $(RUN)/base/config.json
	$(call stage,more episodes: $($*-episodes))
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/tasks/train.jsonl $($*-episodes) $(PLAY) \
	  --out $(RUN)/$*.trajectories.jsonl

$(RUN)/twice-%/config.json: $(RUN)/twice.metrics.json
	$(call stage,baseline on as many sampled tokens: $*)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) $(base-$*) --in $(RUN)/twice.scored.jsonl --out $(RUN)/twice-$*

$(RUN)/%.continuations.metrics.json: $(RUN)/%.continuations.rollout.json
	$(EACH) evaluate.py --in $(RUN)/$*.continuations.jsonl

# ------------------------------------------------------------------------------------------------ Monte-Carlo truth
# About 150 turns of 24 validation tasks, 16 candidates each, each distinct one played to its end eight times.
TRUTH := $(EACH) rollout.py --seed 1$(SEED) --domain $(DOMAIN) --split val --model $(RUN)/base

$(RUN)/val.rollout.json: $(RUN)/base/config.json
	$(call stage,Monte-Carlo truth: validation tasks)
	$(TRUTH) --in $(RUN)/tasks/val.jsonl --limit 24 $(PLAY) --out $(RUN)/val.trajectories.jsonl

$(RUN)/val.candidates.rollout.json: $(RUN)/val.metrics.json
	$(TRUTH) --candidates 16 --in $(RUN)/val.scored.jsonl $(SAMPLE) --out $(RUN)/val.candidates.jsonl

$(RUN)/val.continuations.rollout.json: $(RUN)/val.candidates.rollout.json
	$(call stage,Monte-Carlo truth: continuations)
	$(TRUTH) --continue 8 --in $(RUN)/val.candidates.jsonl $(PLAY) --out $(RUN)/val.continuations.jsonl

# Returns of the candidates that the policy learns from, when an agent (base, or a better one) plays on behind them.
$(RUN)/%.continuations.rollout.json: $(RUN)/%/config.json $(RUN)/train.candidates.rollout.json
	$(call stage,Monte-Carlo returns: $* plays the candidates to the end)
	$(EACH) rollout.py --seed 1$(SEED) --domain $(DOMAIN) --split train --in $(RUN)/train.candidates.jsonl --continue 4 \
	  $(PLAY) --model $(RUN)/$* --out $(RUN)/$*.continuations.jsonl

$(RUN)/ranked-by-%.jsonl: $(RUN)/critic-%/config.json $(RUN)/val.candidates.rollout.json
	$(EACH) train_critic.py --critic $(RUN)/critic-$* --annotate $(RUN)/val.candidates.jsonl --out $@ --overwrite

# ------------------------------------------------------------------------------------------------ grids (seed 0 only)
# Eight settings a method, the first being the demo's before; 200 validation tasks, one episode each.
sweet-1      := --beta 2 --nll 1 --lr 2e-4 --epochs 1
sweet-2      := --beta 2 --nll 1 --lr 4e-4 --epochs 1
sweet-3      := --beta 2 --nll 1 --lr 2e-4 --epochs 2
sweet-4      := --beta 1 --nll 1 --lr 4e-4 --epochs 1
sweet-5      := --beta 5 --nll 1 --lr 4e-4 --epochs 1
sweet-6      := --beta 0.5 --nll 1 --lr 2e-4 --epochs 2
sweet-7      := --beta 1 --nll 1 --lr 2e-4 --epochs 2
sweet-8      := --beta 2 --nll 1 --lr 2e-4 --epochs 3
rejection-1  := --lr 1e-3 --batch-size 16 --epochs 8
rejection-2  := --lr 1e-3 --batch-size 16 --epochs 4
rejection-3  := --lr 5e-4 --batch-size 16 --epochs 8
rejection-4  := --lr 2e-3 --batch-size 16 --epochs 8
rejection-5  := --lr 1e-3 --batch-size 16 --epochs 12
rejection-6  := --lr 1e-3 --batch-size 16 --epochs 16
rejection-7  := --lr 2e-3 --batch-size 16 --epochs 12
rejection-8  := --lr 5e-4 --batch-size 16 --epochs 16
dpo-1        := --beta 2 --nll 1 --lr 4e-4 --epochs 3
dpo-2        := --beta 2 --nll 1 --lr 2e-4 --epochs 3
dpo-3        := --beta 5 --nll 1 --lr 4e-4 --epochs 3
dpo-4        := --beta 0.5 --nll 1 --lr 4e-4 --epochs 3
dpo-5        := --beta 2 --nll 1 --lr 8e-4 --epochs 2
dpo-6        := --beta 0.5 --nll 1 --lr 2e-4 --epochs 3
dpo-7        := --beta 0.2 --nll 1 --lr 4e-4 --epochs 3
dpo-8        := --beta 0.5 --nll 1 --lr 4e-4 --epochs 5
normalised-1 := --beta 200 --nll 1 --lr 4e-4 --epochs 3
normalised-2 := --beta 50 --nll 1 --lr 4e-4 --epochs 3
normalised-3 := --beta 10 --nll 1 --lr 4e-4 --epochs 3
normalised-4 := --beta 50 --nll 1 --lr 8e-4 --epochs 2
normalised-5 := --beta 50 --nll 0.2 --lr 4e-4 --epochs 3
normalised-6 := --beta 10 --nll 1 --lr 8e-4 --epochs 2
normalised-7 := --beta 10 --nll 1 --lr 4e-4 --epochs 5
normalised-8 := --beta 2 --nll 1 --lr 4e-4 --epochs 3
GRID         := $(foreach method,sweet rejection dpo normalised,$(addprefix $(method)-,1 2 3 4 5 6 7 8))

$(RUN)/grid/sweet-%/config.json: $(RUN)/critic-full/config.json $(RUN)/train.candidates.rollout.json
	$(call stage,grid: SWEET-RL $(sweet-$*))
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method sweet --pairs-per-turn 2 $(sweet-$*) \
	  --critic $(RUN)/critic-full --out $(@D)

$(RUN)/grid/rejection-%/config.json: $(RUN)/train.metrics.json
	$(call stage,grid: rejection fine-tuning $(rejection-$*))
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method rejection-ft $(rejection-$*) --out $(@D)

$(RUN)/grid/dpo-%/config.json: $(RUN)/train.metrics.json
	$(call stage,grid: multi-turn DPO $(dpo-$*))
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method multi-turn-dpo $(dpo-$*) --out $(@D)

$(RUN)/grid/normalised-%/config.json: $(RUN)/train.metrics.json
	$(call stage,grid: length-normalised multi-turn DPO $(normalised-$*))
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) --method multi-turn-dpo --loss length-normalised-dpo \
	  $(normalised-$*) --out $(@D)

# ------------------------------------------------------------------------------------------------ rounds
# Three rounds, each on the dialogues that the last round's agent has on another third of the tasks.
# Those of demo-llm: make -f study.mk LLM=yes NAME=llm-rounds rounds
# $(call played,dialogues,agent,lines of tasks)
define played
$(RUN)/$(1).rollout.json: $(RUN)/$(2)/config.json
	sed -n '$(3)p' $(RUN)/tasks/train.jsonl > $(RUN)/$(1).tasks.jsonl
	$$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train --in $(RUN)/$(1).tasks.jsonl $(OFFLINE) $(PLAY) \
	  --model $(RUN)/$(2) --out $(RUN)/$(1).trajectories.jsonl
endef
# $(call sweet,round,agent,rounds so far): the critic learns from all dialogues so far, the policy from the new ones
define sweet
$(RUN)/$(1)/config.json: $(RUN)/$(2)/config.json $(3:%=$(RUN)/%.metrics.json)
	cat $(3:%=$(RUN)/%.scored.jsonl) > $(RUN)/$(1).so-far.jsonl
	$$(EACH) train_critic.py $(FLAGS) $(FIT) --run-name $(NAME) $(CRITIC) --in $(RUN)/$(1).so-far.jsonl \
	  --out $(RUN)/$(1)-critic
	$$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train $(CANDIDATES) $(SAMPLE) \
	  --model $(RUN)/$(2) --in $(RUN)/$(1).scored.jsonl --out $(RUN)/$(1).candidates.jsonl
	$$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) --method sweet $(POLICY) --model $(RUN)/$(2) \
	  --in $(RUN)/$(1).candidates.jsonl --critic $(RUN)/$(1)-critic --out $(RUN)/$(1)
endef
# $(call baseline,its name,method,agent,dialogues)
define baseline
$(RUN)/$(1)/config.json: $(RUN)/$(3)/config.json $(RUN)/$(4).metrics.json
	$$(EACH) train_policy.py $(FLAGS) $(FIT) --run-name $(NAME) $(base-$(2)) --model $(RUN)/$(3) --in $(RUN)/$(4).scored.jsonl \
	  --out $$(@D)
endef
SECOND := 134$(comma)266
THIRD  := 267$(comma)400
$(eval $(call played,round-1,base,1$(comma)133))
$(eval $(call sweet,round-1,base,round-1))
$(eval $(call played,round-2,round-1,$(SECOND)))
$(eval $(call sweet,round-2,round-1,round-1 round-2))
$(eval $(call played,round-3,round-2,$(THIRD)))
$(eval $(call sweet,round-3,round-2,round-1 round-2 round-3))
$(foreach method,rejection dpo,\
  $(eval $(call baseline,$(method)-round-1,$(method),base,round-1))\
  $(eval $(call played,$(method)-round-2,$(method)-round-1,$(SECOND)))\
  $(eval $(call baseline,$(method)-round-2,$(method),$(method)-round-1,$(method)-round-2))\
  $(eval $(call played,$(method)-round-3,$(method)-round-2,$(THIRD)))\
  $(eval $(call baseline,$(method)-round-3,$(method),$(method)-round-2,$(method)-round-3)))
# The control: the same three rounds, but all dialogues are the base agent's.
$(eval $(call played,stale-2,base,$(SECOND)))
$(eval $(call sweet,stale-2,round-1,round-1 stale-2))
$(eval $(call played,stale-3,base,$(THIRD)))
$(eval $(call sweet,stale-3,stale-2,round-1 stale-2 stale-3))
$(foreach method,rejection dpo,\
  $(eval $(call baseline,$(method)-stale-2,$(method),$(method)-round-1,stale-2))\
  $(eval $(call baseline,$(method)-stale-3,$(method),$(method)-stale-2,stale-3)))
# SWEET-RL teaches to ask; to imitate what was won in the last round's dialogues teaches to write the answer as well.
# ONCE: the same after one round, on the offline dialogues.
LAST := round-3 rejection-round-3 dpo-round-3
ONCE := policy-full once-rejection once-dpo
$(foreach last,$(LAST),$(eval $(call baseline,$(last)-imitated,rejection,$(last),$(last))))
$(foreach once,$(ONCE),$(eval $(call baseline,$(once)-imitated,rejection,$(once),train)))

# Each agent's likeliest action: few scripts a family, so that a seed is few observations (RESULTS.md)
$(eval $(call plays,greedy,test,--temperature 0))

# ------------------------------------------------------------------------------------------------ cells by question
AT_EQUAL_COST := policy-full policy-without-c policy-likelihood-alone once-rejection once-dpo twice-rejection twice-dpo
BESIDE        := policy-sixteen policy-random once-normalised twice-normalised policy-paper
LITTLE        := policy-full-50 policy-without-c-50    # the critic's data: 50 tasks; the candidates are of all
TABLE3        := $(INGREDIENT:%=policy-%)
WITH_LESS_NLL := $(LESS_NLL:%=policy-%)
RETURNS       := policy-monte-carlo-base policy-monte-carlo-policy-full
BEST_OF_N     := $(foreach critic,full without-c value,$(addprefix best-$(critic)-,$(BEST)))
BY_AMOUNT     := $(foreach method,sweet without-c rejection dpo,$(addprefix $(method)-of-,$(AMOUNTS)))
DOUBLED       := sweet-of-800 twice-rejection twice-dpo
ITERATED      := $(LAST) $(LAST:%=%-imitated)
STALE         := stale-3 rejection-stale-3 dpo-stale-3
IMITATED      := $(ONCE) $(ONCE:%=%-imitated)
STRONGER      := policy-full once-rejection once-dpo of-weaker-sweet of-weaker-rejection of-weaker-dpo
played = $(patsubst %,$(RUN)/%.$(1).metrics.json,$(2))
tested = $(call played,test,$(1))
both   = $(foreach at,test half,$(call played,$(at),$(1)))
ranked = truth $(patsubst %,$(RUN)/ranked-by-%.jsonl,$(1))

critics: $(patsubst %,$(RUN)/critic-%/config.json,full without-c likelihood-alone)
truth:   $(RUN)/val.continuations.metrics.json
world:   $(patsubst %,$(RUN)/%.val.metrics.json,base $(if $(filter $(FIRST),$(RUN)),copyist))    # does it count?
surface: $(call ranked,$(SURFACE))
many:    $(call ranked,$(MANY))
table3:  $(call ranked,full without-c $(INGREDIENT))
nll:     $(call ranked,full without-c likelihood-alone $(LESS_NLL)) $(call both,$(WITH_LESS_NLL))
grid:    $(patsubst %,$(RUN)/grid/%.val.metrics.json,$(GRID))
equal:   $(call tested,base $(AT_EQUAL_COST))
with-c:  $(call tested,base policy-full policy-without-c)
episodes: $(call both,base policy-full policy-without-c once-rejection once-dpo)
little:  $(call tested,$(LITTLE))
beside:  $(call tested,$(BESIDE))
upper:   $(call tested,$(RETURNS))
heads:   $(call tested,$(TABLE3))
best:    $(call tested,$(BEST_OF_N))
amounts: $(call tested,$(BY_AMOUNT))
of-200:  $(call both,base $(filter %-200,$(BY_AMOUNT)))
doubled: $(call tested,$(DOUBLED))
longer:  $(call tested,$(LONGER))
second:  $(call both,once-dpo-6 twice-dpo-6)
weaker:  $(call tested,base $(STRONGER))    # of world wide
rounds:  $(call tested,$(ITERATED))
stale:   $(call tested,base $(STALE))
imitated: $(call tested,base $(IMITATED))
# The same agents at other temperatures: half, half-heads, ..., greedy-amounts.
define cooler
$(1):         $(call played,$(1),base $(AT_EQUAL_COST))
$(1)-heads:   $(call played,$(1),$(TABLE3))
$(1)-rounds:  $(call played,$(1),$(ITERATED))
$(1)-amounts: $(call played,$(1),$(BY_AMOUNT))
$(1)-longer:  $(call played,$(1),$(LONGER))
endef
$(foreach at,half greedy,$(eval $(call cooler,$(at))))

# ------------------------------------------------------------------------------------------------ tables
# Of what is there: of one seed with SEEDS=14, else of all with two digits (0 and 1 chose settings). Names may lack seeds.
OF := runs/study/$(WORLD)/$(if $(word 2,$(SEEDS)),??,$(or $(SEEDS),??))
made = $(if $(wildcard $(OF)/$(2)),$(1)='$(OF)/$(2)')
TRUTH_OF_ALL := '$(OF)/val.continuations.scored.jsonl'
table   = @echo '\#\# $(1)'; $(if $(strip $(3)),$(PY) evaluate.py $(2) --compare $(strip $(3)) || true,echo not run yet)
rank    = $(call table,Critics: $(1),--truth $(TRUTH_OF_ALL) --json $(OF:/??=)/critics-$(2).json,\
            $(foreach n,$(3),$(call made,$n,ranked-by-$n.jsonl)))
# $(call at,suffix of the files,title,names,name of a JSON file): the agents at one temperature
at = $(call table,$(2),$(4:%=--json $(OF:/??=)/%-$(1).json),$(foreach n,$(3),$(call made,$n,$n.$(1).scored.jsonl)))
define compare
$(call at,test,Agents: $(1),$(2),$(3))
$(call at,half,Temperature 0.5: $(1),$(2),$(3))
$(call at,greedy,Temperature 0: $(1),$(2),$(3))
endef
report:
	$(foreach n,$(SIZES),$(call rank,$n tasks,$n,full-$n without-c-$n)$(newline))
	$(call rank,400 tasks,400,full without-c)
	$(call rank,1600 tasks,1600,$(MANY))
	$(if $(wildcard $(OF)/ranked-by-value.jsonl),$(call rank,made of (Table 3),table3,full without-c $(INGREDIENT)))
	$(if $(wildcard $(OF)/ranked-by-full-nll-0.2.jsonl),$(call rank,with less of the NLL term,nll,full without-c likelihood-alone $(LESS_NLL)))
	$(if $(wildcard $(OF)/grid),$(call table,Agents: the grids (validation tasks),,$(foreach n,$(GRID),$(call made,$n,grid/$n.val.scored.jsonl))))
	$(call compare,at equal cost,$(AT_EQUAL_COST) base)
	$(if $(filter wide,$(WORLD)),$(call compare,learning from a weaker base (Table 4),base $(STRONGER)))
	$(call compare,critics of 50 tasks,$(LITTLE))
	$(if $(wildcard $(OF)/policy-full-nll-0.2),$(call compare,critics with less of the NLL term,policy-full policy-without-c policy-likelihood-alone $(WITH_LESS_NLL)))
	$(call compare,other rankings and losses,policy-full $(RETURNS) $(BESIDE) $(TABLE3))
	$(call compare,three rounds instead of one,$(ONCE) $(ITERATED) $(STALE))
	$(call compare,and imitation after one round,$(IMITATED))
	$(call compare,best of N (Fig. 3a),base $(BEST_OF_N))
	$(call compare,settings that two tuning seeds would choose,policy-full once-dpo once-dpo-6 twice-dpo twice-dpo-6)
	$(call compare,200 tasks and as much training,sweet-of-200 rejection-of-200 dpo-of-200 $(LONGER))
	$(call compare,by amount of data (Fig. 3b),policy-full once-rejection once-dpo $(BY_AMOUNT) $(DOUBLED),amounts)
.PHONY:  report critics world truth surface many table3 nll grid equal with-c episodes little beside upper heads best amounts \
         of-200 doubled longer second weaker rounds stale imitated greedy half $(foreach at,greedy half,$(at)-heads $(at)-rounds $(at)-amounts $(at)-longer)
