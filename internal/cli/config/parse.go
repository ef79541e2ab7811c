package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/pelletier/go-toml/v2"

	"github.com/cove-dev/cove/internal/lib/editdistance"
	"github.com/cove-dev/cove/internal/server/agents"
)

const (
	maxFile   = 256 << 10
	maxScript = 4 << 20
)

// A Problem is one error in a file of settings, or in another file beside them.
type Problem = agents.Problem

// Problems are all problems, in the order of the files.
type Problems = agents.Problems

// document is what a file says.
type document struct {
	values   map[Key]Value
	backends map[string]BackendServer
	trees    []Tree
}

// parser reads one file.
type parser struct {
	from   Source
	name   string
	agents []string
	lines  map[string]int // by key

	treeLines []int // of each [[pull.sync]]

	doc      document
	problems Problems
}

// parse reads a file's text. agents are those that files define.
func parse(from Source, name string, data []byte, agents []string) (document, Problems) {
	p := &parser{from: from, name: name, agents: agents, lines: map[string]int{}, doc: document{values: map[Key]Value{}, backends: map[string]BackendServer{}}}
	var all map[string]any
	if err := toml.Unmarshal(data, &all); err != nil {
		problem := Problem{File: name, Message: strings.TrimPrefix(err.Error(), "toml: ")}
		if e, ok := errors.AsType[*toml.DecodeError](err); ok {
			problem.Line, _ = e.Position()
			problem.Key = strings.Join(e.Key(), ".")
		}
		return p.doc, Problems{problem}
	}
	p.find(data)
	p.table("", all)
	slices.SortStableFunc(p.problems, func(a, b Problem) int { return a.Line - b.Line })
	return p.doc, p.problems
}

// find notes the line of each key. It decodes into a document that has only tables, so
// that the decoder reports every key, with its place, as unknown.
func (p *parser) find(data []byte) {
	var tables struct {
		Setup    struct{}            `toml:"setup"`
		Pull     struct{}            `toml:"pull"`
		Push     struct{}            `toml:"push"`
		Sync     struct{}            `toml:"sync"`
		Backends map[string]struct{} `toml:"backends"`
	}
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	err := d.Decode(&tables)
	if e, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for i := range e.Errors {
			line, _ := e.Errors[i].Position()
			key := strings.Join(e.Errors[i].Key(), ".")
			p.lines[key] = line
			if key == treesKey {
				p.treeLines = append(p.treeLines, line)
			}
		}
	} else if e, ok := errors.AsType[*toml.DecodeError](err); ok { // something else where a table should be
		line, _ := e.Position()
		p.lines[strings.Join(e.Key(), ".")] = line
	}
}

// line is where a key stands. In an inline table only the key's last part is known.
func (p *parser) line(key string) int {
	if n, ok := p.lines[key]; ok {
		return n
	}
	return p.lines[key[strings.LastIndexByte(key, '.')+1:]]
}

func (p *parser) wrong(key, message, hint string) {
	p.problems = append(p.problems, Problem{File: p.name, Line: p.line(key), Key: key, Message: message, Hint: hint})
}

// sections are the tables of settings.
var sections = []string{"setup", "pull", "push", "sync", "backends"}

func (p *parser) table(prefix string, all map[string]any) {
	for name, value := range all {
		key := prefix + name
		inner, isTable := value.(map[string]any)
		switch {
		case prefix == "" && slices.Contains(sections, name) && !isTable:
			p.wrong(key, "it must be a table", "write ["+key+"] and its keys below")
		case key == "backends":
			p.backends(inner)
		case key == treesKey:
			p.trees(value)
		case prefix == "" && slices.Contains(sections, name):
			p.table(key+".", inner)
		default:
			p.value(Key(key), value)
		}
	}
}

func (p *parser) value(key Key, value any) {
	set, ok := find(key)
	if !ok {
		p.unknown(string(key))
		return
	}
	set = set.among(p.agents)
	if p.from == FromRepository && set.personal != "" {
		p.wrong(string(key), "a repository may not set it: "+set.personal, "set it in your own file; cove config show says where that is")
		return
	}
	parts, err := set.texts(value)
	for _, part := range parts {
		if err == nil {
			err = set.check(part)
		}
	}
	if err != nil {
		p.wrong(string(key), err.Error(), nearest(fmt.Sprint(value), set.choices))
		return
	}
	v := Value{From: p.from, File: p.name, Line: p.line(string(key))}
	if set.kind.list() {
		v.List = parts
	} else {
		v.Text = parts[0]
	}
	for _, part := range parts {
		if p.from != FromRepository || set.refuse == nil {
			break
		}
		if why := set.refuse(part); why != "" {
			p.wrong(string(key), fmt.Sprintf("a repository may not set it to %s: %s", part, why), "set it in your own file; cove config show says where that is")
			return
		}
	}
	p.doc.values[key] = v
}

