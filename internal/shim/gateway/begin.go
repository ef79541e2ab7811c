package gateway

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// With name rules, a connection may begin as TLS, as HTTP, or as one of the protocols of
// this file. None of these protocols names a host that a server would route by. Anything
// else is refused: some server may parse it as a request for another host. SMTP, IMAP,
// FTP, MySQL and their like need no shape: their servers speak first.

// kind says what the sandbox's bytes are, as far as they have come.
type kind int

const (
	unknown     kind = iota // more bytes are needed
	doubtful                // nothing that is known
	opaque                  // all that follows may pass
	stage                   // step.n bytes may pass; step.next reads on
	tlsHello                // a TLS handshake, whose first message is complete
	httpRequest             // HTTP
)

// step is a kind, and what follows a stage.
type step struct {
	kind kind
	n    int
	next grammar
}

// A grammar reads the bytes that the sandbox sent and that have not passed yet. More
// bytes never change a decision. It is unknown for maxHello bytes at most.
type grammar func(b []byte) step

var (
	more = step{kind: unknown}
	none = step{kind: doubtful}
	free = step{kind: opaque}
)

// shapes are the other protocols whose clients speak first.
var shapes = []grammar{sshLine, postgres, mongo, redis, amqp, mqtt}

// begin is the grammar of a client that speaks first.
func begin(b []byte) step { return first(b, append([]grammar{hello, request}, shapes...)) }

// greeted is the grammar of a client whose server spoke first, before the client sent
// anything. No server of HTTP/1 does that. TLS may follow at any time (see watch).
func greeted(b []byte) step {
	if st := first(b, []grammar{request, sshLine}); st.kind != doubtful {
		return st
	}
	return free
}

// first returns the step of the first grammar that does not rule the bytes out. A later
// grammar is asked only if all before it rule them out. Otherwise the answer would
// depend on how the bytes are split into pieces.
func first(b []byte, grammars []grammar) step {
	if len(b) == 0 {
		return more
	}
	for _, g := range grammars {
		if st := g(b); st.kind != doubtful {
			return st
		}
	}
	return none
}

// hello is a TLS handshake.
func hello(b []byte) step {
	switch {
	case !isHandshake(b):
		return none
	case len(b) > maxHello || isWhole(b):
		return step{kind: tlsHello}
	}
	return more
}

// isHandshake reports whether the bytes begin a TLS record of a handshake, or may.
func isHandshake(b []byte) bool {
	const handshake, major = 22, 3
	return b[0] == handshake && (len(b) == 1 || b[1] == major)
}

// isWhole reports whether a handshake's first message is there, in whatever records
// it comes; or that it can't be one.
func isWhole(head []byte) bool {
	const recordHeader, messageHeader = 5, 4
	var first [messageHeader]byte
	length := 0 // of the message, as far as it is there
	for len(head) >= recordHeader {
		if !isHandshake(head) {
			return true
		}
		n := int(head[3])<<8 | int(head[4])
		piece := head[recordHeader:]
		have := min(n, len(piece))
		if length < messageHeader {
			copy(first[length:], piece[:have])
		}
		length += have
		if length >= messageHeader && length-messageHeader >= int(first[1])<<16|int(first[2])<<8|int(first[3]) {
			return true
		}
		if n == 0 || n > len(piece) {
			return n == 0
		}
		head = piece[n:]
	}
	return len(head) > 1 && !isHandshake(head)
}

// request is an HTTP request. The gateway's own server refuses odd requests: this
// grammar only must not miss a request. It looks at no more bytes than it would wait
// for.
func request(b []byte) step {
	b = b[:min(len(b), maxFirstLine+1)]
	text := bytes.TrimLeft(b, "\r\n") // servers skip these before a request
	if len(text) == 0 {
		if len(b) > maxFirstLine {
			return step{kind: httpRequest} // which is refused as such
		}
		return more
	}
	line, _, ended := bytes.Cut(text, []byte("\n"))
	method, rest, _ := bytes.Cut(line, []byte(" "))
	switch {
	case len(method) == 0 || bytes.ContainsFunc(method, notToken) || bytes.ContainsFunc(line, notText):
		return none
	case !ended && len(b) > maxFirstLine:
		return step{kind: httpRequest} // which is refused as such
	case !ended:
		return more
	case bytes.Contains(rest, []byte("HTTP/")) || len(rest) > 0 && slices.Contains(methods, string(method)):
		return step{kind: httpRequest}
	}
	return none
}

// methods are the methods that show an HTTP request if it does not name its version.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE", "PRI"}

// notToken reports whether a sign is in no method, and notText whether it is in no
// request line.
func notToken(c rune) bool {
	return c <= ' ' || c >= 0x7f || bytes.ContainsRune([]byte(`"(),/:;<=>?@[\]{}`), c)
}

func notText(c rune) bool { return c < ' ' && c != '\t' && c != '\r' }

// want compares b with a text that it must begin with, as far as it goes.
func want(b []byte, text string) kind {
	n := min(len(b), len(text))
	switch {
	case string(b[:n]) != text[:n]:
		return doubtful
	case n < len(text):
		return unknown
	}
	return opaque
}

