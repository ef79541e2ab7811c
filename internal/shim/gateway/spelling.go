package gateway

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"strconv"
	"strings"
)

// notation is how a text may be written.
type notation int

const (
	plainText notation = iota // escaped anyhow, in wide characters, in quoted-printable
	inBase64                  // of either alphabet, escaped, in lines
	inBase32                  // in lines
	inHex                     // with something between the bytes
	inList                    // of decimal numbers
)

// leastForm is the least length of an encoded form: a shorter one may be something else.
const leastForm = 8

type form struct {
	kind notation
	text string
}

// spellingsOf are the forms of a secret from which every spelling that is redacted can be
// reached sign by sign. Hashes, the reverse, and parts that an upstream cuts are not
// among them.
func spellingsOf(secret string) []form {
	all := []form{{plainText, secret}}
	add := func(k notation, text string) {
		if len(text) >= leastForm {
			all = append(all, form{k, text})
		}
	}
	add(inHex, hex.EncodeToString([]byte(secret)))
	var list []string
	for i := range len(secret) {
		list = append(list, strconv.Itoa(int(secret[i])))
	}
	add(inList, strings.Join(list, ","))
	// Something else may come before, in the same group of three or five bytes.
	for before := range 3 {
		text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00", before) + secret))
		add(inBase64, text[(before*8+5)/6:(before+len(secret))*8/6])
	}
	for before := range 5 {
		text := base32.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00", before) + secret))
		add(inBase32, text[(before*8+4)/5:(before+len(secret))*8/5])
	}
	return all
}

// pattern is a text to be found.
type pattern struct {
	kind   notation
	want   []byte
	fold   bool
	hold   int       // after so many signs, the text that follows is held back
	enough int       // after so many signs, all is redacted
	stop   [256]bool // signs that do not occur in it, and end a guess
	plain  [256]bool // signs that stand for themselves, begin no escape, and are not between signs
}

func newPattern(k notation, text string) *pattern {
	n := len(text)
	few := map[notation]int{inHex: 6, inList: 8}[k] // a byte has several signs
	p := &pattern{kind: k, want: []byte(text), fold: k != inBase64 && n >= leastForm, hold: min(max(few, 4), max(n/4, 1)), enough: (3*n + 3) / 4}
	if n < leastForm {
		p.enough = n // a part may well be something else
	}
	between := map[notation]string{inBase64: "\r\n", inBase32: "\r\n", inHex: separators, inList: separators}[k]
	for c := range 256 {
		b := byte(c)
		p.stop[c] = (b <= ' ' && (b != 0 || k != plainText) || strings.IndexByte("\"'<>{}[](),;", b) >= 0) && bytes.IndexByte(p.want, b) < 0 && strings.IndexByte(between, b) < 0
		p.plain[c] = b != 0 && strings.IndexByte(introducers+between, b) < 0
	}
	return p
}

const (
	introducers = "%=\\&'\""        // of escapes
	separators  = " ,:;-_\t\r\n"    // between numbers
	most        = 16                // separators in a row
	depth       = 2                 // of escapes in escapes
	longest     = 12 * depth * most // bytes of a sign, and what is before it; more are not looked at
)

// accepts reports whether the sign at i may be c.
func (p *pattern) accepts(i int, c byte) bool {
	w := p.want[i]
	switch {
	case c == w:
		return true
	case p.fold && (w|0x20 >= 'a' && w|0x20 <= 'z'):
		return c^0x20 == w
	case p.kind == inBase64:
		return c == '-' && w == '+' || c == '+' && w == '-' || c == '_' && w == '/' || c == '/' && w == '_'
	case p.kind == plainText:
		return c == '+' && w == ' '
	}
	return p.kind == inList && w == ',' && strings.IndexByte(separators, c) >= 0
}

