#!/usr/bin/env bash
# Two machines with four nodes each. Run it on both, with the address of the first machine and 0 or 1:
#
#   examples/two_hosts.sh 10.0.0.1 0 examples/mnist.toml DATA runs/mnist --import reproductions/register.py  # the first
#   examples/two_hosts.sh 10.0.0.1 1 examples/mnist.toml DATA runs/mnist --import reproductions/register.py  # the second
#
# For your own model and data, give your script that registers them instead of reproductions/register.py.
# The folders may be shared or local. Port 29500 must be open between the machines, and also any free port, for gloo's
# connections. Set GLOO_SOCKET_IFNAME if a machine has several networks.
set -euo pipefail
address=$1 machine=$2 spec=$3 data=$4 out=$5
exec torchrun --nnodes 2 --node-rank "$machine" --nproc-per-node 4 --max-restarts 3 \
    --master-addr "$address" --master-port 29500 \
    -m stgt.torch.train --spec "$spec" --data-dir "$data" --out "$out" "${@:6}"
