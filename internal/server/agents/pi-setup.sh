# Tells pi where its models are, unless the person has done so.
set -e
models=$HOME/.pi/agent/models.json
if ! [ -e "$models" ]; then
	mkdir -p "$HOME/.pi/agent"
	cat >"$models" <<'end'
{"providers":{
	"anthropic":{"baseUrl":"http://anthropic.connect.internal"},
	"openai":{"baseUrl":"http://openai.connect.internal/v1"},
	"google":{"baseUrl":"http://gemini.connect.internal/v1beta"}
}}
end
fi
