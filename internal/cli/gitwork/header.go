package gitwork

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds of a bundle's header.
const (
	maxHeaderLine = 4 << 10
	maxBundleRefs = 2*maxModules + 2
	maxPrereqs    = 1000
)

// bundleHeader is the part of a bundle before the pack (gitformat-bundle).
type bundleHeader struct {
	format  string // of the object names: sha1 or sha256
	prereqs []string
	refs    map[string]string // name to commit
}

// readHeader reads a header of version 2 or 3, up to and with the empty line. It
// refuses capabilities other than object-format, among them filter, and a
// bundle-uri list, which is no bundle.
func readHeader(br *bufio.Reader) (bundleHeader, error) {
	h := bundleHeader{format: "sha1", refs: map[string]string{}}
	first, err := headerLine(br)
	if err != nil {
		return h, err
	}
	version := 2
	switch first {
	case "# v2 git bundle":
	case "# v3 git bundle":
		version = 3
	default:
		return h, errors.New("it is not a git bundle of version 2 or 3")
	}
	for stage := 0; ; {
		line, err := headerLine(br)
		if err != nil {
			return h, err
		}
		next := 2
		switch {
		case line == "":
			return h, nil
		case line[0] == '@':
			next = 0
		case line[0] == '-':
			next = 1
		}
		if next < stage {
			return h, errors.New("its header is out of order")
		}
		stage = next
		if err := h.add(line, version); err != nil {
			return h, err
		}
	}
}

// add takes a line of the header.
func (h *bundleHeader) add(line string, version int) error {
	switch line[0] {
	case '@':
		format, ok := strings.CutPrefix(line, "@object-format=")
		if !ok || version != 3 || format != "sha1" && format != "sha256" {
			return fmt.Errorf("its header asks for %q", line)
		}
		h.format = format
	case '-':
		name, _, _ := strings.Cut(line[1:], " ") // then a comment
		if !h.objectName(name) {
			return fmt.Errorf("its header has a bad prerequisite %q", line)
		}
		if h.prereqs = append(h.prereqs, name); len(h.prereqs) > maxPrereqs {
			return fmt.Errorf("its header has more than %d prerequisites", maxPrereqs)
		}
	default:
		commit, ref, ok := strings.Cut(line, " ")
		if !ok || !h.objectName(commit) || ref == "" {
			return fmt.Errorf("its header has a bad ref %q", line)
		}
		if _, twice := h.refs[ref]; twice {
			return fmt.Errorf("its header has the ref %q twice", ref)
		}
		if h.refs[ref] = commit; len(h.refs) > maxBundleRefs {
			return fmt.Errorf("its header has more than %d refs", maxBundleRefs)
		}
	}
	return nil
}

func (h *bundleHeader) objectName(s string) bool { return isObjectName(s, h.format) }

// isObjectName reports whether s is a full object name in small letters.
func isObjectName(s, format string) bool {
	want := 40
	if format == "sha256" {
		want = 64
	}
	return len(s) == want && strings.Trim(s, "0123456789abcdef") == ""
}

// headerLine reads one line of bounded length, without its end.
func headerLine(br *bufio.Reader) (string, error) {
	var line []byte
	for {
		c, err := br.ReadByte()
		if err == io.EOF {
			return "", errors.New("its header is cut off")
		}
		if err != nil {
			return "", err
		}
		if c == '\n' {
			return string(line), nil
		}
		if line = append(line, c); len(line) > maxHeaderLine {
			return "", errors.New("its header has a line that is too long")
		}
	}
}
