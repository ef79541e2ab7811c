package gateway

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"mime/quotedprintable"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/shim/connect"
)

func TestRedactor(t *testing.T) {
	r := newRedactors(nil, []string{"aab-long", "aab", "xyz", "one-long-secret-with-24-ch"}).body
	for in, want := range map[string]string{
		"": "", "a": "a", "aab": "***", "aaab": "a***", "aab-lon": "*******", "xaab-": "x***-", "xxyx": "xxyx", "aab-long": "********",
		"xaabyxyzx": "x***y***x", "xyaab-longxyz": "xy***********", "aaaaab": "aaa***",
		"a one-long-secret-wit": "a one-long-secret-wit", "a one-long-secret-with-": "a *********************", "one-long-secret-with-OTHER, and": "**************************, and",
		`"one-long-secret-with-"`: `"*********************"`,
	} {
		for name, cut := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "by bytes": iotest.OneByteReader, "end with data": iotest.DataErrReader} {
			ended := false
			b := &redacting{ReadCloser: io.NopCloser(cut(strings.NewReader(in))), redactor: r, ended: func() { ended = true }}
			got, err := io.ReadAll(b)
			if err != nil || !ended || string(got) != want {
				t.Errorf("%q %s: got %q, %v, want %q", in, name, got, err, want)
			}
		}
	}
}

func FuzzRedactor(f *testing.F) {
	f.Add("aabxyzaab-long", uint8(3))
	f.Add(`\u0061a\\x62=\n%25&#97;aab-lo`, uint8(1))
	r := newRedactors([]string{"aab-long-\\%=&secret", "aab-long"}, []string{"xyz"}).body
	f.Fuzz(func(t *testing.T, in string, step uint8) {
		b := &redacting{ReadCloser: io.NopCloser(&stepReader{strings.NewReader(in), int(step%16) + 1}), redactor: r}
		got, err := io.ReadAll(b)
		if err != nil || len(got) != len(in) {
			t.Fatalf("got %d bytes of %d, %v", len(got), len(in), err)
		}
		for _, h := range []string{"aab-long", "xyz"} {
			if strings.Contains(string(got), h) {
				t.Fatalf("%q still has %q", got, h)
			}
		}
		for i := range got {
			if got[i] != in[i] && got[i] != '*' {
				t.Fatalf("%q became %q", in, got)
			}
		}
	})
}

// echoed lets an upstream answer with pieces. After each piece the upstream waits until the
// sandbox has seen all that arrives. It returns the text that arrives of each piece, and then
// at the end.
func echoed(r *redactor, pieces ...string) (seen []string) {
	arrived := ""
	in := &pieceReader{pieces: pieces, said: func() {
		seen = append(seen, arrived)
		arrived = ""
	}}
	b := &redacting{ReadCloser: io.NopCloser(in), redactor: r}
	for buf := make([]byte, 1000); ; {
		n, err := b.Read(buf)
		arrived += string(buf[:n])
		if err != nil {
			return append(seen, arrived)
		}
	}
}

// pieceReader gives one piece a read. Before each it calls said.
type pieceReader struct {
	pieces []string
	said   func()
}

func (r *pieceReader) Read(p []byte) (int, error) {
	r.said()
	if len(r.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.pieces[0])
	r.pieces = r.pieces[1:]
	return n, nil
}

