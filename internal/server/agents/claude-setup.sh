# Has Claude Code know, by the end of its key, that a person has approved of the key's use.
set -e
PATH=$HOME/.local/bin:$PATH
if ! [ -e "$HOME/.claude.json" ]; then
	key=$(printf %s "$ANTHROPIC_API_KEY" | tail -c 20)
	printf '{"hasCompletedOnboarding":true,"bypassPermissionsModeAccepted":true,"customApiKeyResponses":{"approved":["%s"],"rejected":[]}}\n' "$key" >"$HOME/.claude.json"
fi
echo "claude $(claude --version)"
