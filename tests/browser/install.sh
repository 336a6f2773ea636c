#!/bin/bash
# What tests/browser needs beside .venv: Playwright from its own lock, and a Chromium.
# Usage: tests/browser/install.sh      (does nothing for what is there)
#
# Playwright's own browsers are downloads from outside of any package registry, so the distribution's Chromium is used.
# Where none is found and none can be installed, the tests skip themselves and say why.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
stamp=.venv/.browser
want=$(sha256sum requirements-browser.lock | cut -d' ' -f1)
if [[ ! -f $stamp || $(<"$stamp") != "$want" || .venv/.installed -nt $stamp ]]; then
  .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --require-hashes -r requirements-browser.lock
  echo "$want" >"$stamp"
fi
for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
  if [[ -n $name ]] && command -v "$name" >/dev/null; then exit 0; fi
done
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  for attempt in 1 2 3; do
    if apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; then exit 0; fi
    echo "attempt $attempt: no Chromium from apt-get" >&2
    sleep 5
  done
fi
echo "no Chromium here: install it, or name it in CHROMIUM; the tests skip themselves" >&2
