// Package registries finds the package registries that the clients of this machine
// are configured for: npm, Go, pip, cargo and apt. It knows none of them by name.
package registries

import (
	"bufio"
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Finder finds the registries' hosts. The zero value is ready to use, from many
// goroutines.
type Finder struct {
	Root string // of the files that are read; empty: /

	mu    sync.Mutex
	hosts []string
	at    time.Time
}

const (
	fresh    = 5 * time.Minute
	askLimit = time.Minute // for a client to say what it is configured for; pip takes 12 s on a slow, loaded machine
	maxFile  = 1 << 20

	pipeLimit = 10 * time.Second // for the pipes, after the client has ended: what it has left may hold them
)

// Hosts lists the hosts, sorted. It leaves out hosts that it can't find out, and keeps an
// answer for some minutes.
func (f *Finder) Hosts(ctx context.Context) []string {
	ctx = context.WithoutCancel(ctx) // the answer is for those who ask later, too
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.at.IsZero() && time.Since(f.at) < fresh {
		return f.hosts
	}
	var urls []string
	var wg sync.WaitGroup
	found := make([][]string, len(clients))
	for i, client := range clients {
		wg.Go(func() { found[i] = client(ctx) })
	}
	wg.Wait()
	for _, list := range found {
		urls = append(urls, list...)
	}
	urls = append(urls, f.apt()...)
	urls = append(urls, f.cargo()...)
	f.hosts = hosts(urls)
	f.at = time.Now()
	return f.hosts
}

// clients say themselves what they are configured for.
var clients = []func(context.Context) []string{
	func(ctx context.Context) []string { return words(ask(ctx, "npm", "config", "get", "registry")) },
	func(ctx context.Context) []string { return words(ask(ctx, "go", "env", "GOPROXY", "GOSUMDB")) },
	func(ctx context.Context) []string { return pipIndexes(ask(ctx, "pip", "config", "list")) },
	func(context.Context) []string {
		return strings.Fields(os.Getenv("PIP_INDEX_URL") + " " + os.Getenv("PIP_EXTRA_INDEX_URL"))
	},
}

// ask runs a client, away from any project's own configuration, and returns what it says;
// empty: nothing, or it failed.
func ask(ctx context.Context, name string, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.WaitDelay = pipeLimit
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// words are the URLs in a list of Go's or npm's.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == '|' || r == '+' || r <= ' ' })
}

// pipIndexes are the URLs in pip's list of its settings, whose lines are such as
// global.extra-index-url='https://one.example/simple https://two.example/simple'.
func pipIndexes(settings string) (urls []string) {
	for line := range strings.Lines(settings) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch key[strings.LastIndexByte(key, '.')+1:] {
		case "index-url", "extra-index-url":
			value = strings.ReplaceAll(strings.Trim(value, `'"`), `\n`, " ") // Python's spelling of a string
			urls = append(urls, strings.Fields(value)...)
		}
	}
	return urls
}

// apt reads the sources of apt.
func (f *Finder) apt() (urls []string) {
	dir := filepath.Join("/", f.Root, "etc/apt")
	files, _ := filepath.Glob(filepath.Join(dir, "sources.list.d/*")) // the pattern is right
	for _, file := range append(files, filepath.Join(dir, "sources.list")) {
		eachLine(file, func(line string) {
			fields := strings.Fields(line)
			if len(fields) == 0 || fields[0] != "deb" && fields[0] != "deb-src" && fields[0] != "URIs:" {
				return
			}
			urls = append(urls, fields[1:]...)
		})
	}
	return urls
}

// cargo reads where cargo's registries are.
func (f *Finder) cargo() (urls []string) {
	home := os.Getenv("CARGO_HOME")
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return nil
		}
		home = filepath.Join(user, ".cargo")
	}
	for _, name := range []string{"config.toml", "config"} {
		eachLine(filepath.Join("/", f.Root, home, name), func(line string) {
			key, value, _ := strings.Cut(line, "=")
			switch strings.TrimSpace(key) {
			case "registry", "index":
				value, _, _ = strings.Cut(value, "#")
				urls = append(urls, strings.TrimPrefix(strings.Trim(strings.TrimSpace(value), `"'`), "sparse+"))
			}
		})
	}
	return urls
}

// eachLine calls f with each line of a file, except comments and empty lines. It ignores a
// file that it can't read, that is not a regular one, or that has more than maxFile bytes.
func eachLine(name string, f func(line string)) {
	file, err := os.Open(name)
	if err != nil {
		return
	}
	defer file.Close()
	if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() > maxFile {
		return
	}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && line[0] != '#' {
			f(line)
		}
	}
}

// hosts are those of the URLs among the words, and of words that are names, each
// once.
func hosts(words []string) []string {
	var out []string
	for _, w := range words {
		u, err := url.Parse(w)
		switch {
		case err != nil || u.Scheme == "file":
		case u.Scheme == "http" || u.Scheme == "https":
			if h := u.Hostname(); h != "" {
				out = append(out, strings.ToLower(h))
			}
		case u.Scheme == "" && strings.Contains(w, ".") && !strings.ContainsAny(w, "/=[]:"):
			out = append(out, strings.ToLower(w)) // such as Go's checksum database
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