// TestRedactorIsNoOracle guesses a secret sign by sign, by all that a sandbox sees of an
// answer that echoes its guess. An upstream may cut its answer anywhere. Even if a sandbox
// knows the first half, or nearly three quarters, it does not get further than the sign at
// three quarters.
func TestRedactorIsNoOracle(t *testing.T) {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	const key = "sk-live-Zq8RmT3vXw92LbNc5KdYh7PfGa-4E" // 37 signs
	u, err := connect.Resolve(cove.Connector{Name: "x", Secret: "x", Headers: map[string]string{"X-Key": "{secret}", "Authorization": "Basic {basic:me}"}}, func(string) (connect.Value, error) { return connect.Value{Text: key}, nil })
	if err != nil {
		t.Fatal(err)
	}
	rs := newRedactors(u.Secrets, u.Hidden)
	r := rs.body
	encode := map[string]func(string) string{
		"as it is": func(s string) string { return s },
		"escaped": func(s string) (out string) {
			for i := range len(s) {
				out += fmt.Sprintf("%%%02x", s[i])
			}
			return out
		},
		"hex": func(s string) string { return fmt.Sprintf("%x", s) },
		"numbers": func(s string) string {
			return strings.Trim(strings.ReplaceAll(fmt.Sprintf("%d", []byte(s)), " ", ", "), "[]")
		},
		"base64": func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) },
	}
	const filler = "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!"
	for name, text := range encode {
		// Guesses differ only by their signs. So the answers are compared only for whether a
		// sign is there, and whether it is redacted.
		looks := map[string]func(string) string{
			"the end":       func(s string) string { return mask(echoed(r, text(s))) },
			"a cut":         func(s string) string { return mask([]string{r.text(text(s))}) },
			"more follows":  func(s string) string { return mask(echoed(r, text(s)+filler)) },
			"an end of it":  func(s string) string { return mask(echoed(r, text(s)+"\n", "x")) },
			"a pause":       func(s string) string { return mask(echoed(r, text(s), filler)) },
			"two pauses":    func(s string) string { return mask(echoed(r, text(s[:len(s)-1]), text(s[len(s)-1:]), filler)) },
			"a quoted end":  func(s string) string { return mask(echoed(r, `{"echo":"`+text(s)+`"}`, "x")) },
			"a header":      func(s string) string { h := http.Header{"X": {text(s)}}; rs.header(h); return mask(h["X"]) },
			"a header name": func(s string) string { h := http.Header{text(s): {"1"}}; rs.header(h); return fmt.Sprint(len(h)) },
		}
		for how, look := range looks {
			for _, known := range []int{0, 2, 6, 12, 18, 24, 26, 29, 32} {
				guess := key[:known]
				for len(guess) < len(key) {
					seen := map[string][]byte{}
					for _, c := range []byte(alphabet) {
						s := look(guess + string(c))
						seen[s] = append(seen[s], c)
					}
					// A guess that looks like no other is the one to go on with.
					odd := byte(0)
					for _, all := range seen {
						if len(all) <= 2 && len(seen) == 2 && (all[0] == key[len(guess)] || len(all) > 1 && all[1] == key[len(guess)]) {
							odd = key[len(guess)]
						}
					}
					if odd == 0 {
						break
					}
					guess += string(odd)
				}
				learnt := len(guess) - known
				// A few signs from which what follows is held back, and the one that completes
				// three quarters.
				limit := 28
				if known < limit && learnt > 4 || known < limit && known >= 6 && learnt > 1 || known >= limit && learnt > 0 {
					t.Errorf("%s, %s: who knows %d signs finds %d more: %q", name, how, known, learnt, guess)
				}
			}
		}
	}
}

// mask is what a sandbox sees of an answer, without the signs themselves.
func mask(seen []string) string {
	out := ""
	for _, s := range seen {
		for i := range len(s) {
			if s[i] == '*' {
				out += "*"
			} else {
				out += "."
			}
		}
		out += "|"
	}
	return out
}

