# Makes sure that an agent from npm is there: sh npm-install.sh PROGRAM NODE SPEC INTEGRITY [SPEC INTEGRITY]…
# The first SPEC, PACKAGE@VERSION, is the agent's; further ones are those of its packages that are
# programs. NODE is the oldest major version of Node.js on which that version runs.
set -e
program=$1 oldest=$2 spec=$3
shift 2
PATH=$HOME/.local/bin:$PATH
if command -v "$program" >/dev/null; then
	exit 0
fi
if ! command -v npm >/dev/null; then
	echo "neither $program nor npm is in this sprite; create it with --include FOLDER, or install Node.js on the host" >&2
	exit 127
fi
# npm's cache and logs are not left in the user's home.
if [ -z "$npm_config_cache" ]; then
	npm_config_cache=$(mktemp -d)
	export npm_config_cache
	trap 'rm -rf "$npm_config_cache"' EXIT
fi
# npm checks what it downloads by what its registry says: that must be what is expected.
while [ $# -ge 2 ]; do
	found=$(npm view --loglevel=error "$1" dist.integrity)
	if [ "$found" != "$2" ]; then
		echo "the registry has $1 with the checksum ${found:-(none)}, not $2" >&2
		exit 1
	fi
	shift 2
done
# With another prefix npm would look below that for this machine's settings.
settings=$(npm config get globalconfig)
add() { npm install --global --prefix "$1" --globalconfig "$settings" --no-audit --no-fund --loglevel=error "$2" >&2; }
add "$HOME/.local" "$spec"
# An agent that needs a newer Node.js gets one of its own: the work's is left alone.
if [ "$(node -p 'parseInt(process.versions.node)')" -lt "$oldest" ]; then
	node=$HOME/.local/lib/cove-node
	add "$node" node@24.21.0
	script=$(readlink -f "$HOME/.local/bin/$program")
	rm "$HOME/.local/bin/$program"
	printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$node/bin/node" "$script" >"$HOME/.local/bin/$program"
	chmod +x "$HOME/.local/bin/$program"
fi
# npm would take an older release that fits an older Node.js without a word.
"$program" --version | grep -qF "${spec##*@}"
echo "$program ${spec##*@}"
