#!/usr/bin/env bash
# The app on SuperNodes of their own: TLS to the SuperLink, and only SuperNodes whose public key was registered.
#
# Everything at once on this machine, to see it work:
#
#   examples/flower/deploy.sh all FOLDER NODES --run-config "data-dir='/absolute/path' clients=NODES"
#
# On several hosts, one word at a time. All keep their keys, logs and Flower's own files under FOLDER:
#
#   deploy.sh certify FOLDER [DNS:name,IP:address]   once, where the CA's key is kept; then bring ca.pem to all hosts,
#                                                    and server.pem and server.key to the SuperLink's
#   deploy.sh superlink FOLDER ADDRESS               on the server's host; ADDRESS is host:port, 0.0.0.0:8000 for all
#   deploy.sh key FOLDER I                           on each client's host; node-I.key never leaves it
#   deploy.sh register FOLDER ADDRESS I...           where node-I.pub was brought to, by whoever may let clients in
#   deploy.sh supernode FOLDER ADDRESS I NODES       on each client's host; ADDRESS is the SuperLink's
#   deploy.sh run FOLDER ADDRESS APP [OPTION...]     from anywhere; the options are those of flwr run
#
# Flower 1.41 serves clients (/v1/fleet) and commands (/v1/control) on the same port, and asks commands for no key:
# whoever reaches it can register keys and start runs. Let a proxy pass only /v1/fleet to the clients' networks.
#
# `supernode` takes its runtime port from RUNTIME_PORT: it serves the host itself, two on one host need two.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
word=${1:?give one of: all, certify, superlink, key, register, supernode, run}
folder=${2:?give a folder for keys and logs}
mkdir -p "$folder" && folder=$(cd "$folder" && pwd)
export FLWR_HOME=$folder/flwr FLWR_DISABLE_UPDATE_CHECK=1
shift 2
umask 077

certify() { # a CA of our own, and the SuperLink's certificate; clients ask for the name or address they connect to
    local names=${1:-DNS:localhost,IP:127.0.0.1}
    cd "$folder"
    [ -e ca.key ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 3650 \
        -subj "/CN=stgt CA" -keyout ca.key -out ca.pem
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=SuperLink" \
        -keyout server.key -out server.csr
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 \
        -extfile <(echo "subjectAltName=$names") -out server.pem
} 2>>"$folder/openssl.log"

superlink() { # nothing is installed for a run; with --database FILE, registered keys would survive a restart
    exec flower-superlink --host "${1%:*}" --port "${1##*:}" --enable-supernode-auth \
        --ssl-ca-certfile "$folder/ca.pem" --ssl-certfile "$folder/server.pem" --ssl-keyfile "$folder/server.key" \
        --disable-runtime-dependency-installation
}

key() { # what a client is known by
    [ -e "$folder/node-$1.key" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "node $1" -f "$folder/node-$1.key"
    ssh-keygen -y -f "$folder/node-$1.key" >"$folder/node-$1.pub"
    rm -f "$folder/node-$1.key.pub"
}

connect() { # tells the flwr command where the SuperLink is and whom to trust
    mkdir -p "$FLWR_HOME"
    printf '[superlink]\ndefault = "deployed"\n[superlink.deployed]\naddress = "%s"\nroot-certificates = "%s"\n' \
        "$1" "$folder/ca.pem" >"$FLWR_HOME/config.toml"
}

register() {
    connect "$1"
    for node in "${@:2}"; do
        flwr supernode register "$folder/node-$node.pub"
    done
}

supernode() { # the client's data stay here; its partition is what the app's client asks for
    FLWR_HOME=$folder/flwr-$2 exec flower-supernode --superlink "$1" --root-certificates "$folder/ca.pem" \
        --auth-supernode-private-key "$folder/node-$2.key" --node-config "partition-id=$2 num-partitions=$3" \
        --port "${RUNTIME_PORT:-9094}"
}

run() { # follows the run to its end, and fails if it did
    connect "$1"
    flwr run "${@:2}" --stream | tee "$folder/run.log"
    local id
    id=$(grep -om1 'started run [0-9]*' "$folder/run.log" | grep -o '[0-9]*')
    flwr list --run-id "$id" --format json | grep -q 'finished:completed'
}

all() {
    local nodes=$1 ports node
    started=() # not local: the trap is outside of this function
    trap 'kill "${started[@]}" 2>/dev/null || true; wait' EXIT
    mapfile -t ports < <(python3 - "$((nodes + 1))" <<'PYTHON'
import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(one.getsockname()[1] for one in sockets), sep="\n")
PYTHON
    )
    local address=127.0.0.1:${PORT:-${ports[nodes]}}
    (certify)
    (superlink "$address") >"$folder/superlink.log" 2>&1 &
    started+=($!)
    until (: </dev/tcp/"${address/://}") 2>/dev/null; do
        kill -0 "${started[0]}" || { tail "$folder/superlink.log" >&2; exit 1; }
        sleep 0.3
    done
    for ((node = 0; node < nodes; node++)); do
        key "$node"
        register "$address" "$node"
        (RUNTIME_PORT=${ports[node]} supernode "$address" "$node" "$nodes") >"$folder/node-$node.log" 2>&1 &
        started+=($!)
    done
    run "$address" "$here" "${@:2}"
}

"$word" "$@"
