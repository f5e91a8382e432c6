# The trials of the tuning seeds, on validation tasks: four settings for each method, each played at four temperatures.
#
#     make trials            # both tuning seeds; then python study/trials.py prints the table and what is taken
#
# Imitation comes first: what starts at the imitating agent starts at the setting that was taken there (IMITATION).
IMITATION   ?= trial-rejection-1
SWEET_TRIAL  = --method sweet --beta 2 --nll 1 --epochs 1 --pairs-per-turn 2
DPO_TRIAL   := --method multi-turn-dpo --nll 1 --epochs 3
START        = --model $(RUN)/$(IMITATION)

trial-rejection-1 := --method rejection-ft --batch-size 16 --lr 1e-3 --epochs 6
trial-rejection-2 := --method rejection-ft --batch-size 16 --lr 1e-3 --epochs 3
trial-rejection-3 := --method rejection-ft --batch-size 16 --lr 5e-4 --epochs 6
trial-rejection-4 := --method rejection-ft --batch-size 16 --lr 2e-3 --epochs 6

trial-dpo-1 := $(DPO_TRIAL) --beta 2 --lr 4e-4
trial-dpo-2 := $(DPO_TRIAL) --beta 0.5 --lr 4e-4
trial-dpo-3 := $(DPO_TRIAL) --beta 2 --lr 8e-4
trial-dpo-4 := $(DPO_TRIAL) --beta 2 --lr 2e-4

trial-imitated-dpo-1 = $(START) $(DPO_TRIAL) --beta 2 --lr 2e-4
trial-imitated-dpo-2 = $(START) $(DPO_TRIAL) --beta 2 --lr 1e-4
trial-imitated-dpo-3 = $(START) $(DPO_TRIAL) --beta 5 --lr 2e-4
trial-imitated-dpo-4 = $(START) $(DPO_TRIAL) --beta 2 --lr 4e-4

# Of the critic's NLL weight, three; of the policy's learning rate, two.
critic-nll-0.2       := $(CRITIC) --nll 0.2
critic-nll-0.02      := $(CRITIC) --nll 0.02
trial-sweet-1         = $(SWEET_TRIAL) --lr 2e-4 --in $(RUN)/ranked-full.jsonl
trial-sweet-2         = $(SWEET_TRIAL) --lr 2e-4 --in $(RUN)/ranked-nll-0.2.jsonl
trial-sweet-3         = $(SWEET_TRIAL) --lr 2e-4 --in $(RUN)/ranked-nll-0.02.jsonl
trial-sweet-4         = $(SWEET_TRIAL) --lr 4e-4 --in $(RUN)/ranked-full.jsonl
$(foreach n,1 2 3 4,$(eval trial-imitated-sweet-$n = $$(START) $$(trial-sweet-$n)))

METHODS := rejection dpo sweet imitated-dpo imitated-sweet
of       = $(foreach method,$(1),$(foreach n,1 2 3 4,trial-$(method)-$n))
$(RUN)/trial-%/config.json: $(RUN)/train.metrics.json
	$(call stage,trial: $*)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) $(trial-$*) --out $(@D)

$(foreach method,sweet imitated-sweet,$(foreach n,1 4,$(RUN)/trial-$(method)-$n/config.json)): $(RUN)/ranked-full.jsonl
$(foreach method,sweet imitated-sweet,$(RUN)/trial-$(method)-2/config.json): $(RUN)/ranked-nll-0.2.jsonl
$(foreach method,sweet imitated-sweet,$(RUN)/trial-$(method)-3/config.json): $(RUN)/ranked-nll-0.02.jsonl
$(foreach trial,$(call of,imitated-dpo imitated-sweet),$(RUN)/$(trial)/config.json): $(RUN)/$(IMITATION)/config.json

$(eval $(call plays,val-0.7,val,--temperature 0.7))
$(eval $(call plays,val-0.5,val,--temperature 0.5))
$(eval $(call plays,val-0.3,val,--temperature 0.3))
VALIDATIONS := val val-0.7 val-0.5 val-0.3
trials: $(foreach method,$(METHODS),$(foreach split,$(VALIDATIONS),$(call at,$(split),$(call of,$(method)))))
trials-%: FORCE
	$(MAKE) -f study/study.mk $(foreach split,$(VALIDATIONS),$(call at,$(split),$(call of,$*)))
.PHONY: trials FORCE
