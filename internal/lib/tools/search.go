package tools

import (
	"bytes"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	maxChunk  = 4 << 20  // of a file that is in memory at once
	maxJoined = 32 << 20 // of one that is searched across lines
	maxShown  = 500      // bytes of one line that are returned
)

// A searcher looks through one file after the other. It belongs to one goroutine.
type searcher struct {
	needle        *needle
	count         bool // count matching lines, and return none
	first         bool // stop at the first
	before, after int  // lines of context
	limit         int  // matching lines of one file that are returned

	buf []byte

	// Of the current file.
	out       FileMatches
	line      int // number of the line at the position that is searched next
	emitted   int // up to where in buf lines were returned
	afterLeft int
	enough    bool
}

// skipped is the reason why a file was not searched.
type skipped int

const (
	searched skipped = iota
	skippedBinary
	skippedLarge
	skippedUnreadable
)

// file searches a regular file.
func (s *searcher) file(path string) (FileMatches, skipped) {
	s.out, s.line, s.emitted, s.afterLeft, s.enough = FileMatches{}, 1, 0, 0, false
	fd, err := open(path)
	if err != nil {
		return s.out, skippedUnreadable
	}
	defer unix.Close(fd)
	if s.buf == nil {
		s.buf = make([]byte, 64<<10)
	}
	most := maxChunk
	if !s.needle.lines {
		most = maxJoined
	}
	held, from, begun := 0, 0, false // held bytes of buf are the file's, those from on are to be searched
	for !s.enough {
		n, err := fill(fd, s.buf[held:])
		held += n
		if !begun {
			if begun = true; isBinary(s.buf[:held]) {
				return s.out, skippedBinary
			}
		}
		if err == io.EOF {
			s.search(s.buf[:held], from, held)
			break
		}
		if err != nil {
			return s.out, skippedUnreadable
		}
		if len(s.buf) < most {
			s.buf = append(make([]byte, 0, min(4*len(s.buf), most)), s.buf[:held]...)
			s.buf = s.buf[:cap(s.buf)]
			continue
		}
		if !s.needle.lines {
			return FileMatches{}, skippedLarge
		}
		held, from = s.chunk(held, from)
	}
	return s.out, searched
}

// chunk searches the whole lines of a full buffer, and makes room.
func (s *searcher) chunk(held, from int) (int, int) {
	to := bytes.LastIndexByte(s.buf[:held], '\n') + 1
	if to <= from {
		to = held // one line longer than the buffer: searched in pieces
	}
	s.search(s.buf[:held], from, to)
	keep := to
	for range s.before { // for the context of what comes
		if keep <= s.emitted || keep == 0 {
			break
		}
		keep = bytes.LastIndexByte(s.buf[:keep-1], '\n') + 1
	}
	if keep = max(keep, s.emitted); held-keep > len(s.buf)/2 {
		keep = to
	}
	copy(s.buf, s.buf[keep:held])
	s.emitted = max(0, s.emitted-keep)
	return held - keep, to - keep
}

// open opens a file for reading only. It does not hang if the file has become a pipe since it
// was listed.
func open(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// fill reads until buf is full, or the end: io.EOF.
func fill(fd int, buf []byte) (int, error) {
	have := 0
	for have < len(buf) {
		n, err := unix.Read(fd, buf[have:])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return have, os.NewSyscallError("read", err)
		case n == 0:
			return have, io.EOF
		default:
			have += n
		}
	}
	return have, nil
}

// search looks through data[from:to], which are whole lines. The data before was searched
// already.
func (s *searcher) search(data []byte, from, to int) {
	for pos := from; pos < to && !s.enough; {
		begin, end := s.next(data[:to], pos)
		if begin < 0 {
			s.context(data[:to], pos, to)
			s.line += bytes.Count(data[pos:to], []byte("\n"))
			return
		}
		s.match(data[:to], pos, begin, end)
		s.line += bytes.Count(data[pos:end], []byte("\n"))
		pos = end
	}
}

// next finds the lines of the next match; begin < 0: there is none.
func (s *searcher) next(data []byte, pos int) (begin, end int) {
	if !s.needle.lines {
		at := s.needle.re.FindIndex(data[pos:])
		if at == nil {
			return -1, 0
		}
		begin = bytes.LastIndexByte(data[:pos+at[0]], '\n') + 1
		return max(begin, pos), lineEnd(data, max(pos+at[0], pos+at[1]-1))
	}
	for pos < len(data) {
		at := 0
		if len(s.needle.literal) > 0 {
			at = bytes.Index(data[pos:], s.needle.literal)
		} else if loc := s.needle.re.FindIndex(data[pos:]); loc != nil {
			at = min(loc[0], len(data)-pos-1)
		} else {
			at = -1
		}
		if at < 0 {
			return -1, 0
		}
		begin = max(bytes.LastIndexByte(data[:pos+at], '\n')+1, pos)
		end = lineEnd(data, pos+at)
		if s.needle.re.Match(bytes.TrimSuffix(data[begin:end], []byte("\n"))) {
			return begin, end
		}
		pos = end
	}
	return -1, 0
}

// lineEnd is where the line that at is on ends, behind its line end.
func lineEnd(data []byte, at int) int {
	if at >= len(data) {
		return len(data)
	}
	if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(data)
}

// match takes the lines from begin to end, which match, with their context. The
// line at pos has the number s.line.
func (s *searcher) match(data []byte, pos, begin, end int) {
	s.out.Count++
	if s.first || s.count {
		s.enough = s.first
		return
	}
	s.context(data, pos, begin)
	start := begin
	for range s.before {
		if start <= s.emitted {
			break
		}
		start = bytes.LastIndexByte(data[:start-1], '\n') + 1
	}
	start = max(start, s.emitted)
	number := s.line + bytes.Count(data[pos:begin], []byte("\n")) - bytes.Count(data[start:begin], []byte("\n"))
	s.emit(data, start, begin, number, false)
	s.emit(data, begin, end, number+bytes.Count(data[start:begin], []byte("\n")), true)
	s.afterLeft = s.after
	s.enough = s.out.Count >= s.limit
}

// context takes the lines after a match, those from pos to end at most.
func (s *searcher) context(data []byte, pos, end int) {
	number := s.line
	for ; s.afterLeft > 0 && pos < end; s.afterLeft-- {
		next := min(lineEnd(data, pos), end)
		s.emit(data, pos, next, number, false)
		pos = next
		number++
	}
}

// emit takes the lines of data[begin:end].
func (s *searcher) emit(data []byte, begin, end, number int, match bool) {
	for begin < end {
		next := lineEnd(data[:end], begin)
		text, short := s.shorten(trimEnd(data[begin:next]), match)
		s.out.Lines = append(s.out.Lines, Line{Number: number, Text: valid(text), Match: match, Cut: short})
		begin = next
		number++
	}
	s.emitted = max(s.emitted, end)
}

// shorten cuts a long line to the part with the match.
func (s *searcher) shorten(text []byte, match bool) ([]byte, bool) {
	if len(text) <= maxShown {
		return text, false
	}
	if match {
		if at := s.needle.re.FindIndex(text); at != nil && at[1] > maxShown {
			from := max(0, at[0]-maxShown/4)
			text = cutFront(text, len(text)-from)
		}
	}
	return cut(text, maxShown), true
}
