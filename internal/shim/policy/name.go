package policy

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// CanonicalName returns the one form of a host name that is decided on: lower
// case, punycode (IDNA 2008 as UTS 46 maps it), without the trailing dot. It
// refuses names that no host has. Bytes must be letters, digits, hyphens or
// underscores (not NUL, spaces, '@' or '*'). A label must not be empty, be longer
// than 63 bytes, or start or end with a hyphen. A name must have 1 to 253 bytes,
// and must not be an IPv4 address or pass for one (1.2.3.4, 0177.1, 0x7f000001).
func CanonicalName(name string) (string, error) {
	c := name
	if strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) {
		var err error
		if c, err = idna.Lookup.ToASCII(name); err != nil {
			return "", fmt.Errorf("name %q: %w", short(name), err)
		}
	}
	c = strings.ToLower(strings.TrimSuffix(c, "."))
	if c == "" {
		return "", fmt.Errorf("name %q is empty", short(name))
	}
	if len(c) > 253 {
		return "", fmt.Errorf("name %q is longer than 253 bytes", short(name))
	}
	labels := strings.Split(c, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 {
			return "", fmt.Errorf("name %q has an empty label or one longer than 63 bytes", short(name))
		}
		if l[0] == '-' || l[len(l)-1] == '-' {
			return "", fmt.Errorf("name %q has a label that starts or ends with a hyphen", short(name))
		}
		for i := range len(l) {
			if !nameByte(l[i]) {
				return "", fmt.Errorf("name %q has a byte that no host name has", short(name))
			}
		}
	}
	if numeric(labels[len(labels)-1]) {
		return "", fmt.Errorf("name %q ends like an address", short(name))
	}
	return c, nil
}

func nameByte(b byte) bool {
	return 'a' <= b && b <= 'z' || '0' <= b && b <= '9' || b == '-' || b == '_'
}

// numeric reports whether some program would read a name with this last label as
// an IPv4 address: decimal, octal or hexadecimal (WHATWG URL, "ends in a
// number").
func numeric(label string) bool {
	digits := "0123456789"
	if h, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = h, "0123456789abcdef"
	}
	return strings.Trim(label, digits) == ""
}

func short(name string) string {
	if len(name) > 80 {
		return name[:80] + "…"
	}
	return name
}
