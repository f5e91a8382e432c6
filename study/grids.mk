# The trials of the tuning seed, which is the demo's: two for each method, on validation tasks, at temperatures 1 and 0.5.
# Taken is the highest mean of the two; of trials within half a point the cheaper one.
SWEET_TRIAL = --method sweet --in $(RUN)/train.ranked.jsonl --beta 2 --nll 1 --lr 2e-4 --pairs-per-turn 2
DPO_TRIAL  := --method multi-turn-dpo --nll 1 --epochs 3
IMITATED    = --model $(RUN)/trial-rejection-1

trial-rejection-1 := --method rejection-ft --batch-size 16 --lr 2e-3 --epochs 12
trial-rejection-2 := --method rejection-ft --batch-size 16 --lr 1e-3 --epochs 6
trial-dpo-1       := $(DPO_TRIAL) --beta 0.5 --lr 4e-4
trial-dpo-2       := $(DPO_TRIAL) --beta 2 --lr 4e-4
trial-sweet-1      = $(SWEET_TRIAL) --epochs 3
trial-sweet-2      = $(SWEET_TRIAL) --epochs 1
trial-isweet-1     = $(IMITATED) $(SWEET_TRIAL) --epochs 3
trial-isweet-2     = $(IMITATED) $(SWEET_TRIAL) --epochs 1
trial-idpo-1       = $(IMITATED) $(DPO_TRIAL) --beta 0.5 --lr 4e-4
trial-idpo-2       = $(IMITATED) $(DPO_TRIAL) --beta 2 --lr 2e-4
TRIALS := $(foreach method,rejection dpo sweet isweet idpo,trial-$(method)-1 trial-$(method)-2)

$(RUN)/trial-%/config.json: $(RUN)/train.ranked.jsonl $(RUN)/train.metrics.json
	$(call stage,trial: $*)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) $(trial-$*) --out $(@D)
$(foreach trial,isweet-1 isweet-2 idpo-1 idpo-2,$(RUN)/trial-$(trial)/config.json): $(RUN)/trial-rejection-1/config.json

grid: $(foreach trial,$(TRIALS),$(call at,val,$(trial)) $(call at,cool,$(trial)))
	for split in val cool; do $(PY) evaluate.py --compare \
	  $(foreach trial,$(TRIALS),$(trial)=$(RUN)/$(trial).$$split.scored.jsonl) || exit; done
.PHONY: grid
