#!/usr/bin/env bash
# The paper's setting (backend), from web excerpts to the result, on one node of eight 80-GB GPUs:
#
#     EXCERPTS=excerpts.jsonl examples/paper.sh
#
# A 70B model writes the tasks and plays the human, an 8B model is the agent, and one critic and one policy are trained.
# Files go to ./data/backend and ./runs/$RUN. After a stop, the same command goes on where it was. EXCERPTS has one
# {"text": ...} a line, two to three for each task. Each setting can be given in the environment:
set -euo pipefail
RUN=${RUN:-paper}
WRITER=${WRITER:-meta-llama/Llama-3.1-70B-Instruct}    # writes the tasks and plays the human
WRITER_URL=${WRITER_URL:-}                             # its server; if empty, one is started on half of the GPUs
AGENT=${AGENT:-meta-llama/Llama-3.1-8B-Instruct}
TRAIN=${TRAIN:-10000} TEST=${TEST:-1000}               # tasks
PLAYED=${PLAYED:-5000} SAMPLES=${SAMPLES:-3}           # 15,000 offline trajectories
CANDIDATES=${CANDIDATES:-16}                           # at each turn. As the release has it, add --fraction 0.1 below,
                                                       # and --pairs-per-turn 4 --shuffle pairs for the policy
GPUS=${GPUS:-8}                                        # 0: a machine without any, to try this script
PYTHON=${PYTHON:-python}
# Answers are run as modules. --mode released is the release's evaluator, which finds neither a function's helpers nor
# its imports, and so fails right answers. MODE=released compares with the paper's numbers, on the paper's tasks.
MODE=${MODE:-module}

code=$(cd "$(dirname "$0")/.." && pwd)
half=$((GPUS / 2))
agent_gpus=() all_gpus=() launch=("$PYTHON") fit=()
if [ "$GPUS" -gt 0 ]; then
  agent_gpus=(--data-parallel-size "$half")
  all_gpus=(--data-parallel-size "$GPUS")
  launch=("$PYTHON" -m torch.distributed.run --nproc-per-node "$GPUS")    # torchrun
  fit=(--checkpointing selective)
fi
url=${WRITER_URL:-http://localhost:8001/v1}
server=

gpus() { seq -s , "$1" "$2"; }
on_agents_gpus() {    # the other half is the server's
  if [ "$GPUS" -gt 0 ]; then CUDA_VISIBLE_DEVICES=$(gpus "$half" $((GPUS - 1))) "$@"; else "$@"; fi
}
start_server() {
  if [ -n "$WRITER_URL" ] || [ -n "$server" ]; then return; fi
  CUDA_VISIBLE_DEVICES=$(gpus 0 $((half - 1))) vllm serve "$WRITER" --tensor-parallel-size "$half" --port 8001 &
  server=$!
  until curl --silent --fail --output /dev/null "$url/models"; do
    kill -0 "$server"    # ends the script if the server has ended
    sleep 5
  done
}
stop_server() {    # training and candidates take all GPUs
  if [ -n "$server" ]; then
    kill "$server"
    wait "$server" || true
    server=
  fi
}
trap stop_server EXIT
play() {
  on_agents_gpus "$PYTHON" "$code/rollout.py" --run-name "$RUN" --simulator "$url" --simulator-name "$WRITER" \
    "${agent_gpus[@]}" "$@"
}

echo '--- tasks, which a model writes from excerpts'
start_server
"$PYTHON" "$code/generate_tasks.py" --source llm --in "${EXCERPTS:?names a file of excerpts}" --model "$url" \
  --model-name "$WRITER" --train "$TRAIN" --val 0 --test "$TEST"

echo '--- offline trajectories of the agent with the model human, and their rewards'
play --split train --limit "$PLAYED" --samples "$SAMPLES" --model "$AGENT"
stop_server
"$PYTHON" "$code/evaluate.py" --run-name "$RUN" --split train --mode "$MODE"

echo '--- stage 1: the critic'
"${launch[@]}" "$code/train_critic.py" --run-name "$RUN" --model "$AGENT" "${fit[@]}"

echo '--- stage 2: the critic ranks candidate actions, and the policy learns from them'
"$PYTHON" "$code/rollout.py" --run-name "$RUN" --split train --candidates "$CANDIDATES" --model "$AGENT" "${all_gpus[@]}"
"${launch[@]}" "$code/train_critic.py" --run-name "$RUN" --score "runs/$RUN/train.candidates.jsonl"
"${launch[@]}" "$code/train_policy.py" --run-name "$RUN" --model "$AGENT" "${fit[@]}"

echo '--- the agent before and after, on the test tasks'
start_server
for agent in "base=$AGENT" "policy=runs/$RUN/policy"; do
  played=runs/$RUN/${agent%%=*}.test.trajectories.jsonl
  play --split test --model "${agent#*=}" --out "$played"
  "$PYTHON" "$code/evaluate.py" --in "$played" --mode "$MODE"
done
"$PYTHON" "$code/evaluate.py" --compare "base=runs/$RUN/base.test.scored.jsonl" "sweet-rl=runs/$RUN/policy.test.scored.jsonl"
