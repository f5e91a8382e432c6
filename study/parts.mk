# Which of stage 2's pairs teach? Parts of the critic's pairs and of an oracle's, stop pairs behind each (study/which_pairs.md).
# study.mk includes this file.

$(RUN)/ranked-oracle.jsonl: $(RUN)/train.candidates.rollout.json
	$(EACH) study/rank_oracle.py --in $(RUN)/train.candidates.jsonl --out $@

$(RUN)/stop-oracle.jsonl: $(RUN)/ranked-oracle.jsonl

# A random half of the pairs: one a turn, not two.
$(RUN)/random-nll-0.2.jsonl: $(RUN)/ranked-nll-0.2.jsonl
	$(STOP_PAIRS) $< --pairs-per-turn 1 --out $@

define part
$(RUN)/$(1)-%.jsonl: $(RUN)/stop-%.jsonl
	$$(EACH) study/keep_pairs.py $(1) --tasks $(RUN)/train.scored.jsonl --in $$< --out $$@
endef
$(foreach one,unlike questions answers,$(eval $(call part,$(one))))

PARTS := random-nll-0.2 unlike-imitated-sweet-2 questions-imitated-sweet-2 answers-imitated-sweet-2
PARTS += stop-oracle questions-oracle answers-oracle
$(foreach one,$(PARTS),$(eval trial-$(one) = $$(IMITATED) $$(SWEET_TRIAL) --in $$(RUN)/$(one).jsonl))
$(foreach one,$(PARTS),$(eval $(call needs,$(one),$(RUN)/$(one).jsonl $(RUN)/trial-rejection-2/config.json)))

# The surer half.
trial-half-nll-0.2 = $(trial-stop-imitated-sweet-2) --surest 0.5
trial-half-twice   = $(trial-half-nll-0.2) --epochs 2
$(call needs,half-nll-0.2 half-twice,$(RUN)/stop-imitated-sweet-2.jsonl $(RUN)/trial-rejection-2/config.json)

# The surer half twice, by other critics.
HALVES := full full-without-c likelihood likelihood-without-c
$(HALVES:%=$(RUN)/stop-%.jsonl): $(RUN)/stop-%.jsonl: $(RUN)/ranked-%.jsonl
$(foreach one,$(HALVES),$(eval trial-half-$(one) = $$(trial-half-twice) --in $$(RUN)/stop-$(one).jsonl))
$(foreach one,$(HALVES),$(eval $(call needs,half-$(one),$(RUN)/stop-$(one).jsonl $(RUN)/trial-rejection-2/config.json)))

# Candidates of the agent that stage 2 starts from, in place of the base agent's.
OWN        ?= rejection-2 imitated-dpo-2
OWN_CRITIC ?= nll-0.2
OWN_FLAGS  ?= $(CANDIDATES)
$(OWN:%=$(RUN)/own-%.candidates.rollout.json): $(RUN)/own-%.candidates.rollout.json: $(RUN)/trial-%/config.json $(OWN_NEEDS)
	$(EACH) rollout.py $(FLAGS) --run-name $(NAME) --split train $(OWN_FLAGS) $(SAMPLE) --model $(<D) \
	  --out $(RUN)/own-$*.candidates.jsonl

$(OWN:%=$(RUN)/own-%.jsonl): $(RUN)/own-%.jsonl: $(RUN)/critic-$(OWN_CRITIC)/config.json $(RUN)/own-%.candidates.rollout.json
	$(EACH) train_critic.py $(FIT) --run-name $(NAME) --critic $(<D) --score $(RUN)/own-$*.candidates.jsonl --out $(PART)
	mv $(PART) $@

$(OWN:%=$(RUN)/stop-own-%.jsonl): $(RUN)/stop-own-%.jsonl: $(RUN)/own-%.jsonl

own = --model $(RUN)/trial-$(1) --surest 0.5 --in $(RUN)/stop-own-$(1).jsonl
$(foreach one,$(OWN),$(eval trial-own-$(one) = $$(SWEET_TRIAL) $$(call own,$(one)) --epochs 2))
$(foreach one,$(OWN),$(eval $(call needs,own-$(one),$(RUN)/stop-own-$(one).jsonl)))
own: $(call at,test,$(addprefix trial-,imitated-dpo-2 half-twice $(OWN:%=own-%)))

# The baseline at as many sampled tokens gets another trial too.
trial-twice-longer-dpo = $(trial-twice-imitated-dpo) --epochs 6
$(call needs,twice-longer-dpo,$(RUN)/twice.metrics.json $(RUN)/trial-twice-rejection/config.json)

surer: $(call at,test,$(addprefix trial-,rejection-2 stop-imitated-sweet-2 random-nll-0.2 half-nll-0.2 half-twice))
surer: $(call at,test,trial-half-full trial-twice-imitated-dpo trial-twice-longer-dpo)
parts: surer $(call at,test,$(PARTS:%=trial-%) $(HALVES:%=trial-half-%) trial-full-without-c trial-likelihood-without-c)

.PHONY: parts surer own
