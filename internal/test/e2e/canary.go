package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Canary is a value that must not be found anywhere.
type Canary string

// forms returns the spellings of a canary that a search looks for. In base64, it may be
// within a longer text.
func (c Canary) forms() map[string]string {
	forms := map[string]string{
		"plain": string(c), "query": url.QueryEscape(string(c)), "path": url.PathEscape(string(c)),
		"hex": hex.EncodeToString([]byte(c)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(c))),
	}
	for shift := range 3 {
		data := append(make([]byte, shift), c...)
		from, to := (shift*8+5)/6, len(data)*8/6 // the characters that depend only on the canary
		forms[fmt.Sprintf("base64, %d", shift)] = base64.RawStdEncoding.EncodeToString(data)[from:to]
		forms[fmt.Sprintf("base64 of URLs, %d", shift)] = base64.RawURLEncoding.EncodeToString(data)[from:to]
	}
	return forms
}

// In returns the canary's spellings that are in data.
func (c Canary) In(data []byte) (found []string) {
	for name, form := range c.forms() {
		if bytes.Contains(data, []byte(form)) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}

// InFiles returns the files of a folder that have the canary. It leaves out the folders
// named in but.
func (c Canary) InFiles(dir string, but ...string) (found []string, err error) {
	err = filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && filepath.Dir(name) == dir && slices.Contains(but, d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if forms := c.In(text); forms != nil {
			found = append(found, fmt.Sprintf("%s (%s)", name, strings.Join(forms, "; ")))
		}
		return err
	})
	return found, err
}

// InProcesses returns the processes of the machine that have the canary in their arguments,
// or in their environment.
func (c Canary) InProcesses() (found []string, looked int) {
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ"} {
		names, _ := filepath.Glob(pattern) // the pattern is right
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				continue // it has ended
			}
			looked++
			if c.In(text) != nil {
				found = append(found, name)
			}
		}
	}
	return found, looked
}
