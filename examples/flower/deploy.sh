#!/usr/bin/env bash
# Runs the app on separate SuperNodes, with TLS. The server accepts only registered keys; clients run only signed apps.
# docs/deployment.md is the guide. To try everything at once on this machine:
#
#   deploy.sh all FOLDER NODES [OPTION...]           the options are those of flwr run
#   deploy.sh simulate FOLDER NODES [OPTION...]      the same app in Flower's simulation, in one process with Ray
#
# On several hosts, one command at a time. Each host keeps its keys, logs and Flower's own files in its FOLDER:
#
#   deploy.sh certify FOLDER [DNS:name,IP:address]   offline: a CA, and the SuperLink's certificate for these names
#   deploy.sh sign FOLDER APP                        where signer.key is: builds the app, signs it into FOLDER/apps
#   deploy.sh superlink FOLDER ADDRESS               the server's host, loopback only: ADDRESS is 127.0.0.1:port
#   deploy.sh proxy FOLDER PUBLIC ADDRESS            the server's host: nginx forwards SuperNodes from port PUBLIC
#   deploy.sh key FOLDER I                           each client's host; node-I.key never leaves it
#   deploy.sh rotate FOLDER I                        the same, and replaces the present key
#   deploy.sh trust FOLDER SIGNER.pub                each client's host: apps of this signer may run there
#   deploy.sh supernode FOLDER ADDRESS I NODES       each client's host; ADDRESS is the server's, I counts from 0
#   deploy.sh register FOLDER ADDRESS I...           the server's host, with node-I.pub in FOLDER
#   deploy.sh unregister FOLDER ADDRESS I...         the server's host
#   deploy.sh run FOLDER ADDRESS APP [OPTION...]     the server's host; fails if the run fails. APP is what sign printed
#
# Variables, with their defaults:
#   CA_PASSPHRASE, KEY_PASSPHRASE   asked for if left out
#   DATA_DIR                        folder of a client's data; none
#   RUNTIME_PORT                    local port of a SuperNode; 9094. Two SuperNodes on one host need different ones
#   HUB_PORT                        local port from which the SuperLink gets signed apps; its own port plus one
#   DATABASE                        file of the SuperLink for keys and runs; superlink.db in FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
declare -A takes=([all]=2 [simulate]=2 [certify]=1 [sign]=2 [superlink]=2 [proxy]=3 [key]=2 [rotate]=2 [trust]=2
    [supernode]=4 [register]=3 [unregister]=3 [run]=3) # commands, and how many arguments each needs
umask 077
started=()

fail() {
    echo "deploy.sh: $1" >&2
    exit 1
}

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null && continue
        case $tool in
            flwr | flower-*) fail "$tool is not on the PATH: activate the environment that has stgt[torch,flower]." ;;
            *) fail "$tool is not on the PATH: install it." ;;
        esac
    done
}

keys() { # with the Python that has Flower
    need python3
    python3 -c 'import sys, importlib.util as it; sys.exit(it.find_spec("flwr") is None)' ||
        fail "python3 finds no flwr: activate the environment that has stgt[torch,flower]."
    python3 "$here/keys.py" "$@"
}

