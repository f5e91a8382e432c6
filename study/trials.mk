# The trials of the tuning seeds, on validation tasks: three settings for each method, each played at three temperatures.
#
#     make study SEEDS='1 2' CELLS=trials && python study/trials.py --add runs/study/1 runs/study/2
#
# Imitation comes first: what starts at the imitating agent starts at the setting that was taken there (IMITATION).
IMITATION   ?= trial-rejection-2
SWEET_TRIAL  = --method sweet --beta 2 --nll 1 --epochs 1 --pairs-per-turn 2
DPO_TRIAL   := --method multi-turn-dpo --nll 1 --epochs 3
START        = --model $(RUN)/$(IMITATION)

trial-rejection-1 := --method rejection-ft --batch-size 16 --lr 1e-3 --epochs 6
trial-rejection-2 := --method rejection-ft --batch-size 16 --lr 1e-3 --epochs 3
trial-rejection-3 := --method rejection-ft --batch-size 16 --lr 5e-4 --epochs 6

trial-dpo-1 := $(DPO_TRIAL) --beta 2 --lr 4e-4
trial-dpo-2 := $(DPO_TRIAL) --beta 0.5 --lr 4e-4
trial-dpo-3 := $(DPO_TRIAL) --beta 2 --lr 2e-4

trial-imitated-dpo-1 = $(START) $(DPO_TRIAL) --beta 2 --lr 2e-4
trial-imitated-dpo-2 = $(START) $(DPO_TRIAL) --beta 2 --lr 1e-4
trial-imitated-dpo-3 = $(START) $(DPO_TRIAL) --beta 5 --lr 2e-4

# Three NLL weights of the critic.
critic-nll-0.2       := $(CRITIC) --nll 0.2
critic-nll-0.02      := $(CRITIC) --nll 0.02
trial-sweet-1         = $(SWEET_TRIAL) --lr 2e-4 --in $(RUN)/ranked-full.jsonl
trial-sweet-2         = $(SWEET_TRIAL) --lr 2e-4 --in $(RUN)/ranked-nll-0.2.jsonl
trial-sweet-3         = $(SWEET_TRIAL) --lr 2e-4 --in $(RUN)/ranked-nll-0.02.jsonl
$(foreach n,1 2 3,$(eval trial-imitated-sweet-$n = $$(START) $$(trial-sweet-$n)))

METHODS := rejection dpo sweet imitated-dpo imitated-sweet
of       = $(foreach method,$(1),$(foreach n,1 2 3,trial-$(method)-$n))
$(RUN)/trial-%/config.json: $(RUN)/train.metrics.json
	$(call stage,trial: $*)
	$(EACH) train_policy.py $(FLAGS) --run-name $(NAME) $(trial-$*) --out $(@D)

$(RUN)/trial-sweet-1/config.json $(RUN)/trial-imitated-sweet-1/config.json: $(RUN)/ranked-full.jsonl
$(RUN)/trial-sweet-2/config.json $(RUN)/trial-imitated-sweet-2/config.json: $(RUN)/ranked-nll-0.2.jsonl
$(RUN)/trial-sweet-3/config.json $(RUN)/trial-imitated-sweet-3/config.json: $(RUN)/ranked-nll-0.02.jsonl
$(foreach trial,$(call of,imitated-dpo imitated-sweet),$(RUN)/$(trial)/config.json): $(RUN)/$(IMITATION)/config.json

# Played and scored at every temperature by one process.
TEMPERATURES := 1 0.5 0.3
$(RUN)/trial-%.val-0.3.metrics.json: $(RUN)/trial-%/config.json
	$(EACH) study/play.py --temperatures $(TEMPERATURES) --split val --model $(RUN)/trial-$* -- $(FLAGS) --run-name $(NAME) \
	  --in $(RUN)/tasks/val.jsonl $(PLAY)

$(foreach method,$(METHODS),$(eval trials-$(method): $(call at,val-0.3,$(call of,$(method)))))
trials: $(METHODS:%=trials-%)
.PHONY: trials $(METHODS:%=trials-%)

# Fresh seeds, with what the trials chose: make study SEEDS='21 22 23' CELLS=tuned, then study/tuned.py.
TUNED := trial-imitated-sweet-2 trial-imitated-dpo-2 trial-dpo-3 trial-rejection-2 trial-sweet-3 base
$(RUN)/%.test-0.3.metrics.json: $(RUN)/%/config.json
	$(EACH) study/play.py --temperatures 1 0.3 --split test --model $(RUN)/$* -- $(FLAGS) --run-name $(NAME) \
	  --in $(RUN)/tasks/test.jsonl $(PLAY)

tuned: $(call at,test-0.3,$(TUNED))
.PHONY: tuned