// TestHiddenForms: a secret is redacted in every usual spelling, wherever an upstream
// puts it and however that arrives.
func TestHiddenForms(t *testing.T) {
	const value = `Sk-test/0123&456?78+9"<x'>\_=a`
	u, err := connect.Resolve(cove.Connector{Name: "x", Secret: "x", Headers: map[string]string{"X-Key": "{secret}"}}, func(string) (connect.Value, error) { return connect.Value{Text: value}, nil })
	if err != nil {
		t.Fatal(err)
	}
	r := newRedactors(u.Secrets, u.Hidden).body
	each := func(format string) string { // every byte, as an argument
		var b strings.Builder
		for i := range len(value) {
			fmt.Fprintf(&b, format, value[i])
		}
		return b.String()
	}
	signs := func(format string, s string) string { // all but letters and digits
		var b strings.Builder
		for i := range len(s) {
			if c := s[i]; c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, format, c)
			}
		}
		return b.String()
	}
	quote := func(s string) string { b, _ := json.Marshal(s); return strings.Trim(string(b), `"`) }
	var printable bytes.Buffer
	qp := quotedprintable.NewWriter(&printable)
	_, _ = io.WriteString(qp, strings.Repeat("long ", 12)+value)
	_ = qp.Close()
	b64 := base64.StdEncoding.EncodeToString([]byte("to a user: " + value + " it is"))
	forms := map[string]string{
		"as it is": value, "lower case": strings.ToLower(value), "upper case": strings.ToUpper(value), "title case": strings.ToUpper(value[:1]) + strings.ToLower(value[1:]),
		"percent, all, upper": each("%%%02X"), "percent, all, lower": each("%%%02x"), "percent, query": url.QueryEscape(value), "percent, path": url.PathEscape(value),
		"percent, twice": url.QueryEscape(each("%%%02x")), "percent, %u": each("%%u%04x"), "PHP rawurlencode": strings.ReplaceAll(url.QueryEscape(value), "+", "%20"),
		"hex escapes": each(`\x%02x`), "hex escapes, upper": each(`\x%02X`), "hex escapes, braces": each(`\x{%x}`), "JavaScript": each(`\u%04x`), "JavaScript, upper": each(`\u%04X`), "JavaScript, braces": each(`\u{%x}`),
		".NET's JSON": signs(`\u%04X`, value), "long Unicode": each(`\U%08X`), "octal": each(`\%03o`), "octal, echo -e": each(`\0%03o`),
		"JSON": quote(value), "JSON in JSON": quote(quote(value)), "PHP's json_encode": strings.ReplaceAll(quote(value), "/", `\/`), "PHP's, in JSON": quote(strings.ReplaceAll(quote(value), "/", `\/`)),
		"HTML": html.EscapeString(value), "HTML, decimal": each("&#%d;"), "HTML, hex": each("&#x%x;"), "HTML, hex upper": each("&#X%X;"), "HTML, zeros": each("&#%07d;"), "HTML, hex zeros": each("&#x%06x;"),
		"HTML, twice": html.EscapeString(html.EscapeString(value)), "HTML in JSON": quote(html.EscapeString(value)), "HTML, percent": url.QueryEscape(each("&#%d;")),
		"HTML, names": strings.NewReplacer("/", "&sol;", "&", "&amp;", "?", "&quest;", "+", "&plus;", `"`, "&quot;", "<", "&lt;", "'", "&apos;", ">", "&gt;", `\`, "&bsol;", "_", "&lowbar;", "=", "&equals;").Replace(value),
		"OWASP, CSS":  signs(`\%x `, value), "OWASP, LDAP": signs(`\%02x`, value), "OWASP, HTML": signs("&#x%x;", value), "OWASP, JavaScript": signs(`\x%02X`, value), "OWASP, shell": signs(`\%c`, value),
		"Python's repr": fmt.Sprintf(`'%s'`, strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value)), "SQL": strings.ReplaceAll(value, "'", "''"), "CSV": strings.ReplaceAll(value, `"`, `""`), "Go's %q": fmt.Sprintf("%q", value),
		"quoted-printable": printable.String(), "quoted-printable, all": each("=%02X"),
		"UTF-16": each("%c\x00"), "UTF-16, big": each("\x00%c"), "UTF-32": each("%c\x00\x00\x00"), "UTF-16, repr": strings.ReplaceAll(fmt.Sprintf("%+q", each("%c\x00")), `\"`, `"`), "UTF-16, JSON": quote(each("%c\x00")),
		"hex": each("%02x"), "hex, upper": each("%02X"), ".NET's BitConverter": each("-%02X"), "colons": each(":%02x"), "a dump": fmt.Sprintf("% x", value), "Go's bytes": each(", 0x%02x"), "C's bytes": each("0x%02X,"),
		"numbers": fmt.Sprintf("%d", []byte(value)), "Python's list": each(", %d"), "Node's Buffer": each("%d,"), "JSON, indented": each(",\n    %d"),
	}
	for before := range 6 {
		all := []byte("abcdef"[:before] + value + "xyz")
		forms[fmt.Sprint("base64 ", before)] = base64.StdEncoding.EncodeToString(all)
		forms[fmt.Sprint("base64, URL's ", before)] = base64.RawURLEncoding.EncodeToString(all)
		forms[fmt.Sprint("base64, percent ", before)] = url.QueryEscape(base64.StdEncoding.EncodeToString(all))
		forms[fmt.Sprint("base64, PHP's JSON ", before)] = strings.ReplaceAll(base64.StdEncoding.EncodeToString(all), "/", `\/`)
		forms[fmt.Sprint("base32 ", before)] = base32.StdEncoding.EncodeToString(all)
		forms[fmt.Sprint("base32, lower ", before)] = strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(all))
	}
	for width := 20; width < len(b64); width += 7 {
		lines := ""
		for i := 0; i < len(b64); i += width {
			lines += b64[i:min(i+width, len(b64))] + "\r\n"
		}
		forms[fmt.Sprint("base64, lines of ", width)] = lines
		forms[fmt.Sprint("base64, lines in JSON of ", width)] = quote(lines)
	}
	for name, form := range forms {
		for _, step := range []int{1000, 7, 1} {
			text := "it is " + form + " and that was it, of all that there is"
			b := &redacting{ReadCloser: io.NopCloser(&stepReader{strings.NewReader(text), step}), redactor: r}
			got, err := io.ReadAll(b)
			if err != nil || len(got) != len(text) {
				t.Fatalf("%s: %d bytes became %d, %v", name, len(text), len(got), err)
			}
			if !strings.HasPrefix(string(got), "it is ") || !strings.HasSuffix(string(got), "that there is") {
				t.Errorf("%s: too much is redacted: %q", name, got)
			}
			want := len(form) * 6 / 10
			switch {
			case strings.Contains(name, "lines"):
				want = len(value)*4/3 - 8
			case name == "quoted-printable":
				want = len(value) - 4
			}
			if n := bytes.Count(got, []byte("*")); n < want {
				t.Errorf("%s, %d bytes at a time: %d of %d are redacted: %q", name, step, n, len(form), got)
			}
			if !strings.Contains(name, "base") && name != "quoted-printable" {
				rest := strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(string(got), "it is "), " and that was it, of all that there is"), "*", "")
				if len(rest) > 9 { // text before the first sign, a part of that sign if it comes slowly, and text after the last
					t.Errorf("%s: of %q is left %q", name, form, rest)
				}
			}
		}
	}
	if _, err := io.ReadAll(&redacting{ReadCloser: io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF)), redactor: r}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an error becomes %v", err)
	}
}
