#!/bin/sh
# Installs a build to a scratch folder, then builds and runs a small program against it, once by the CMake package and
# once by pkg-config.
#
# usage: scripts/check_install.sh BUILD_DIR
set -eu
cd "$(dirname "$0")/.."
[ $# = 1 ] && [ -f "$1/CMakeCache.txt" ] || {
  echo "usage: scripts/check_install.sh BUILD_DIR" >&2
  exit 2
}
build=$1
cxx=$(scripts/find_cxx.sh)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/prefix" >"$scratch/log" || { cat "$scratch/log"; exit 1; }

CXX=$cxx cmake -S tests/install -B "$scratch/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" >"$scratch/log" &&
  cmake --build "$scratch/cmake" >>"$scratch/log" || { cat "$scratch/log"; exit 1; }
by_cmake=$(LD_LIBRARY_PATH=$scratch/prefix/lib "$scratch/cmake/consumer")

pc_dir=$(dirname "$(find "$scratch/prefix" -name megamoe.pc)")
export PKG_CONFIG_PATH="$pc_dir"
# shellcheck disable=SC2046  # lists of flags
"$cxx" -std=c++20 tests/install/consumer.cc -o "$scratch/consumer" $(pkg-config --cflags --libs megamoe)
by_pkg_config=$(LD_LIBRARY_PATH=$(dirname "$pc_dir") "$scratch/consumer")

[ "$by_cmake" = "$by_pkg_config" ] || {
  echo "install: the two programs differ: '$by_cmake' and '$by_pkg_config'"
  exit 1
}
echo "install: $by_cmake, by CMake package and by pkg-config"
