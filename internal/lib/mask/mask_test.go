package mask_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/lib/mask"
)

// TestWriter: however the output is cut, no part of a secret comes through, and all else does.
func TestWriter(t *testing.T) {
	m := mask.New([]string{"canary-one", "canary-one-more", "first line\nsecond line", "short", `with "quotes"`})
	const said = "a canary-one-more b canary-one c canary-on d first line\nsecond line short with \"quotes\" with \\\"quotes\\\" canary-o"
	const want = "a *** b *** c canary-on d *** short *** *** canary-o"
	for size := 1; size <= len(said); size++ {
		var b strings.Builder
		w := mask.Writer{W: &b, Mask: m}
		for rest := said; rest != ""; {
			n := min(size, len(rest))
			if _, err := w.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got := b.String(); got != want {
			t.Errorf("in parts of %d bytes: got %q, want %q", size, got, want)
		}
	}
	if got := (mask.Mask{}).Hide("as it is"); got != "as it is" {
		t.Errorf("without secrets: %q", got)
	}
}

// canaries are secrets with all that the encoders treat differently.
var canaries = []string{
	"canary-0123456789", "c4nary/with+both==", "canary with spaces & signs: ~!*'()[]?#%", "kanarie-é-ü-\u2603-ok", "abcabcabcabcab", "\xff\xfe\x00canary\xff\xfb\xef",
}

// encodings are ways in which programs write a text.
func encodings(secret string) map[string]string {
	quoted, _ := json.Marshal(secret)
	script := strings.NewReplacer("+", "%20", "%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*").Replace(url.QueryEscape(secret))
	all := map[string]string{
		"as it is": secret, "JSON": string(quoted), "form": url.QueryEscape(secret), "path": url.PathEscape(secret), "script": script,
		"lower": lowerHex(url.QueryEscape(secret)), "lower path": lowerHex(url.PathEscape(secret)),
		"every byte": strings.ToUpper(strings.ReplaceAll(fmt.Sprintf("% x", " "+secret), " ", "%"))[2:],
	}
	for name, enc := range map[string]*base64.Encoding{"std": base64.StdEncoding, "url": base64.URLEncoding, "raw std": base64.RawStdEncoding, "raw url": base64.RawURLEncoding} {
		for before := range 4 {
			for after := range 4 {
				all[fmt.Sprintf("%s, %d before, %d after", name, before, after)] = enc.EncodeToString([]byte("user"[:before] + secret + "host"[:after]))
			}
		}
	}
	return all
}

// lowerHex is a text of a URL with lower-case digits.
func lowerHex(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' {
			b.WriteString(strings.ToLower(s[i:min(i+3, len(s))]))
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// TestForms: a secret is masked in each form in which programs write it, however the output is cut. Of base64 no more
// than two characters at either end are left.
func TestForms(t *testing.T) {
	m := mask.New(canaries)
	for _, secret := range canaries {
		for name, text := range encodings(secret) {
			said := "token " + text + " end"
			want := m.Hide(said)
			left := strings.TrimSuffix(strings.TrimPrefix(want, "token "), " end")
			if rest := strings.Replace(left, "***", "", 1); !strings.Contains(left, "***") || len(rest) > 4+2*len("user") && !strings.HasPrefix(name, "JSON") {
				t.Errorf("%q, %s: %q is told as %q", secret, name, said, want)
			}
			for size := 1; size < len(said); size++ {
				var b strings.Builder
				w := mask.Writer{W: &b, Mask: m}
				for i := 0; i < len(said); i += size {
					if _, err := w.Write([]byte(said[i:min(i+size, len(said))])); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.Close(); err != nil || b.String() != want {
					t.Fatalf("%q, %s, in parts of %d bytes: %q, want %q, %v", secret, name, size, b.String(), want, err)
				}
			}
		}
	}
	for _, said := range []string{"", "nothing of it", "canary", "Y2FuYXJ5", "abcabc", strings.Repeat("canary-", 9)} {
		if got := m.Hide(said); got != said {
			t.Errorf("%q is told as %q", said, got)
		}
	}
}

// TestBegun: what may be the beginning of a secret is not told before the rest is there. A secret that is there
// already is none, also if it ends as it begins.
func TestBegun(t *testing.T) {
	m := mask.New([]string{"abcabcabcabcab"})
	for text, want := range map[string]int{"": 0, "x": 0, "xa": 1, "xabcabcab": 8, "abcabcabcabcab": 0, "abcabcabcabcabx": 0, "abcabcabcabcaba": 1} {
		if got := m.Begun([]byte(text)); got != want {
			t.Errorf("%q: %d bytes are kept back, want %d", text, got, want)
		}
	}
}

// BenchmarkWriter measures a log of a build: with a mask, and the copy alone.
func BenchmarkWriter(b *testing.B) {
	var line strings.Builder
	for i := range 64 {
		fmt.Fprintf(&line, "%04d ok  \tgithub.com/example/project/internal/part%d\t0.%03ds coverage: 81.%d%% of statements\n", i, i, i*7, i%10)
	}
	said := []byte(line.String())
	var secrets []string
	for i := range 10 {
		secrets = append(secrets, fmt.Sprintf("ghp_%036d", i*7919))
	}
	for name, m := range map[string]mask.Mask{"floor": {}, "10 secrets": mask.New(secrets)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(said)))
			w := mask.Writer{W: new(strings.Builder), Mask: m}
			for b.Loop() {
				w.W = new(strings.Builder)
				if _, err := w.Write(said); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
