#!/bin/sh
# Prints the C++ compiler to build with: $CXX if set, else the first g++ of version 12 or newer. Fails if there is none.
set -eu

if [ -n "${CXX:-}" ]; then
  printf '%s\n' "$CXX"
  exit 0
fi
for compiler in g++ g++-12 g++-13 g++-14 g++-15; do
  version=$("$compiler" -dumpfullversion -dumpversion 2>/dev/null) || continue
  if [ "${version%%.*}" -ge 12 ]; then
    printf '%s\n' "$compiler"
    exit 0
  fi
done
exit 1
