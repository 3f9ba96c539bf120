#!/bin/sh
# Regenerates the golden files with torch and transformers in an environment of their own, then checks against them.
# PARITY_VENV: that environment (default .venv-parity; made where it is missing, 1.2 GB with a CPU build of torch).
# PARITY_PIP: more flags for pip, such as an index with CPU builds. Token ids are made only where llama-cpp-python is
# in that environment too: pip compiles it, which takes long.
set -eu
cd "$(dirname "$0")/.."
venv=${PARITY_VENV:-.venv-parity}
python=${VENV:-.venv}/bin/python
started=$(date +%s)
say() { echo "== $(($(date +%s) - started)) s: $*"; }
if [ ! -e "$venv/complete" ]; then
  say "making $venv with torch and transformers"
  "${PYTHON:-python3}" -m venv "$venv"
  # shellcheck disable=SC2086
  "$venv/bin/python" -m pip install --quiet ${PARITY_PIP:-} \
    "torch==2.13.0" "transformers==5.19.*" accelerate gguf safetensors tokenizers jinja2 filelock
  touch "$venv/complete"
fi
model=$("$python" -c '
from legato.weights.cache_dir import default_cache_dir
from legato.weights.open import open_checkpoint

with open_checkpoint("", revision=None, cache_dir=default_cache_dir()) as checkpoint:
    print(checkpoint.source.config_file)')
export PYTHONPATH=src:tests:tests/parity TRANSFORMERS_VERBOSITY=error
for script in make_rope make_shapes make_tiny make_chat; do
  say "$script: the small golden files, with transformers"
  "$venv/bin/python" "tests/parity/$script.py"
done
say "make_default: the default model in transformers, the longest part"
"$venv/bin/python" tests/parity/make_default.py "$model"
if "$venv/bin/python" -c 'import llama_cpp' 2>/dev/null; then
  say "make_tokenizer: token ids, with llama.cpp"
  "$venv/bin/python" tests/parity/make_tokenizer.py "$model"
else
  tokens="; token ids were not made again, since llama-cpp-python is not in $venv"
  say "make_tokenizer is left out"
fi
"$python" tests/parity/make_windows.py "$model"
say "what changed in the golden files, if anything:"
git --no-pager diff --stat -- tests/golden
unset PYTHONPATH
say "the tests against the golden files"
"$python" -m pytest tests/parity tests/unit/models tests/unit/build "$@"
say "every format of the default model against its fp32 path"
PYTHONPATH=tests:tests/parity "$python" tests/parity/check_quality.py "$model"
say "answers to JSON schemas"
PYTHONPATH=tests "$python" tests/parity/check_structured.py "$model"
say "done${tokens:-}"
