#!/bin/sh
# The C++ tests on processors that this machine is not: x86-64 without AVX (Nehalem), x86-64 with AVX2 only (Haswell),
# and 64-bit ARM, cross-compiled. Needs qemu-user and, for ARM, its cross compiler
# (Debian, Ubuntu: apt install qemu-user g++-aarch64-linux-gnu).
# usage: tools/emulate.sh BUILD_DIR       (BUILD_DIR holds the C++ tests for x86-64)
set -eu
cd "$(dirname "$0")/.."
build=$1
for cpu in Nehalem Haswell; do
  for test in "$build"/csrc/*_test; do
    echo "== $cpu: $(basename "$test")"
    qemu-x86_64 -cpu "$cpu,pcid=off,x2apic=off,tsc-deadline=off,hle=off,rtm=off,invpcid=off" "$test"
  done
done
if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
  echo "64-bit ARM was left out: aarch64-linux-gnu-g++ is missing" >&2
  exit 1
fi
echo "== 64-bit ARM"
cmake -S . -B build/aarch64 -G Ninja -DCMAKE_BUILD_TYPE=Release -DLEGATO_TESTS=ON -DLEGATO_PYTHON=OFF \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu"
ninja -C build/aarch64
ctest --test-dir build/aarch64 --output-on-failure
