#!/bin/sh
# Writes the root file system of a small Debian to the standard output, as a tar. It needs
# neither a registry nor root, but mmdebstrap (apt-get install mmdebstrap):
#
#   images/debian.sh | cove image import - --name debian:local
#   INCLUDE=git,curl images/debian.sh bookworm http://mirror.example.org/debian >bookworm.tar
#
# SUITE is trixie, and MIRROR is the one that apt on this machine gets its own system from,
# unless they are given. INCLUDE in the environment names more packages, with commas between.
set -eu

suite=${1:-trixie}
mirror=${2:-}
if [ -z "$mirror" ]; then
	. /etc/os-release
	if [ "$ID" = debian ]; then
		mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
			awk -v own="${VERSION_CODENAME:-stable}" '$2 == "main" && ($1 == own || $1 == "stable") { print $3; exit }')
	fi
fi

# No manual pages, as in the small images of registries; licences stay.
exec mmdebstrap --quiet --variant=minbase --include="ca-certificates,sudo${INCLUDE:+,$INCLUDE}" \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-include=/usr/share/doc/*/copyright' \
	"$suite" - ${mirror:+"$mirror"}
