# Makes sure that Claude Code is there: claude-install VERSION OLDER, of which the second
# is for a Node that the first does not run on.
set -e
PATH=$HOME/.local/bin:$PATH
if ! command -v claude >/dev/null; then
	if ! command -v npm >/dev/null; then
		echo "neither claude nor npm is in this sprite; create it with --include FOLDER, or install Node.js on the host" >&2
		exit 127
	fi
	# npm would take an older release that fits an older Node without a word.
	version=$1
	if [ "$(node -p 'parseInt(process.versions.node)')" -lt 22 ]; then
		version=$2
	fi
	# With another prefix npm would look below that for this machine's settings.
	npm install --global --prefix "$HOME/.local" --globalconfig "$(npm config get globalconfig)" --no-audit --no-fund --loglevel=error "@anthropic-ai/claude-code@$version" >&2
	claude --version | grep -qF "$version"
fi
