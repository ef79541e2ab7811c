# Chooses the kind of Gemini CLI's login, unless the person has: without, it exits with 41
# whatever key it has. Settings above the person's own must be root's.
set -e
settings=$HOME/.gemini/settings.json
if ! [ -e "$settings" ]; then
	mkdir -p "$HOME/.gemini"
	cat >"$settings" <<'end'
{
	"security": {"auth": {"selectedType": "gemini-api-key"}},
	"general": {"enableAutoUpdate": false},
	"privacy": {"usageStatisticsEnabled": false}
}
end
fi
