#!/bin/sh
# Test the two commands of README.md as on a new machine: in an empty folder, with an empty HOME, and without
# environment variables except PATH and the package indexes of pip and npm.
#
# Usage: clean_machine.sh [TARBALL]        default: a tarball of the current commit
#   PARTS="serve test"    commands to test; ARGS="-k words" goes to `make test`
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
making=

say() { echo "clean machine: $*" >&2; }

fail() {
    say "$*"
    exit 1
}

leave() {
    served=$(server_process)
    if [ -n "$served" ]; then kill "$served" || true; fi
    if [ -n "$making" ]; then wait "$making" 2>/dev/null || true; fi
    rm -rf "$folder"
}
trap leave EXIT
trap 'exit 130' INT TERM

# The server process in the unpacked folder, if any.
server_process() {
    sed -n 's/.*"pid":\([0-9]*\).*/\1/p' "$folder/kgserve/kgserve-data/server.json" 2>/dev/null || true
}

# Run a command there with the environment of a new login.
afresh() {
    (
        cd "$folder/kgserve"
        for name in $(env | sed -n 's/^\(PIP_[A-Z_]*\|npm_config_[a-z_]*\|[a-zA-Z]*_proxy\|[A-Z]*_PROXY\|[A-Z_]*_CA_CERTS\|[A-Z_]*CA_BUNDLE\|SSL_CERT_[A-Z]*\)=.*/\1/p'); do
            eval "value=\$$name"
            set -- "$name=$value" "$@"
        done
        exec env -i "PATH=$PATH" "HOME=$folder/home" "$@"
    )
}

serve() {
    say "make serve"
    afresh make serve ARGS="--port 0" >"$folder/out" 2>"$folder/err" &
    making=$!
    until url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$folder/out") && [ -n "$url" ]; do
        kill -0 "$making" 2>/dev/null || { cat "$folder/err" >&2; fail "make serve ended by itself"; }
        sleep 1
    done
    say "asking $url"
    curl --silent --show-error --fail "$url/api/memory/fresh/inject" -d '{"nodes": [
        {"id": "machine", "type": "thing", "content": "A clean machine with nothing on it"},
        {"id": "server", "type": "thing", "content": "kgserve answers"}
    ], "edges": [{"from": "machine", "to": "server", "relation_type": "RUNS"}]}' >"$folder/inject"
    curl --silent --show-error --fail "$url/api/memory/fresh/traverse" -d '{"start_id": "machine"}' >"$folder/walk"
    curl --silent --show-error --fail "$url/api/memory/fresh/search" \
        -d '{"query": "empty computer", "at_least": 1}' >"$folder/search"
    grep -q '"edges_created":1' "$folder/inject" || fail "inject answered $(cat "$folder/inject")"
    grep -q '"count":2' "$folder/walk" || fail "traverse answered $(cat "$folder/walk")"
    grep -q '"id":"machine"' "$folder/search" || fail "search answered $(cat "$folder/search")"
    ! grep -q '"degraded":true' "$folder/search" || say "without the embedding model: search is by words alone"
    kill "$(server_process)"
    wait "$making" || fail "make serve ended with $?"
    making=
    say "make serve: served, answered, stopped"
}

tests() {
    say "make test"
    afresh make test WORKERS="${WORKERS:-4}" ARGS="${ARGS:-}" || fail "make test failed"
    say "make test: passed"
}

mkdir "$folder/kgserve" "$folder/home"
if [ $# -gt 0 ]; then
    tar -xf "$1" -C "$folder/kgserve"
else
    git -C "$top" archive HEAD | tar -x -C "$folder/kgserve"
fi
[ ! -e "$folder/kgserve/.git" ] || fail "the tarball holds a repository"
for part in ${PARTS:-serve test}; do
    case $part in
        serve) serve ;;
        test) tests ;;
        *) fail "PARTS may be serve and test, not $part" ;;
    esac
done