// sshLine is the line that an SSH client begins with (RFC 4253, 4.2). Only that line
// passes: the first packet after it must be a key exchange.
func sshLine(b []byte) step {
	const proto, longest = "SSH-2.0-", 255
	if k := want(b, proto); k != opaque {
		return step{kind: k}
	}
	end := bytes.IndexByte(b, '\n')
	line := b[len(proto):]
	if end >= 0 {
		line = b[len(proto):end]
	}
	line = bytes.TrimSuffix(line, []byte("\r"))
	switch {
	case bytes.ContainsFunc(line, func(c rune) bool { return c < ' ' || c >= 0x7f || c == '/' }):
		return none
	case end < 0 && len(b) < longest:
		return more
	case end < 0 || end >= longest || len(line) == 0 || line[0] == ' ':
		return none
	}
	return step{kind: stage, n: end + 1, next: sshPacket}
}

// sshPacket is the packet of a key exchange (RFC 4253, 6 and 7.1).
func sshPacket(b []byte) step {
	const least, most, keyExchange = 4, 35000, 20
	switch {
	case len(b) > 0 && b[0] != 0 || len(b) > 1 && b[1] != 0:
		return none
	case len(b) < 6:
		return more
	}
	if n := binary.BigEndian.Uint32(b); n > most || b[4] < least || uint32(b[4]) >= n || b[5] != keyExchange {
		return none
	}
	return free
}

// postgres is the first message of a PostgreSQL client, without a type byte. It is a
// start, a cancellation, or a request for TLS. After the answer to the last, the client
// begins anew.
func postgres(b []byte) step {
	const cancel, wantTLS, wantGSS, major, longest = 80877102, 80877103, 80877104, 3, 10000
	switch {
	case len(b) > 0 && b[0] != 0 || len(b) > 1 && b[1] != 0:
		return none
	case len(b) < 8:
		return more
	}
	n, code := int(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint32(b[4:])
	switch {
	case code == wantTLS || code == wantGSS:
		if n != 8 {
			return none
		}
		return step{kind: stage, n: n, next: afterWish}
	case n <= 8 || n > longest || code != cancel && code>>16 != major:
		return none
	case len(b) < n:
		return more
	case code != cancel && !parameters(b[8:n]):
		return none
	}
	return free
}

// parameters reports whether these are pairs of a name and a value, and an end, each
// with a zero behind it.
func parameters(b []byte) bool {
	fields := bytes.Split(b, []byte{0})
	if n := len(fields); n < 4 || n%2 != 0 || len(fields[n-1])+len(fields[n-2]) > 0 {
		return false
	}
	for i := 0; i < len(fields)-2; i += 2 {
		if len(fields[i]) == 0 || bytes.ContainsFunc(fields[i], func(c rune) bool { return c != '_' && c != '.' && notToken(c) }) {
			return false
		}
	}
	return true
}

// afterWish is what follows the server's answer to a wish for TLS.
func afterWish(b []byte) step {
	if len(b) == 0 {
		return more
	}
	if st := hello(b); st.kind != doubtful {
		return st
	}
	return postgres(b)
}

// mongo is the first message of a MongoDB client: its header, all in little endian.
func mongo(b []byte) step {
	const header, opQuery, opMsg, longest = 16, 2004, 2013, 48 << 20
	switch {
	case len(b) > 3 && b[3] > longest>>24:
		return none
	case len(b) < header:
		return more
	}
	n, code := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[12:])
	if n <= header || n > longest || binary.LittleEndian.Uint32(b[8:]) != 0 || code != opQuery && code != opMsg {
		return none
	}
	return free
}

// redis is a command in RESP. It begins with the count of its words and the length of
// the first word, each in a line of its own.
func redis(b []byte) step {
	for _, sign := range []byte("*$") {
		if len(b) == 0 {
			return more
		}
		rest := bytes.TrimLeft(b[1:], "0123456789")
		if b[0] != sign || len(b)-len(rest) > 8 {
			return none
		}
		if len(b) == 1 {
			return more
		}
		if k := want(rest, "\r\n"); k != opaque || len(b)-len(rest) == 1 {
			if len(b)-len(rest) == 1 {
				k = doubtful
			}
			return step{kind: k}
		}
		b = rest[2:]
	}
	return free
}

// amqp is the header of AMQP 0-9-1 or 1.0. A header of 1.0 that asks for TLS is not
// accepted.
func amqp(b []byte) step {
	k := doubtful
	for _, header := range []string{"AMQP\x00\x00\x09\x01", "AMQP\x00\x01\x00\x00", "AMQP\x03\x01\x00\x00"} {
		switch want(b, header) {
		case opaque:
			return free
		case unknown:
			k = unknown
		}
	}
	return step{kind: k}
}

// mqtt is the CONNECT message of an MQTT client.
func mqtt(b []byte) step {
	const connect = 0x10
	if len(b) > 0 && b[0] != connect {
		return none
	}
	at := 1
	for ; at < len(b) && at < 5 && b[at]&0x80 != 0; at++ { // a length, 7 bits a byte
	}
	if at++; at > len(b) {
		return more
	}
	k := doubtful
	for _, version := range []string{"\x00\x04MQTT\x04", "\x00\x04MQTT\x05", "\x00\x06MQIsdp\x03"} {
		switch want(b[at:], version) {
		case opaque:
			return free
		case unknown:
			k = unknown
		}
	}
	return step{kind: k}
}
