# Installs packages by whichever package manager there is: sh deps.sh PACKAGE…
set -e
root=
if [ "$(id -u)" != 0 ]; then
	if ! command -v sudo >/dev/null; then
		echo "neither root nor sudo is to be had here" >&2
		exit 1
	fi
	root="sudo -n"
fi
if command -v apt-get >/dev/null; then
	$root apt-get update -q
	$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
elif command -v apk >/dev/null; then
	$root apk add --no-cache "$@"
elif command -v dnf >/dev/null; then
	$root dnf install -y -q "$@"
else
	echo "none of the package managers apt-get, apk and dnf is here" >&2
	exit 127
fi
