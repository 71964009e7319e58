#!/usr/bin/env bash
# Unpack Python 3.14 of Debian's newest suite, without installing anything.
#   newest_python.sh FOLDER   prints the folder that belongs into PATH
# For Debian on the machine's own mirror. Fails where the suite cannot be reached.
set -euo pipefail
version=3.14
command=$(bash "$(dirname "$0")/databases/clusters/newest_suite.sh" "python$version-minimal libpython$version-stdlib" "python$version" "$1")
python=${command##* }
mv "$python" "$python.binary"
# Python finds its library beside its name, and starts itself by that name. So the name is a script with the loader.
printf '#!/bin/sh\nexec %s --argv0 "$0" %s "$@"\n' "${command% *}" "$python.binary" >"$python"
chmod 755 "$python"
"$python" -c "import ctypes, sqlite3, ssl" >&2
dirname "$python"
