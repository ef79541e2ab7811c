package mask

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// plain are the signs, beside letters and digits, that encoders of URLs leave as they are. They are for texts with
// many other signs.
var plain = []string{
	"",                     // all that need not be
	"-_.~",                 // RFC 3986, and most libraries
	"-_.~/",                // Python's quote
	"-_.*",                 // forms of HTML
	"-_.!~*'()",            // JavaScript's encodeURIComponent
	"-_.!~*'();/?:@&=+$,#", // JavaScript's encodeURI
	"-_.~:",                // of a user and a password, as many write it
	"-_.~$&+,;=",           // the same by Go's url.UserPassword
	"-_.~!$&'()*+,;=:",     // and by RFC 3986
	"-_.~$&+:=@",           // Go's url.PathEscape
	"-_.~!$&'()*+,;=:@/",   // a path by RFC 3986
	"-_.~!$&'()*+,;=:@/?",  // a query by RFC 3986
}

// large is the length from which a value has fewer forms: it is as it is, or in JSON. Nobody puts it into a URL.
const large = 4 << 10

// forms are a text as it is, and as JSON, URLs and base64 have it. None is shorter than the shortest. Of a large
// value there is only the text, and JSON.
func forms(text string, isLarge bool) []string {
	all := []string{text}
	if !isLarge {
		for _, keep := range kept(text) {
			for _, digits := range []string{"0123456789ABCDEF", "0123456789abcdef"} {
				percent := percented(text, keep, digits)
				all = append(all, percent, strings.ReplaceAll(percent, "%20", "+"))
			}
		}
		all = append(all, everyByte(text, "0123456789ABCDEF"), everyByte(text, "0123456789abcdef"))
		all = append(all, base64s(text)...)
		slices.Sort(all)
		all = slices.Compact(all)
	}
	for _, form := range all[:len(all):len(all)] {
		all = append(all, quoted(form)...)
	}
	return all
}

// quoted returns a text in the forms that encoders of JSON write. They may escape HTML's characters and slashes or
// not, and write characters beyond ASCII as they are or by number.
func quoted(text string) (all []string) {
	for _, html := range []bool{false, true} {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(html)
		if enc.Encode(text) != nil {
			return all
		}
		form := strings.TrimSuffix(b.String(), "\n")
		all = append(all, form[1:len(form)-1])
	}
	each := func(other func(string) string) {
		for _, form := range all[:len(all):len(all)] {
			if is := other(form); is != form {
				all = append(all, is)
			}
		}
	}
	each(byNumber)
	for _, form := range all[:len(all):len(all)] {
		if is := upperNumbers(form); is != form {
			all = append(all, is)
		}
	}
	each(func(form string) string { return strings.ReplaceAll(form, "/", `\/`) })
	each(func(form string) string { return strings.ReplaceAll(form, "\x7f", `\u007f`) })
	return all
}

// byNumber is JSON without any character beyond ASCII.
func byNumber(form string) string {
	const number = `\u%04x`
	var b strings.Builder
	for _, r := range form {
		switch {
		case r < utf8.RuneSelf:
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, number+number, high, low)
		default:
			fmt.Fprintf(&b, number, r)
		}
	}
	return b.String()
}

// upperNumbers is JSON with upper-case digits in its characters by number.
func upperNumbers(form string) string {
	b := []byte(form)
	for i := 0; i+1 < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		i++ // also past a backslash that is escaped
		if b[i] == 'u' && i+4 < len(b) {
			copy(b[i+1:i+5], strings.ToUpper(form[i+1:i+5]))
		}
	}
	return string(b)
}

// kept are the sets of a text's signs that encoders of URLs may leave as they are: any set, if its signs are few.
func kept(text string) []string {
	const few = 6
	signs := ""
	for i := range len(text) {
		if c := text[i]; c < utf8.RuneSelf && !alphanumeric(c) && strings.IndexByte(signs, c) < 0 {
			signs += string(rune(c))
		}
	}
	if len(signs) > few {
		return plain
	}
	all := []string{""}
	for _, c := range signs {
		for _, keep := range all[:len(all):len(all)] {
			all = append(all, keep+string(c))
		}
	}
	return all
}

func alphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// percented is a text as a URL has it: everything but letters, digits and the signs in keep is encoded.
func percented(text, keep, digits string) string {
	var b strings.Builder
	for i := range len(text) {
		c := text[i]
		if alphanumeric(c) || strings.IndexByte(keep, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteString(string([]byte{'%', digits[c>>4], digits[c&15]}))
	}
	return b.String()
}

// everyByte is another form of a text in a URL: every byte is encoded.
func everyByte(text, digits string) string {
	var b strings.Builder
	for i := range len(text) {
		b.WriteString(string([]byte{'%', digits[text[i]>>4], digits[text[i]&15]}))
	}
	return b.String()
}

// base64s returns a text in base64, in both alphabets, wherever it begins in the encoded data, and whether anything
// follows it or not. It leaves out a character that also has bits of the data around the text: that character has 4
// bits of the text at most.
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
