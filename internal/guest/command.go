package guest

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/guest/users"
	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/boot"
)

// command is what a caller asks to be run (protocol section 3.1).
type command struct {
	path    string // as asked for: a name to look up, or a path
	argv    []string
	env     []string
	dir     string
	user    users.User
	tty     bool
	stdin   bool
	rows    uint16
	cols    uint16
	maxRun  time.Duration // on its own after the last client left; 0: for ever
	timeout time.Duration // of running time; 0: none
	grace   time.Duration // between TERM and force

	stop syscall.Signal // in place of TERM, to the main process alone; 0: TERM
}

// goBin is the folder of Go's own installation, if there is one.
const goBin = "/usr/local/go/bin"

// commands reads what callers ask to be run.
type commands struct {
	users   *users.Database
	user    string                   // whose commands, unless a call says otherwise
	workdir string                   // where they start
	dir     string                   // where the sprite's file of variables is; "": nowhere
	given   []string                 // what the sprite's image has for all of them
	env     func() map[string]string // what the sprite was created with
	file    environmentFile
}

// parse reads a command from a query.
func (cs *commands) parse(q url.Values) (*command, error) {
	c := &command{argv: append(q["cmd"], q["cmd[]"]...), path: q.Get("path")}
	if len(c.argv) == 0 {
		if c.path == "" {
			return nil, wire.BadRequest("cmd is missing: name the program to run.")
		}
		c.argv = []string{c.path}
	}
	if c.path == "" {
		c.path = c.argv[0]
	}
	if err := c.parseOptions(q); err != nil {
		return nil, err
	}
	name := q.Get("user")
	if name == "" {
		name = cs.user
	}
	var ok bool
	if c.user, ok = cs.users.Lookup(name); !ok {
		return nil, wire.BadRequest("There is no user %q here.", name)
	}
	if c.dir = q.Get("dir"); c.dir == "" {
		c.dir = cs.workdir
	} else if !filepath.IsAbs(c.dir) {
		c.dir = filepath.Join(cs.workdir, c.dir)
	}
	for _, text := range append([]string{c.path, c.dir}, c.argv...) {
		if strings.ContainsRune(text, 0) {
			return nil, wire.BadRequest("A NUL can't be part of a command.")
		}
	}
	return c, cs.environment(c, q["env"])
}

func (c *command) parseOptions(q url.Values) error {
	var err error
	if c.tty, err = wire.Boolean(q, "tty", false); err != nil {
		return err
	}
	if c.stdin, err = wire.Boolean(q, "stdin", c.tty); err != nil {
		return err
	}
	if c.rows, err = size(q, "rows", 24); err != nil {
		return err
	}
	if c.cols, err = size(q, "cols", 80); err != nil {
		return err
	}
	maxRun := 10 * time.Second
	if c.tty {
		maxRun = 0
	}
	if c.maxRun, err = wire.Duration(q, "max_run_after_disconnect", maxRun); err != nil {
		return err
	}
	if c.timeout, err = wire.Duration(q, "timeout", 0); err != nil {
		return err
	}
	c.grace, err = wire.Duration(q, "grace", 10*time.Second)
	return err
}

func size(q url.Values, key string, missing uint16) (uint16, error) {
	text := q.Get(key)
	if text == "" || text == "0" {
		return missing, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, wire.BadRequest("%s must be a number of characters, not %q.", key, text)
	}
	return uint16(n), nil
}

// environment sets the command's variables. Later ones override earlier ones: a login's, the
// image's, those that the sprite was created with, those in the sprite's file, the caller's.
func (cs *commands) environment(c *command, given []string) error {
	own := boot.BinDir + ":" + filepath.Join(c.user.Home, ".local/bin")
	path := own
	if _, err := os.Stat(goBin); err == nil {
		path += ":" + goBin
	}
	term := "dumb"
	if c.tty {
		term = "xterm-256color"
	}
	env := []string{
		"PATH=" + path + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + c.user.Home,
		"USER=" + c.user.Name,
		"LOGNAME=" + c.user.Name,
		"TERM=" + term,
	}
	if c.user.Shell != "" {
		env = append(env, "SHELL="+c.user.Shell)
	}
	at := make(map[string]int, len(env)+len(cs.env())+len(given))
	for i, pair := range env {
		key, _, _ := strings.Cut(pair, "=")
		at[key] = i
	}
	set := func(key, pair string) {
		if i, ok := at[key]; ok {
			env[i] = pair
		} else {
			at[key] = len(env)
			env = append(env, pair)
		}
	}
	for _, pair := range cs.given {
		switch key, value, _ := strings.Cut(pair, "="); {
		case key == "TERM" && c.tty: // it is known which one
		case key == "PATH":
			set(key, "PATH="+own+":"+value)
		default:
			set(key, pair)
		}
	}
	for key, value := range cs.env() {
		set(key, key+"="+value)
	}
	for key, value := range cs.file.read(cs.dir) {
		set(key, key+"="+value)
	}
	for _, pair := range given {
		key, _, ok := strings.Cut(pair, "=")
		if !ok || key == "" || strings.ContainsRune(pair, 0) {
			return wire.BadRequest("env must be KEY=VALUE, not %q.", pair)
		}
		set(key, pair)
	}
	if !slices.ContainsFunc(localeVariables, func(key string) bool { _, ok := at[key]; return ok }) {
		env = append(env, "LC_CTYPE=C.UTF-8")
	}
	c.env = env
	return nil
}

// localeVariables each set the character encoding. If a command has none of them, it gets
// UTF-8 by LC_CTYPE. LANG would do the same, but each program would read a dozen files for it
// at its start, which say the same as C. Reading them is a fifth of the time that cat takes to
// start.
var localeVariables = []string{"LANG", "LC_ALL", "LC_CTYPE"}

// find looks the command's program up as a shell would: a name in PATH, a path
// below the working directory.
func (c *command) find() (string, error) {
	if strings.Contains(c.path, "/") {
		if filepath.IsAbs(c.path) {
			return c.path, nil
		}
		return filepath.Join(c.dir, c.path), nil
	}
	if c.path == "" {
		return "", syscall.ENOENT
	}
	var search string
	for _, pair := range c.env {
		if value, ok := strings.CutPrefix(pair, "PATH="); ok {
			search = value
		}
	}
	found := error(syscall.ENOENT)
	for _, dir := range filepath.SplitList(search) {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(c.dir, dir)
		}
		full := dir + "/" + c.path
		var st syscall.Stat_t
		if err := syscall.Stat(full, &st); err != nil {
			found = missing(found, err)
			continue
		}
		if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
			continue
		}
		if st.Mode&0o111 != 0 {
			return full, nil
		}
		found = missing(syscall.EACCES, found)
	}
	return "", found
}

// lookupFaults are the errors of a look-up that do not say whether there is a program.
var lookupFaults = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO}

// missing returns why no program was found, after the look-up in one more folder failed. An
// error that prevented the look-up replaces the reason so far.
func missing(so, err error) error {
	if slices.ContainsFunc(lookupFaults, func(e syscall.Errno) bool { return errors.Is(err, e) }) {
		return err
	}
	return so
}

// maxShown is how much of a command line is shown in lists.
const maxShown = 4096

// String is the command line, for lists.
func (c *command) String() string {
	text := strings.Join(append([]string{c.path}, c.argv[1:]...), " ")
	if len(text) > maxShown {
		text = strings.ToValidUTF8(text[:maxShown], "") + "…"
	}
	return text
}
