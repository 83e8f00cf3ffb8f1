#!/bin/sh
# Brings a machine to the point where megamoe builds: installs missing system packages with apt, and with --python makes
# .venv with everything the Python package, its tests and the checks need; --tidy adds clang-tidy. Does nothing, quickly,
# when all is there.
#
# usage: scripts/setup.sh [--python] [--tidy]
set -eu
cd "$(dirname "$0")/.."

fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# Names of the missing Debian packages, one a line. Probes look for the thing itself, so they hold on any distribution.
missing_packages() {
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  command -v pkg-config >/dev/null || echo pkg-config
  if cxx=$(scripts/find_cxx.sh); then
    "$cxx" -std=c++20 -E -P -x c++ - <<'PROBE' | sed '/^$/d'
#if !__has_include(<gtest/gtest.h>)
libgtest-dev
#endif
#if !__has_include(<benchmark/benchmark.h>)
libbenchmark-dev
#endif
#if !__has_include(<CLI/CLI.hpp>)
libcli11-dev
#endif
#if !__has_include(<nlohmann/json.hpp>)
nlohmann-json3-dev
#endif
#if !__has_include(<hwloc.h>)
libhwloc-dev
#endif
PROBE
  else
    printf '%s\n' g++ libgtest-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev libhwloc-dev
  fi
  if [ "$with_python" = yes ] && ! scripts/find_python.sh >/dev/null; then
    printf '%s\n' python3 python3-venv python3-dev
  fi
  if [ "$with_tidy" = yes ] && ! command -v clang-tidy >/dev/null; then
    echo clang-tidy
  fi
}

apt() {
  if [ "$(id -u)" = 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get "$@"
  else
    sudo DEBIAN_FRONTEND=noninteractive apt-get "$@"
  fi
}

install_packages() {
  packages=$(missing_packages | tr '\n' ' ')
  [ -n "$packages" ] || return 0
  command -v apt-get >/dev/null ||
    fail "missing: $packages(Debian names). There is no apt-get here: please install them and run again."
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    fail "missing: $packages. Run as root: apt-get install $packages"
  echo "setup: installing $packages"
  apt update -qq || fail "apt-get update failed. Missing packages: $packages"
  # shellcheck disable=SC2086  # a list of words
  apt install -y -qq --no-install-recommends $packages >/dev/null || fail "could not install: $packages"
  if ! scripts/find_cxx.sh >/dev/null; then
    apt install -y -qq --no-install-recommends g++-12 >/dev/null ||
      fail "the default g++ is older than 12 and g++-12 could not be installed"
  fi
  packages=$(missing_packages | tr '\n' ' ')
  [ -z "$packages" ] || fail "still missing after the installation: $packages"
}

install_python() {
  python=$(scripts/find_python.sh)
  wanted=$({ echo "$PWD"; cat requirements-test.txt scripts/setup.sh "$(command -v "$python")"; } | cksum)
  [ -x .venv/bin/python ] && [ "$(cat .venv/.installed 2>/dev/null)" = "$wanted" ] && return 0
  echo "setup: making .venv (downloads PyTorch the first time)"
  "$python" -m venv --clear .venv || fail "$python cannot make a virtual environment"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt ||
    fail "pip could not install requirements-test.txt"
  # The release build lays out an importable package in its own folder.
  site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$PWD/build/release/python" >"$site/megamoe-build.pth"
  printf '%s\n' "$wanted" >.venv/.installed
}

with_python=no
with_tidy=no
for argument in "$@"; do
  case "$argument" in
    --python) with_python=yes ;;
    --tidy) with_tidy=yes ;;
    *) fail "unknown argument $argument: expected --python or --tidy" ;;
  esac
done
install_packages
[ "$with_python" = no ] || install_python