// begins calls add with every two bytes with which it may begin.
func (p *pattern) begins(add func(a, b byte)) {
	each := func(a byte, next func(b byte) bool) {
		for b := range 256 {
			if next(byte(b)) {
				add(a, byte(b))
			}
		}
	}
	among := func(set string) func(byte) bool { return func(b byte) bool { return strings.IndexByte(set, b) >= 0 } }
	for c := range 256 {
		b := byte(c)
		if !p.accepts(0, b) {
			continue
		}
		each(b, func(next byte) bool { return p.escaped() && !p.plain[next] || len(p.want) == 1 || p.accepts(1, next) })
		if !p.escaped() {
			continue
		}
		nibble := strconv.FormatInt(int64(b>>4), 16)
		both := nibble + strings.ToUpper(nibble)
		each('%', among(both+"235uU")) // the last ones are escapes of signs that begin an escape
		each('=', among(both+"235"))
		each('\\', among("\\%&=xuXU01234567"+both+string(rune(b&0x7f))))
		each('&', among("#aA"))
		for name, is := range entities {
			if is == b {
				add('&', name[0])
			}
		}
	}
}

// escaped reports whether its signs may be written as escapes.
func (p *pattern) escaped() bool { return p.kind == plainText || p.kind == inBase64 }

// end is what follows data.
type end int

const (
	early   end = iota // more may follow: even the first sign of a secret waits for it
	late               // more may follow: the first few signs do not wait for it
	finally            // nothing follows
)

// match looks for the text at the beginning of data. It returns how much is redacted, and
// whether that can change with what follows.
func (p *pattern) match(data []byte, end end) (n int, open bool) {
	ends := end == finally
	o, i := 0, 0
	for i < p.hold && o < len(data) && p.plain[data[o]] { // nearly all end here
		if !p.accepts(i, data[o]) {
			return 0, false
		}
		o, i = o+1, i+1
	}
	at := []int{o}     // where the next sign may begin
	held, sure := o, o // where the signs hold and enough end
	for more := false; i < len(p.want); i++ {
		var next []int
		if next, more = p.step(at, i, data); more {
			open = true
		}
		if len(next) == 0 {
			break
		}
		at = next
		if i+1 == p.hold {
			held = at[len(at)-1]
		}
		if i+1 == p.enough {
			sure = at[len(at)-1]
		}
	}
	switch {
	case i < p.hold:
		return 0, end == early && open && i > 0
	case i < p.enough && (ends || len(data)-held > len(p.want)*longest):
		return 0, false
	case i < p.enough:
		_, unsure := p.skip(data, held, p.hold)
		return 0, unsure || open
	}
	n, unsure := p.skip(data, sure, p.enough)
	if i == len(p.want) {
		n = max(n, at[len(at)-1])
		open = false
	}
	return n, (unsure || open) && !ends
}

// step finds where the sign after that at i may begin, in order. More reports that data
// end before all is known.
func (p *pattern) step(at []int, i int, data []byte) (next []int, more bool) {
	if o := at[0]; len(at) == 1 && o < len(data) && p.plain[data[o]] {
		if !p.accepts(i, data[o]) {
			return nil, false
		}
		at[0]++
		return at, false
	}
	add := func(o int) {
		for k, n := range next {
			if n == o {
				return
			} else if n > o {
				next = append(next[:k], append([]int{o}, next[k:]...)...)
				return
			}
		}
		next = append(next, o)
	}
	read := func(o int) {
		var room [8]sign
		signs, short := p.signs(room[:0], data[o:])
		more = more || short
		for _, s := range signs {
			if p.accepts(i, s.b) {
				add(o + s.n)
			}
		}
	}
	for _, o := range at {
		read(o)
		if i == 0 {
			continue
		}
		n, short := p.between(data[o:], i)
		if more = more || short; n > 0 {
			read(o + n)
		}
	}
	return next, more
}

// skip passes over the signs from i on, whatever they are, up to one that does not occur.
// It returns where the signs end, and whether data end before that.
func (p *pattern) skip(data []byte, o, i int) (end int, open bool) {
	for ; i < len(p.want); i++ {
		if o < len(data) && p.stop[data[o]] {
			return o, false
		}
		n, short := p.between(data[o:], i)
		if short || o+n >= len(data) {
			return len(data), true
		}
		if p.stop[data[o+n]] {
			return o, false
		}
		if p.plain[data[o+n]] {
			o += n + 1
			continue
		}
		var room [16]sign
		signs, short := p.signs(room[:0], data[o+n:])
		if short {
			return len(data), true
		}
		most := 1
		for _, s := range signs {
			most = max(most, s.n)
		}
		o += n + most
	}
	return o, false
}

