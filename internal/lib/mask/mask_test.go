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

// encodings are the forms that programs write a text in.
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

// TestForms: a secret is masked in each form that programs write it in, however the output is cut. Of base64 at most
// two characters are left at either end.
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

// TestBegun: text that may be the beginning of a secret is not written before the rest is
// there. A secret that is there already is kept back only as long as another one may have
// begun in it.
func TestBegun(t *testing.T) {
	m := mask.New([]string{"abcabcabcabcab"})
	for text, want := range map[string]int{"": 0, "x": 0, "xa": 1, "xabcabcab": 8, "abcabcabcabcab": 14, "xabcabcabcabcab": 14, "abcabcabcabcabx": 0, "abcabcabcabcaba": 1} {
		if got := m.Begun([]byte(text)); got != want {
			t.Errorf("%q: %d bytes are kept back, want %d", text, got, want)
		}
	}
}

// TestJSON: a secret is masked in JSON as encoders of other languages write it, and as users of URLs do.
func TestJSON(t *testing.T) {
	m := mask.New([]string{`a&b=c"d<e>/f`, "pass/wörd-\u2603-\U0001f511", "p@ss:w0rd/xyz", `back\u00ff"slash/`})
	for _, said := range []string{
		`a&b=c\"d<e>/f`, `a&b=c\"d<e>\/f`, `a\u0026b=c\"d\u003ce\u003e/f`, `a\u0026b=c\"d\u003Ce\u003E\/f`,
		`pass/wörd-☃-🔑`, `pass\/wörd-☃-🔑`, `pass/w\u00f6rd-\u2603-\ud83d\udd11`, `pass\/w\u00F6rd-\u2603-\uD83D\uDD11`,
		"p%40ss:w0rd%2Fxyz", "p%40ss:w0rd%2fxyz", "p%40ss%3Aw0rd/xyz", "p%40ss%3Aw0rd%2Fxyz", "p@ss:w0rd%2Fxyz", "p@ss%3aw0rd/xyz",
		`back\\u00ff\"slash/`, `back\\u00ff\"slash\/`,
	} {
		if got := m.Hide(`{"is":"` + said + `"}`); got != `{"is":"***"}` {
			t.Errorf("%s is told as %s", said, got)
		}
	}
	key := strings.Repeat("large \"&/ key \u2603 ", 300)
	m = mask.New([]string{key})
	ascii, _ := json.Marshal(strings.TrimSpace(key))
	for _, said := range []string{key[:len(key)-1], string(ascii[1 : len(ascii)-1]), strings.NewReplacer("/", `\/`, "\u2603", `\u2603`, `"`, `\"`).Replace(key[:len(key)-1])} {
		if got := m.Hide("is " + said + " end"); got != "is *** end" {
			t.Errorf("a large one is told as %.200s", got)
		}
	}
}

// TestOverlap: secrets that overlap leave nothing, however the output is cut. Output that repeats a secret without an
// end is written before it ends.
func TestOverlap(t *testing.T) {
	m := mask.New([]string{"abcdefgh12", "gh12345678", "5678-9012", "abcabcabcabcab"})
	for said, want := range map[string]string{
		"a abcdefgh12345678 b": "a *** b", "abcdefgh12345678-9012": "***", "abcdefgh1234567": "***34567", "xgh12345678-901y": "x***-901y",
		strings.Repeat("abc", 9) + "ab.": "***.", "abcdefgh12gh12345678": "***" + "***", "gh12345678abcdefgh12345678 ": "***" + "*** ",
	} {
		for size := 1; size <= len(said); size++ {
			var b strings.Builder
			w := mask.Writer{W: &b, Mask: m}
			for i := 0; i < len(said); i += size {
				if _, err := w.Write([]byte(said[i:min(i+size, len(said))])); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil || b.String() != want {
				t.Errorf("%q in parts of %d bytes: %q, want %q, %v", said, size, b.String(), want, err)
			}
		}
	}
	var b strings.Builder
	w := mask.Writer{W: &b, Mask: m}
	for range 1000 {
		if _, err := w.Write([]byte("abcabcabc")); err != nil {
			t.Fatal(err)
		}
	}
	if b.Len() == 0 || strings.Contains(b.String(), "abcabcabc") {
		t.Errorf("before the end there is %q", b.String())
	}
}

// BenchmarkNew measures masks of large values, beside a copy of them.
func BenchmarkNew(b *testing.B) {
	var values []string
	for i := range 20 {
		values = append(values, strings.Repeat(fmt.Sprintf("%04d/abcdefg&", i), 5000))
	}
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			_ = []byte(strings.Join(values, "\n"))
		}
	})
	b.Run("20 of 64 KiB", func(b *testing.B) {
		for b.Loop() {
			mask.New(values)
		}
	})
}

// BenchmarkNearMiss measures output that is nearly a large secret at each of its bytes.
func BenchmarkNearMiss(b *testing.B) {
	said := []byte(strings.Repeat("a", 1<<20))
	for name, m := range map[string]mask.Mask{"floor": {}, "64 KiB": mask.New([]string{strings.Repeat("a", 64<<10-1) + "b"}), "it repeats": mask.New([]string{strings.Repeat("a", 64<<10)})} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(said)))
			for b.Loop() {
				m.Hide(string(said))
			}
		})
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