// texts are the values of a setting, each as a flag would have it.
func (s setting) texts(value any) ([]string, error) {
	switch s.kind {
	case count:
		if n, ok := value.(int64); ok {
			return []string{strconv.FormatInt(n, 10)}, nil
		}
		return nil, errors.New("it must be a number, without quotes")
	case boolean:
		if b, ok := value.(bool); ok {
			return []string{strconv.FormatBool(b)}, nil
		}
		return nil, errors.New("it must be true or false, without quotes")
	case folders, patterns:
		list, ok := value.([]any)
		texts := make([]string, len(list))
		for i, item := range list {
			text, isText := item.(string)
			texts[i] = text
			ok = ok && isText
		}
		if !ok {
			if s.kind == patterns {
				return nil, errors.New(`it must be a list, such as ["node_modules", "/dist"]`)
			}
			return nil, errors.New(`it must be a list, such as ["~/.cargo"]`)
		}
		return texts, nil
	}
	if text, ok := value.(string); ok {
		return []string{text}, nil
	}
	return nil, errors.New("it must be a text, in quotes")
}

// unknown tells of a key that there is not.
func (p *parser) unknown(key string) {
	var names []string
	for _, k := range Keys() {
		names = append(names, string(k))
	}
	hint := nearest(key, names)
	if hint == "" {
		hint = "list the keys: cove config show"
	}
	p.wrong(key, "there is no such key", hint)
}

var backendName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`) })

// backends reads the servers that the person names.
func (p *parser) backends(all map[string]any) {
	if p.from == FromRepository {
		p.wrong("backends", "a repository may not name servers: your work would go there", "name them in your own file; cove config show says where that is")
		return
	}
	for name, value := range all {
		key := "backends." + name
		table, ok := value.(map[string]any)
		if !ok || !backendName().MatchString(name) {
			p.wrong(key, "a backend must be a table, with a name of lower-case letters, digits and hyphens", "write [backends.NAME] and its url below")
			continue
		}
		p.doc.backends[name] = p.backend(name, key, table)
	}
}

func (p *parser) backend(name, key string, table map[string]any) BackendServer {
	b := BackendServer{Name: name}
	for field, value := range table {
		at := key + "." + field
		text, isText := value.(string)
		list, isList := value.([]any)
		switch {
		case field == "url" && isText:
			u, err := url.Parse(text)
			if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
				p.wrong(at, fmt.Sprintf("%q is not a server's address", text), "such as http://127.0.0.1:7878")
			}
			b.URL = strings.TrimRight(text, "/")
		case field == "token_file" && isText:
			if set := (setting{kind: folders}); set.check(text) != nil {
				p.wrong(at, set.check(text).Error(), "")
			}
			b.TokenFile = text
		case field == "token_command" && isList && len(list) > 0:
			for _, item := range list {
				b.TokenCommand = append(b.TokenCommand, fmt.Sprint(item))
			}
		case field == "url" || field == "token_file":
			p.wrong(at, "it must be a text, in quotes", "")
		case field == "token_command":
			p.wrong(at, "it must be a list: the command and its arguments", `such as ["pass", "show", "cove"]`)
		case field == "token":
			p.wrong(at, "a token does not belong in a settings file", "put it into a file of its own and give that as token_file; or give a command that prints it as token_command")
		default:
			p.wrong(at, "there is no such key", nearest(field, []string{"url", "token_file", "token_command"}))
		}
	}
	switch {
	case b.URL == "" && table["url"] == nil:
		p.wrong(key, "it has no url", "such as url = \"http://127.0.0.1:7878\"")
	case b.TokenFile != "" && b.TokenCommand != nil:
		p.wrong(key, "it has a token_file and a token_command", "leave one of them out")
	}
	return b
}

// nearest suggests which of the names was meant, by its last part alone, too; empty: none is near.
func nearest(given string, names []string) string {
	best, at := editdistance.Nearest(given, names)
	if len(names) > 3 {
		last := make([]string, len(names))
		for i, name := range names {
			last[i] = name[strings.LastIndex(name, ".")+1:]
		}
		if i, d := editdistance.Nearest(given, last); d < at {
			best = i
		}
	}
	if best < 0 {
		return ""
	}
	return "did you mean " + names[best] + "?"
}

// readPersonal reads a file of the person's, which may be a link to elsewhere.
func readPersonal(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, openFlags, 0)
	if err != nil {
		return nil, err
	}
	return readAll(f, limit)
}

// openFlags do not wait for somebody to write to a named pipe: it is refused.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK

// readOwn reads a file below .cove in a work tree. It reads no file elsewhere: a link in
// .cove could otherwise carry such a file into a sprite.
func readOwn(top, name string, limit int64) ([]byte, error) {
	info, err := os.Lstat(filepath.Join(top, Dir))
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a folder", Dir)
	}
	root, err := os.OpenRoot(filepath.Join(top, Dir))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, openFlags, 0)
	if err != nil {
		return nil, err
	}
	return readAll(f, limit)
}

func readAll(f *os.File, limit int64) ([]byte, error) {
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is not a file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it is longer than %d bytes", limit)
	}
	return data, err
}

// readError is why a file could not be read, without its name.
func readError(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}