// between returns how much at the beginning of data may be between the signs, before that
// at i. More reports that it may go on where data end.
func (p *pattern) between(data []byte, i int) (n int, more bool) {
	if len(data) == 0 {
		return 0, true
	}
	if p.plain[data[0]] {
		return 0, false
	}
	run := func(set string, most int) {
		for ; most > 0 && n < len(data) && strings.IndexByte(set, data[n]) >= 0; most-- {
			n++
		}
		more = more || n == len(data)
	}
	switch p.kind {
	case inList: // the separator is a sign
	case inHex:
		if i%2 == 0 {
			run(separators, most)
			if bytes.HasPrefix(data[n:], []byte("0x")) {
				n += len("0x")
			} else if rest := string(data[n:]); rest == "" || rest == "0" { // it may go on as one
				more = true
			}
		}
	case plainText:
		for range 3 { // the other bytes of a wide character
			c, k, short := char(data[n:], depth)
			if short {
				return n, true
			}
			if c != 0 {
				break
			}
			n += k
		}
		if soft, short := softBreak(data[n:]); soft > 0 || short {
			return n + soft, short
		}
	default:
		if soft, short := softBreak(data); soft > 0 || short {
			return soft, short
		}
		for _, set := range []string{"\r", "\n"} {
			c, k, short := char(data[n:], depth)
			if short {
				return n, true
			}
			if strings.IndexByte(set, c) >= 0 {
				n += k
			}
		}
		if n > 0 {
			run(" \t", most)
		}
	}
	return n, more
}

// softBreak is the length of quoted-printable's soft line break, which is no part of the
// text.
func softBreak(data []byte) (n int, more bool) {
	for _, text := range []string{"=\n", "=\r\n"} {
		if bytes.HasPrefix(data, []byte(text)) {
			return len(text), false
		}
		more = more || len(data) > 0 && strings.HasPrefix(text, string(data))
	}
	return 0, more
}

// sign is what some bytes may stand for.
type sign struct {
	b byte
	n int
}

// signs appends the signs that the first bytes of data may stand for: themselves, and an
// escape. more reports that data end within a possible escape.
func (p *pattern) signs(out []sign, data []byte) (_ []sign, more bool) {
	if len(data) == 0 {
		return out, true
	}
	if p.kind == inList && strings.IndexByte(separators, data[0]) >= 0 {
		n := 1
		for n < min(len(data), most) && strings.IndexByte(separators, data[n]) >= 0 {
			n++
		}
		return append(out, sign{data[0], n}), n == len(data)
	}
	out = append(out, sign{data[0], 1})
	if p.plain[data[0]] || !p.escaped() {
		return out, false
	}
	for d := 1; d <= depth; d++ {
		var short bool
		out, short = escapes(out, data, d)
		more = more || short
	}
	return out, more
}

// char reads the sign that the first bytes of data stand for, with escapes in escapes up
// to depth. If there are several, it is the longest.
func char(data []byte, depth int) (b byte, n int, more bool) {
	if len(data) == 0 {
		return 0, 0, true
	}
	b, n = data[0], 1
	if depth == 0 || strings.IndexByte(introducers, b) < 0 {
		return b, n, false
	}
	var room [16]sign
	signs := room[:0]
	for d := 1; d <= depth; d++ {
		var short bool
		signs, short = escapes(signs, data, d)
		more = more || short
	}
	for _, s := range signs {
		if s.n > n {
			b, n = s.b, s.n
		}
	}
	return b, n, more
}

// reader reads signs, and resolves the escapes of the inner levels.
type reader struct {
	data  []byte
	at    int
	depth int
	short bool // the data have ended too early
}

// next is the next sign, or 0.
func (r *reader) next() byte {
	c, n, short := char(r.data[r.at:], r.depth)
	if short {
		r.short = true
		return 0
	}
	r.at += n
	return c
}

// number reads from least to most digits.
func (r *reader) number(base, least, most int) (value int, ok bool) {
	for n := 0; ; n++ {
		before := *r
		c := r.next()
		digit := strings.IndexByte("0123456789abcdef"[:base], c|0x20)
		if c < 'A' {
			digit = strings.IndexByte("0123456789"[:min(base, 10)], c)
		}
		if n == most || digit < 0 {
			if n < most && r.short {
				before.short = true
			}
			*r = before
			return value, n >= least && value >= 0
		}
		if value = value*base + digit; value > 0x10ffff {
			value = -1 << 30 // no sign
		}
	}
}

