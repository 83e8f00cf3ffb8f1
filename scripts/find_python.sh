#!/bin/sh
# Prints the Python to build with: $PYTHON if set, else the first Python 3.10 or newer that can make a virtual
# environment and has its C headers. Fails if there is none.
set -eu

if [ -n "${PYTHON:-}" ]; then
  printf '%s\n' "$PYTHON"
  exit 0
fi
probe='
import ensurepip, os, sys, sysconfig, venv
ok = sys.version_info >= (3, 10) and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
sys.exit(not ok)'
for python in /usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.10; do
  if "$python" -c "$probe" >/dev/null 2>&1; then
    printf '%s\n' "$python"
    exit 0
  fi
done
exit 1
