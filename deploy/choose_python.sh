#!/bin/sh
# Prints the Python that `make install` makes .venv of, and on stderr one line that says which and what was passed over.
# Usage: deploy/choose_python.sh [candidate ...]      (`make install PYTHON=...` does not ask it)
#
# Of the candidates that can be used (3.11 or later, able to make an environment with pip) it takes the one whose faults
# weigh least, the first of equals. 3: no headers (streams cost a fifth more CPU without pools/_shortcut.c). 1: the
# interpreter is a shared library and was built without optimisation (an eighth more CPU, docs/performance.md; with
# optimisation, or with -fno-semantic-interposition, being shared costs nothing). 1: another version than the locks'.
set -u
[ $# -gt 0 ] || set -- python3 /usr/local/bin/python3 /usr/bin/python3 python3.11 python3.12 python3.13

probe='
import sys
if sys.version_info < (3, 11):
    sys.exit(1)
import ensurepip, os, ssl, sysconfig, venv
told = lambda name: str(sysconfig.get_config_var(name))
try:
    shared = "/libpython" in open("/proc/self/maps").read()
except OSError:
    shared = False
tuned = "--enable-optimizations" in told("CONFIG_ARGS") or "-fno-semantic-interposition" in told("PY_CORE_CFLAGS")
faults = {
    "no headers": 3 * (not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))),
    "a shared library built without optimisation": shared and not tuned,
    "not the version of the locks": sys.version_info[:2] != (3, 11),
}
text = "%s %d.%d.%d" % (sys.executable, *sys.version_info[:3])
named = ", ".join(name for name, weight in faults.items() if weight)
print(sum(faults.values()), sys.executable, text + named.join([" (", ")"] if named else ["", ""]), sep="|")
'
best='' least=99 passed=''
for candidate; do
    answer=$("$candidate" -c "$probe" 2>/dev/null) || continue
    weight=${answer%%|*} answer=${answer#*|}
    if [ "$weight" -lt "$least" ]; then
        passed=${best:+", passed over: $told"} best=${answer%%|*} told=${answer#*|} least=$weight
    fi
done
if [ -z "$best" ]; then
    echo "No usable Python: it takes 3.11 or later with venv and ensurepip (Debian: python3-venv). PYTHON= names one." >&2
    exit 1
fi
echo "Python: $told$passed; PYTHON= takes another" >&2
echo "$best"
