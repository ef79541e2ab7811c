package mask

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// plain are what encoders of URLs leave as they are, beside letters and digits.
var plain = []string{
	"",                     // all that need not be
	"-_.~",                 // RFC 3986, and most libraries
	"-_.~/",                // Python's quote
	"-_.*",                 // forms of HTML
	"-_.!~*'()",            // JavaScript's encodeURIComponent
	"-_.!~*'();/?:@&=+$,#", // JavaScript's encodeURI
	"-_.~$&+:=@",           // Go's url.PathEscape
	"-_.~!$&'()*+,;=:@/",   // a path by RFC 3986
	"-_.~!$&'()*+,;=:@/?",  // a query by RFC 3986
}

// forms are a text as it is, and as JSON, URLs and base64 have it. None is shorter than the shortest.
func forms(text string) []string {
	all := []string{text}
	for _, keep := range plain {
		for _, digits := range []string{"0123456789ABCDEF", "0123456789abcdef"} {
			percent := percented(text, keep, digits)
			all = append(all, percent, strings.ReplaceAll(percent, "%20", "+"))
		}
	}
	all = append(all, everyByte(text, "0123456789ABCDEF"), everyByte(text, "0123456789abcdef"))
	all = append(all, base64s(text)...)
	for _, form := range all[:len(all):len(all)] {
		if quoted, err := json.Marshal(form); err == nil {
			all = append(all, string(quoted[1:len(quoted)-1]))
		}
	}
	return all
}

// percented is a text as a URL has it, but for letters, digits and what is kept.
func percented(text, keep, digits string) string {
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte(keep, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteString(string([]byte{'%', digits[c>>4], digits[c&15]}))
	}
	return b.String()
}

// everyByte is a text as a URL may have it, too: with nothing left as it is.
func everyByte(text, digits string) string {
	var b strings.Builder
	for i := range len(text) {
		b.WriteString(string([]byte{'%', digits[text[i]>>4], digits[text[i]&15]}))
	}
	return b.String()
}

// base64s are a text in base64, in both alphabets: wherever it begins in what was encoded, and whether anything
// follows it. A character that has bits of what is before it, or of what follows, is not among them: it has 4 bits
// of the text at most.
func base64s(text string) (all []string) {
	for before := range 3 {
		bytes := append(make([]byte, before), text...)
		begin, end := (8*before+5)/6, 8*len(bytes)/6
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			padded := enc.EncodeToString(bytes)
			last := strings.TrimRight(padded, "=")
			all = append(all, padded[begin:end], last[begin:], padded[begin:])
		}
	}
	return all
}
