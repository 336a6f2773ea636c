#!/usr/bin/env bash
# Installs the gateways that `make bench` compares with, each into an environment of its own under $PEERS_VENVS.
# nginx is the system's own: apt-get install nginx-light
set -euo pipefail
root=${PEERS_VENVS:-$HOME/.cache/joulegate-peers}
mkdir -p "$root"
python=$(sh "$(dirname "${BASH_SOURCE[0]}")/../deploy/choose_python.sh")  # as joulegate's own: litellm is Python too
install() {
    [ -x "$root/$1/bin/python" ] || "$python" -m venv "$root/$1"
    "$root/$1/bin/pip" install -q --disable-pip-version-check "${@:2}"
}
install v_smg smg==1.13.0
install v_vllmrouter vllm-router==0.1.17
install v_litellm 'litellm[proxy]==1.104.5'
echo "peers are in $root; now: make bench"
