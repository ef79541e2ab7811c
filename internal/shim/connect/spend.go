package connect

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"sync"

	"github.com/cove-dev/cove"
)

// Tokens are what a model's API charges for.
type Tokens struct{ Input, Output int64 }

// Metered reports whether an upstream's answers are looked through for the tokens
// that they say were used.
func (u *Upstream) Metered() bool {
	return len(u.Prices) > 0 || u.Limits.TokensPerDay > 0 || u.Limits.USDPerDay > 0
}

// Cost is what tokens of a model cost, in millionths of a dollar. The first price
// with a pattern for the model counts. If there is none, the highest input price
// and the highest output price count.
func (u *Upstream) Cost(model string, t Tokens) int64 {
	var in, out float64
	for _, p := range u.Prices {
		if Match(p.Model, model) {
			in, out = p.Input, p.Output
			break
		}
		in, out = max(in, p.Input), max(out, p.Output)
	}
	return int64(math.Ceil(float64(t.Input)*in + float64(t.Output)*out)) // a dollar a million is a millionth each
}

const maxPrice = 1e6

func checkPrices(c cove.Connector) error {
	if len(c.Prices) > maxList {
		return fmt.Errorf("more than %d prices", maxList)
	}
	for _, p := range c.Prices {
		if p.Model == "" || len(p.Model) > maxText || !(p.Input >= 0 && p.Output >= 0 && p.Input <= maxPrice && p.Output <= maxPrice) {
			return fmt.Errorf("%.60q: a price needs a model, or a pattern of models, and dollars per million tokens", p.Model)
		}
	}
	if c.Limits.USDPerDay > 0 && len(c.Prices) == 0 {
		return errors.New("a limit in dollars needs the prices of tokens: give prices")
	}
	return nil
}

// usageField matches the fields for the model and the used tokens in answers of
// model APIs, whole or as events. In text that a model wrote the quotes are
// escaped.
var usageField = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[^\\]"(model|modelVersion|input_tokens|output_tokens|cache_creation_input_tokens|cache_read_input_tokens|` +
		`prompt_tokens|completion_tokens|promptTokenCount|candidatesTokenCount|thoughtsTokenCount|toolUsePromptTokenCount)"\s*:\s*(?:(\d{1,15})\b|"([^"\\]{1,200})")`)
})

// Tally reads along with an answer, in any pieces, and notes the tokens that the
// answer says. The zero value is ready.
type Tally struct {
	counts map[string]int64 // the highest of each: events repeat them, growing
	model  string
	tail   []byte
}

// tailSize is longer than any field: bytes that are cut off have been looked at.
const tailSize = 512

// Write implements io.Writer; it never fails.
func (t *Tally) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		if t.tail == nil {
			t.tail = []byte{'\n'} // a field has something before it
		}
		piece := rest[:min(len(rest), 64<<10)]
		rest = rest[len(piece):]
		t.tail = append(t.tail, piece...)
		t.look()
		if over := len(t.tail) - tailSize; over > 0 {
			t.tail = append(t.tail[:0], t.tail[over:]...)
		}
	}
	return len(p), nil
}

func (t *Tally) look() {
	if !bytes.Contains(t.tail, []byte("oken")) && (t.model != "" || !bytes.Contains(t.tail, []byte(`"model`))) {
		return
	}
	for _, m := range usageField().FindAllSubmatch(t.tail, -1) {
		name := string(m[1])
		if name == "model" || name == "modelVersion" {
			if t.model == "" {
				t.model = string(m[3])
			}
			continue
		}
		n, err := strconv.ParseInt(string(m[2]), 10, 64)
		if err != nil {
			continue
		}
		if t.counts == nil {
			t.counts = map[string]int64{}
		}
		t.counts[name] = max(t.counts[name], n)
	}
}

// Total is the model and the tokens of an answer. If the answer was cut, or has no
// numbers of tokens, four bytes of the request or the answer count as one token at
// least. So a client that hangs up early is charged, too.
func (t *Tally) Total(whole bool, sent, received int64) (model string, tokens Tokens) {
	n := t.counts
	tokens.Input = max(n["input_tokens"]+n["cache_creation_input_tokens"]+n["cache_read_input_tokens"], n["prompt_tokens"], n["promptTokenCount"]+n["toolUsePromptTokenCount"])
	tokens.Output = max(n["output_tokens"], n["completion_tokens"], n["candidatesTokenCount"]+n["thoughtsTokenCount"])
	if !whole || len(n) == 0 {
		tokens.Input, tokens.Output = max(tokens.Input, sent/bytesPerToken), max(tokens.Output, received/bytesPerToken)
	}
	return t.model, tokens
}

const bytesPerToken = 4