end_all() { # the processes that this script started
    ((${#started[@]})) && kill "${started[@]}" 2>/dev/null
    wait
}

certify() { # names are those to which clients connect; the proxy connects to the SuperLink at localhost
    need openssl
    cd "$folder"
    cat >openssl.cnf <<CONFIG
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = DNS:localhost, IP:127.0.0.1${1:+, $1}
CONFIG
    local new=(openssl req -config openssl.cnf -new -newkey ec -pkeyopt ec_paramgen_curve:P-384)
    {
        { [ -e ca.key ] || "${new[@]}" -x509 -extensions ca -days 1825 -subj "/CN=stgt CA" \
            ${CA_PASSPHRASE:+-passout env:CA_PASSPHRASE} -keyout ca.key -out ca.pem; } &&
            "${new[@]}" -nodes -subj "/CN=SuperLink" -keyout server.key.new -out server.csr &&
            openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key ${CA_PASSPHRASE:+-passin env:CA_PASSPHRASE} \
                -CAcreateserial -days 365 -extfile openssl.cnf -extensions server -out server.pem.new
    } 2>openssl.log || fail "openssl made no certificate, see $folder/openssl.log; is the passphrase right?"
    mv server.key.new server.key && mv server.pem.new server.pem
    rm server.csr openssl.cnf openssl.log
}

sign() {
    [ -e "$folder/signer.key" ] || keys new ed25519 "$folder/signer"
    keys sign "$folder/signer.key" "$1" "$folder/apps"
}

superlink() { # superlink.db has the registered keys and the runs; no packages are installed for a run
    need flower-superlink python3
    local host=${1%:*} port=${1##*:}
    [[ $host == 127.* || $host == localhost ]] ||
        fail "anyone who can reach $1 could start runs: give 127.0.0.1:$port, and let deploy.sh proxy serve the clients."
    local hub=127.0.0.1:${HUB_PORT:-$((port + 1))}
    trap end_all EXIT
    trap 'exit 143' TERM INT
    python3 "$here/keys.py" serve "$folder/apps" "$hub" &
    started+=($!)
    FLWR_SUPERGRID_API_URL=http://$hub flower-superlink --host "$host" --port "$port" --enable-supernode-auth \
        --ssl-ca-certfile "$folder/ca.pem" --ssl-certfile "$folder/server.pem" --ssl-keyfile "$folder/server.key" \
        --database "${DATABASE:-$folder/superlink.db}" --disable-runtime-dependency-installation &
    started+=($!)
    wait -n
}

proxy() { # clients reach /v1/fleet only: /v1/control starts runs, /v1/runtime is for the ServerApp
    need nginx
    cat >"$folder/nginx.conf" <<CONFIG
daemon off;
worker_processes 1;
pid $folder/nginx.pid;
error_log stderr;
events {}
http {
    map \$status \$refused { ~^2 0; default 1; } # logs failures only: SuperNodes poll every three seconds
    access_log $folder/proxy.log combined if=\$refused;
    client_body_temp_path $folder/nginx;
    proxy_temp_path $folder/nginx;
    fastcgi_temp_path $folder/nginx;
    uwsgi_temp_path $folder/nginx;
    scgi_temp_path $folder/nginx;
    server {
        listen $1 ssl;
        ssl_certificate $folder/server.pem;
        ssl_certificate_key $folder/server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        client_max_body_size 0;
        location /v1/fleet/ {
            proxy_pass https://$2/v1/fleet/;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_read_timeout 300s;
            proxy_ssl_trusted_certificate $folder/ca.pem;
            proxy_ssl_name localhost;
            proxy_ssl_verify on;
        }
        location / {
            return 403;
        }
    }
}
CONFIG
    exec nginx -e stderr -c "$folder/nginx.conf"
}

key() { # the key that identifies a client
    [ -e "$folder/node-$1.key" ] || keys new ec "$folder/node-$1"
}

rotate() { # the old key works until the new one is registered
    rm -f "$folder/node-$1.key" "$folder/node-$1.pub"
    key "$1"
}

trust() {
    keys trust "$1" >"$folder/trusted.yaml"
}

supernode() { # the client's data and control variate stay on its host
    need flower-supernode
    local file key=$folder/node-$2.key
    for file in ca.pem "node-$2.key" trusted.yaml; do
        [ -e "$folder/$file" ] || fail "$folder has no $file: copy ca.pem there, and call deploy.sh key and deploy.sh trust."
    done
    ! grep -q ENCRYPTED "$key" || exec {unlocked}< <(keys unlock "$key")
    local config="partition-id=$2 num-partitions=$3 state-dir='$folder/state-$2'${DATA_DIR:+ data-dir='$DATA_DIR'}"
    FLWR_HOME=$folder/flwr-$2 exec env -u KEY_PASSPHRASE flower-supernode --superlink "$1" \
        --root-certificates "$folder/ca.pem" --trusted-entities "$folder/trusted.yaml" --node-config "$config" \
        --auth-supernode-private-key "${unlocked:+/dev/fd/}${unlocked:-$key}" --port "${RUNTIME_PORT:-9094}"
}

connect() { # writes the SuperLink's address and certificate to the config of the flwr command
    need flwr
    local how="root-certificates = \"$folder/ca.pem\""
    mkdir -p "$FLWR_HOME"
    printf '[superlink]\ndefault = "deployed"\n[superlink.deployed]\naddress = "%s"\n%s\n' \
        "$1" "${2:-$how}" >"$FLWR_HOME/config.toml"
}

register() { # an earlier key of the same client is rejected from then on
    connect "$1"
    local node known printed
    for node in "${@:2}"; do
        known=$folder/node-$node.registered
        if [ -e "$known" ]; then
            [ "$(sed 1d "$known")" != "$(cat "$folder/node-$node.pub")" ] || continue
            flwr supernode unregister "$(head -1 "$known")"
            rm "$known"
        fi
        printed=$(flwr supernode register "$folder/node-$node.pub")
        echo "$printed"
        { grep -o 'SuperNode [0-9]*' <<<"$printed" | grep -o '[0-9]*' && cat "$folder/node-$node.pub"; } >"$known"
    done
}

unregister() {
    connect "$1"
    local node
    for node in "${@:2}"; do
        flwr supernode unregister "$(head -1 "$folder/node-$node.registered")"
        rm "$folder/node-$node.registered"
    done
}

run() { # follows the run to its end, and fails if the run fails
    connect "$1" "${INSECURE:-}"
    flwr run "${@:2}" --stream | tee "$folder/run.log"
    local id
    id=$(grep -om1 'started run [0-9]*' "$folder/run.log" | grep -o '[0-9]*') || fail "the run was not started."
    flwr list --run-id "$id" --format json >"$folder/run.json"
    grep -q '"status": "finished:completed"' "$folder/run.json" ||
        fail "the run failed: $(sed -n 's/.*"status-details": "\(.*\)".*/\1/p' "$folder/run.json")"
}

free_ports() {
    python3 -c "import socket
sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range($1)]
print(*(one.getsockname()[1] for one in sockets), sep='\n')"
}

await() { # waits until the process that was started last listens at this port
    until (: </dev/tcp/127.0.0.1/"$1") 2>/dev/null; do
        kill -0 "${started[-1]}" 2>/dev/null || fail "the SuperLink ended: $(tail -5 "$folder/superlink.log")"
        sleep 0.3
    done
}

simulate() {
    need flwr flower-superlink python3
    python3 -c 'import ray' 2>/dev/null || fail "ray is not installed: pip install 'stgt[torch,simulation]'."
    local port
    port=$(free_ports 1)
    trap end_all EXIT
    flower-superlink --insecure --simulation --host 127.0.0.1 --port "$port" --disable-runtime-dependency-installation \
        >"$folder/superlink.log" 2>&1 &
    started+=($!)
    await "$port"
    INSECURE="insecure = true" run "127.0.0.1:$port" "$here" \
        --federation-config "num-supernodes=$1 client-resources-num-cpus=1" "${@:2}"
}

all() {
    need openssl flwr flower-superlink flower-supernode
    local nodes=$1 ports node app
    export KEY_PASSPHRASE= # so that no passphrase is asked for
    mapfile -t ports < <(free_ports $((nodes + 2)))
    local address=127.0.0.1:${ports[nodes]}
    trap end_all EXIT
    (CA_PASSPHRASE=$(openssl rand -hex 32) certify)
    rm "$folder/ca.key" # it is made again each time
    (HUB_PORT=${ports[nodes + 1]} superlink "$address") >"$folder/superlink.log" 2>&1 &
    started+=($!)
    app=$(sign "$here")
    await "${ports[nodes]}"
    trust "$folder/signer.pub"
    for ((node = 0; node < nodes; node++)); do
        key "$node"
        register "$address" "$node"
        (RUNTIME_PORT=${ports[node]} supernode "$address" "$node" "$nodes") >"$folder/node-$node.log" 2>&1 &
        started+=($!)
    done
    run "$address" "$app" --run-config "clients=$nodes rounds=5 tau=50" "${@:2}"
}

word=${1:-}
[[ -n $word && -v takes[$word] ]] ||
    fail "'$word' is not a command: give one of $(sed -n 's/^#   deploy.sh \([a-z]*\).*/\1/p' "$0" | paste -sd ' ')."
(($# > takes[$word])) || fail "give $(sed -n "/^#   deploy.sh $word /{s/^# *//;s/  .*//p}" "$0")."
mkdir -p "$2" && chmod 700 "$2" && folder=$(cd "$2" && pwd)
[[ $word != all && $word != simulate || $3 =~ ^[1-9][0-9]*$ ]] || fail "NODES='$3': give a number of clients."
export FLWR_HOME=$folder/flwr FLWR_DISABLE_UPDATE_CHECK=1 FLWR_TELEMETRY_ENABLED=0
shift 2
"$word" "$@"
