# How the critics of study.mk rank and play (study/critics.md). study.mk includes this file.

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

define rank_val
	$(EACH) train_critic.py --run-name $(NAME) --critic $(<D) --score $(RUN)/val.candidates.jsonl --out $(PART)
	mv $(PART) $@
endef
$(RUN)/val-ranked-%.jsonl: $(RUN)/critic-%/config.json $(RUN)/val.candidates.rollout.json
	$(rank_val)

# Cell fewer: critics from 100 tasks, in the folder of cell amounts (not at the same time as that cell).
fewer: $(RUN)/val-ranked-100-full.jsonl $(RUN)/val-ranked-100-full-without-c.jsonl
$(RUN)-100/critic-full-without-c/config.json: $(RUN)-100/critic-full/config.json
$(RUN)-100/critic-%/config.json: $(RUN)-100/base/config.json
	$(MAKE) -f study/study.mk SEED=$(SEED) NAME=$(NAME)-100 OFFLINE='--limit 100 --samples 6' $@

$(RUN)/val-ranked-100-%.jsonl: $(RUN)-100/critic-%/config.json $(RUN)/val.candidates.rollout.json
	$(rank_val)

.PHONY: fewer

# ------------------------------------------------------------------------------------------------ best of N
# Best of N: the base agent samples N actions a turn, and a step reward plays one. $(call best,critic,N,step reward)
define best
best: $(RUN)/best-$(1)-$(2).test.metrics.json
$(RUN)/best-$(1)-$(2).test.rollout.json: $(RUN)/critic-$(1)/config.json
	$$(EACH) rollout.py $$(FLAGS) --run-name $$(NAME) --split test --in $$(RUN)/tasks/test.jsonl $$(PLAY) \
	  --model $$(RUN)/base --best-of-n $(2) --step-reward $(3) --critic $$(<D) --out $$(@:rollout.json=trajectories.jsonl)
endef
$(foreach n,2 4 8,$(eval $(call best,nll-0.2,$n,critic)) \
  $(eval $(call best,without-c,$n,critic-without-c)) $(eval $(call best,value,$n,value)))
