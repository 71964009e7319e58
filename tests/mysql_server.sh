#!/usr/bin/env bash
# A real MySQL for tests, with nothing installed: Debian's newest packages, unpacked into a folder.
#   tests/mysql_server.sh unpack FOLDER
#   tests/mysql_server.sh run FOLDER [--OPTION…] COMMAND…
# `unpack` needs a Debian machine, and its mirror. `run` starts a server of an unprivileged user on a socket, gives its
# address to COMMAND as DATABASE_URL, and stops the server after COMMAND. Options that begin with `--` go to the server.
# Debian's older suites have MariaDB only. The server runs with the loader of the newest suite, because its C library is
# newer than the machine's.
set -euo pipefail
action=$1 folder=$(realpath -m "$2")
shift 2

if [ "$action" = unpack ]; then
  bash "$(dirname "$0")/databases/clusters/newest_suite.sh" mysql-server-core mysqld "$folder" >/dev/null
  if [ "$(id -u)" = 0 ]; then
    chmod 755 "$folder" # the server's user reads here, and passes through the folders above: tox closes `.tox`
    for parent in $(until [ "$folder" = / ]; do folder=$(dirname "$folder") && echo "$folder"; done); do chmod o+x "$parent"; done
  fi
  exit
fi

options=()
while [[ $1 == --* ]]; do options+=("$1") && shift; done
root=$folder/root
loader=$(compgen -G "$root/usr/lib/*/ld-linux*.so.*" | head -n 1) ||
  { echo "there is no server in $folder: run tests/mysql_server.sh unpack $folder" >&2 && exit 1; }
data=$(mktemp -d)
as_its_user=()
if [ "$(id -u)" = 0 ]; then # the server refuses to run as root
  chown nobody:nogroup "$data"
  as_its_user=(setpriv --reuid nobody --regid nogroup --clear-groups)
fi
server=("${as_its_user[@]}" "$loader" --library-path "$(dirname "$loader")" "$root/usr/sbin/mysqld" --no-defaults
  --basedir="$root/usr" --lc-messages-dir="$root/usr/share/mysql" --character-sets-dir="$root/usr/share/mysql/charsets"
  --plugin-dir="$root/usr/lib/mysql/plugin" --datadir="$data/data" --pid-file="$data/pid" --socket="$data/socket"
  --skip-networking --mysqlx=OFF --secure-file-priv=NULL --max-connections=300
  # The tests kill clients, not this server. So the disk may be late.
  --skip-log-bin --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=OFF)
echo "CREATE DATABASE shop;" >"$data/start.sql"
chmod 644 "$data/start.sql"
failed() { echo "MySQL did not start:" >&2 && cat "$data/log" >&2 && exit 1; }

"${server[@]}" --initialize-insecure >"$data/log" 2>&1 || failed
"${server[@]}" --init-file="$data/start.sql" "${options[@]}" >"$data/log" 2>&1 &
trap 'kill %1; wait %1; rm -rf "$data"' EXIT
until grep -q "ready for connections" "$data/log"; do
  kill -0 %1 2>/dev/null && [ "$SECONDS" -lt 120 ] || failed
  sleep 0.05 # between two looks
done
DATABASE_URL="mysql://root@localhost/shop?unix_socket=$data/socket" "$@"
