#!/usr/bin/env bash
# Unpack a program of Debian's newest suite, and the libraries that the program needs, without installing anything.
#   newest_suite.sh PACKAGES PROGRAM FOLDER   prints the command that runs the program, with its own loader and libraries
# PACKAGES are one word each, separated by blanks.
# For Debian on the machine's own mirror. Fails where the suite cannot be reached.
set -euo pipefail
packages=$1 program=$2
folder=$(mkdir -p "$3" && cd "$3" && pwd)
apt=$folder/apt root=$folder/root
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$root"
: >"$apt/status" # as on a machine where nothing is installed, so that all libraries are named
mirror=$(grep -rhoE '^(URIs: |deb .*)https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
  grep -oE -m 1 'https?://[^ ]+') || true
[ -n "$mirror" ] || { echo "no Debian mirror in /etc/apt" >&2; exit 1; }
printf 'Types: deb\nURIs: %s\nSuites: sid\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
  "$mirror" >"$apt/sid.sources"
options=(-qq -o "Dir::Etc::sourcelist=$apt/sid.sources" -o Dir::Etc::sourceparts=-
  -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
  -o "Dir::State=$apt" -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status"
  -o "Dir::Cache=$apt/cache" -o Acquire::Languages=none -o APT::Sandbox::User=root -o Debug::NoLocking=1)
apt-get "${options[@]}" update >&2
# Libraries only: scripts of maintainers do not run.
# shellcheck disable=SC2086 # one word for each package
packages=$(apt-get "${options[@]}" -s --no-install-recommends install $packages |
  awk -v wanted=" $packages " '/^Inst/ && (index(wanted, " " $2 " ") || $2 ~ /^(lib|zlib)/) && $2 !~ /perl|gconv/ { print $2 }')
# shellcheck disable=SC2086 # the same
(cd "$apt/cache/archives" && apt-get "${options[@]}" download $packages >&2)
for archive in "$apt"/cache/archives/*.deb; do
  dpkg-deb --fsys-tarfile "$archive" | tar -x -C "$root" --exclude=./usr/share/doc --exclude=./usr/share/man
done
rm -rf "$apt"
chmod -R a+rX "$folder"
libraries=$root/usr/lib/$(uname -m)-linux-gnu
loader=$(find "$root" -name 'ld-linux*.so.*' | head -n 1)
echo "$loader --library-path $libraries $(find "$root" -path "*bin/$program" | head -n 1)"
