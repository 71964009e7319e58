#!/usr/bin/env bash
# First contact: both commands of the README, word for word, out of the sdist alone, as people and machines of each kind.
#   bash tests/extra/packaging/first_contact.sh [SITUATION …]   default: all, which takes about 20 minutes
# Needs Debian, root, and the network. Root adds a user for as long as the script runs.
# TESTS are the arguments of pytest. Without TESTS, pytest runs the first example in a new project, the tutorial, an
# upgrade, and the tests that need programs, browsers and servers of the machine. `TESTS=` runs all tests.
set -uo pipefail
cd "$(dirname "$0")/../../.."
[ "$(id -u)" = 0 ] || { echo "needs root, to add a user" >&2; exit 2; }
read -ra tests <<<"${TESTS-tests/unit tests/acceptance/test_new_project.py tests/acceptance/test_tutorial.py tests/databases/stores/test_upgrade.py tests/browser tests/databases/clusters tests/extra/interop tests/frameworks/jobs tests/extra/packaging tests/interrupts/test_bursts.py}"
folder=$(mktemp -d)
guest=idempotency-guest
useradd --create-home --home-dir "$folder/guest" --shell /bin/bash "$guest" || exit 2
trap 'userdel "$guest"; rm -rf "$folder"' EXIT
chmod 755 "$folder"
unset DATABASE_URL DJANGO_SETTINGS_MODULE PYTHONPATH VIRTUAL_ENV "${!XDG_@}"
demo=$(grep -oE 'python3 -m venv .* run -e demo$' README.md)
test=$(grep -oE 'python3 -m venv .* run -e tests$' README.md)
failed=0

python3 -m venv "$folder/build" && "$folder/build/bin/pip" install -q build &&
  "$folder/build/bin/python" -m build --sdist --outdir "$folder/dist" . >"$folder/build.log" 2>&1 ||
  { cat "$folder/build.log"; exit 2; }

situation() { # name, user, HOME, PATH: a folder with nothing but the sdist
  local name=$1 user=$2 home=$3 path=$4 place=$folder/$1 what command since outcome left
  mkdir -p "$place/tmp"
  tar -xf "$folder"/dist/*.tar.gz --strip-components 1 --one-top-level="$place/checkout" --no-same-owner
  chown -R "$user" "$place"
  for what in demo test; do
    command=${!what/python3 -m venv .venv/"$make"}
    [ $what = demo ] || command="$command -- ${tests[*]}"
    since=$SECONDS outcome=passed
    as "$user" env HOME="$home" PATH="$path" TMPDIR="$place/tmp" bash -c "cd '$place/checkout' && python3 --version && $command" \
      >"$place/$what.log" 2>&1 </dev/null || outcome="FAILED with status $?"
    printf '%-10s %-5s %-8s %4s s  %s, %s\n' "$name" $what "$outcome" $((SECONDS - since)) "$(head -n 1 "$place/$what.log")" \
      "$(grep -aoE '[0-9]+ passed.*' "$place/$what.log" | tail -n 1)"
    grep -aoE 'NOT RUN: .*' "$place/$what.log" | sort -u | sed 's/^/    /'
    if left=$(pgrep -fa -- "$place/") || left=$(find "$place/tmp" -mindepth 1 -maxdepth 1 -name 'idempotency*' | grep .); then
      outcome="left behind" && echo "    left behind: $left"
    fi
    [ "$outcome" = passed ] || { tail -n 60 "$place/$what.log" | sed 's/^/    /' && failed=1; }
  done
  rm -rf "$place"
}

as() { # user, command…
  local user=$1
  shift
  if [ "$user" = root ]; then "$@"; else setpriv --reuid "$user" --regid "$user" --init-groups "$@"; fi
}

# Debian's newest Python comes without pip for a new environment, so the environment gets a pip out of a wheel.
newest() {
  local found
  found=$(bash tests/newest_python.sh "$folder/newest" 2>"$folder/newest.log") &&
    "$folder/build/bin/pip" download -q --no-deps --dest "$folder" pip ||
    { echo "NOT RUN: newest, because Python 3.14 is not to be had here: $(tail -n 1 "$folder/newest.log")"; return; }
  ln -sf python3.14 "$found/python3"
  make="python3 -m venv --without-pip .venv && .venv/bin/python '$(echo "$folder"/pip-*.whl)/pip' install -q pip"
  situation newest "$guest" "$folder/guest" "$found:$plain"
}

# No compiler: the machine's programs without those that build.
bare() {
  mkdir "$folder/bare"
  ln -s /usr/bin/* /bin/* "$folder/bare" 2>/dev/null # of two that have one name, the first
  rm -f "$folder/bare"/{cc,c++,c89,c99,ld,as,make,*gcc*,*g++*,*clang*,*cpp*}
  situation bare "$guest" "$folder/guest" "$folder/bare"
}

plain=/usr/local/bin:/usr/bin:/bin # without /usr/sbin, where nginx, haproxy and pgbouncer are
make="python3 -m venv .venv"
mkdir "$folder/empty"
[ $# != 0 ] || set -- root debian user homeless bare newest
for name; do
  case $name in
    root) situation root root "$folder/empty" "$PATH" ;; # the python3 that comes first
    debian) situation debian root "$folder/empty" "/usr/sbin:$plain" ;; # Debian's own
    user) situation user "$guest" "$folder/guest" "$plain" ;;
    homeless) situation homeless "$guest" "$folder/absent" "$plain" ;; # as in many containers
    bare) bare ;;
    newest) newest ;;
    *) echo "no such situation: $name" >&2 && exit 2 ;;
  esac
done
exit $failed