// escapes appends what an escape at the beginning of data may stand for.
func escapes(out []sign, data []byte, depth int) (_ []sign, more bool) {
	r := reader{data: data, depth: depth - 1}
	first := r.next()
	if r.short || strings.IndexByte(introducers, first) < 0 {
		return out, r.short
	}
	after := r
	try := func(read func() (int, bool)) {
		r = after
		if v, ok := read(); ok && v <= 0xff {
			out = append(out, sign{byte(v), r.at})
		}
		more = more || r.short
	}
	braced := func() (int, bool) {
		if r.next() != '{' {
			return 0, false
		}
		v, ok := r.number(16, 1, 8)
		return v, ok && r.next() == '}'
	}
	is := func(letter byte) bool { return r.next()|0x20 == letter }
	fixed := func(n int) func() (int, bool) { return func() (int, bool) { return r.number(16, n, n) } }
	lettered := func(letter byte, read func() (int, bool)) {
		try(func() (int, bool) {
			if !is(letter) {
				return 0, false
			}
			return read()
		})
	}
	switch first {
	case '\'', '"': // doubled
		try(func() (int, bool) { return int(first), r.next() == first })
	case '=':
		try(fixed(2))
	case '%':
		try(fixed(2))
		lettered('u', fixed(4))
	case '&':
		try(func() (int, bool) { return reference(&r) })
	case '\\':
		lettered('x', fixed(2))
		lettered('x', braced)
		lettered('u', fixed(4))
		lettered('u', fixed(8))
		lettered('u', braced)
		try(func() (int, bool) { return r.number(8, 1, 3) })
		try(func() (int, bool) { return r.number(8, 4, 4) })
		try(fixed(2))            // LDAP's
		try(func() (int, bool) { // CSS's
			v, ok := r.number(16, 1, 6)
			before := r
			if r.next() != ' ' {
				before.short = before.short || r.short
				r = before
			}
			return v, ok
		})
		try(func() (int, bool) {
			c := r.next()
			if k := strings.IndexByte("nrt0", c); k >= 0 {
				return int("\n\r\t\x00"[k]), !r.short
			}
			return int(c), c > ' ' && c < 0x7f && !(c|0x20 >= 'a' && c|0x20 <= 'z') && !(c >= '0' && c <= '9')
		})
	}
	return out, more
}

// reference reads the rest of one of HTML's.
func reference(r *reader) (int, bool) {
	before := *r
	if r.next() != '#' {
		*r = before
		name := ""
		for len(name) < 20 {
			c := r.next()
			if c == ';' {
				v, ok := entities[name]
				return int(v), ok
			}
			if !(c|0x20 >= 'a' && c|0x20 <= 'z') {
				return 0, false
			}
			name += string(rune(c))
		}
		return 0, false
	}
	before = *r
	base := 16
	if r.next()|0x20 != 'x' {
		base, *r = 10, before
	}
	v, ok := r.number(base, 1, 9)
	before = *r
	if r.next() != ';' { // browsers do without it
		before.short = before.short || r.short
		*r = before
	}
	return v, ok
}

// entities are HTML's names of ASCII signs.
var entities = map[string]byte{
	"Tab": '\t', "NewLine": '\n', "excl": '!', "quot": '"', "QUOT": '"', "num": '#', "dollar": '$', "percnt": '%', "amp": '&', "AMP": '&', "apos": '\'',
	"lpar": '(', "rpar": ')', "ast": '*', "midast": '*', "plus": '+', "comma": ',', "period": '.', "sol": '/', "colon": ':', "semi": ';',
	"lt": '<', "LT": '<', "equals": '=', "gt": '>', "GT": '>', "quest": '?', "commat": '@', "lsqb": '[', "lbrack": '[', "bsol": '\\', "rsqb": ']', "rbrack": ']',
	"Hat": '^', "lowbar": '_', "UnderBar": '_', "grave": '`', "DiacriticalGrave": '`', "lcub": '{', "lbrace": '{',
	"verbar": '|', "vert": '|', "VerticalLine": '|', "rcub": '}', "rbrace": '}',
}
