#!/bin/sh
# Installs a build to a scratch folder, then builds and runs small programs in C++ and C against it, once by the CMake
# package and once by pkg-config.
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

pc_dir=$(dirname "$(find "$scratch/prefix" -name megamoe.pc)")
export PKG_CONFIG_PATH="$pc_dir"
LD_LIBRARY_PATH=$(dirname "$pc_dir")
export LD_LIBRARY_PATH

# check FOLDER COMPILER SOURCE: builds FOLDER by CMake and its source by the compiler, and compares what they say.
check() {
  cmake -S "$1" -B "$scratch/$3" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" >"$scratch/log" &&
    cmake --build "$scratch/$3" >>"$scratch/log" || { cat "$scratch/log"; exit 1; }
  by_cmake=$("$scratch/$3/consumer") || { echo "$by_cmake"; exit 1; }
  # shellcheck disable=SC2046,SC2086  # lists of flags
  $2 "$1/$3" -o "$scratch/consumer" $(pkg-config --cflags --libs megamoe)
  by_pkg_config=$("$scratch/consumer") || { echo "$by_pkg_config"; exit 1; }
  [ "$by_cmake" = "$by_pkg_config" ] || {
    echo "install: the two programs differ: '$by_cmake' and '$by_pkg_config'"
    exit 1
  }
  echo "install: $by_cmake, by CMake package and by pkg-config"
}

export CXX="$cxx"
check tests/install "$cxx -std=c++20" consumer.cc
check tests/install/c "${CC:-cc} -std=c11" consumer.c

# The same objects as a shared library: whether all that the headers declare can be seen from outside.
archive=$(find "$scratch/prefix" -name libmegamoe.a)
if [ -n "$archive" ]; then
  # shellcheck disable=SC2046  # lists of flags
  "$cxx" -shared -o "$scratch/libmegamoe.so" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    $(pkg-config --libs hwloc) -pthread
  "$cxx" -std=c++20 -I"$scratch/prefix/include" tests/install/consumer.cc -o "$scratch/consumer" \
    "$scratch/libmegamoe.so" -Wl,-rpath,"$scratch"
  echo "install: $("$scratch/consumer"), by a shared library"
fi
