package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/shim/kernel"
)

// sandboxesElsewhere finds sandboxes of a data folder that run in another container or machine,
// and that nobody looks after. It reports false if there is none.
func sandboxesElsewhere(data string) (check, bool) {
	entries, err := os.ReadDir(filepath.Join(data, "run"))
	if err != nil {
		return check{}, false // the check of the data folder says why
	}
	hosts := map[string]int{}
	n := 0
	for _, e := range entries {
		dir := filepath.Join(data, "run", e.Name())
		place, err := kernel.Started(dir)
		if err != nil || !private.Elsewhere(place.Processes) || tended(dir) {
			continue
		}
		if lives, err := kernel.Lives(dir); err == nil && lives {
			n++
			hosts[cmp.Or(place.Host, "?")]++
		}
	}
	if n == 0 {
		return check{}, false
	}
	var names []string
	for host := range hosts {
		names = append(names, host)
	}
	slices.Sort(names)
	return check{"sandboxes", levelWarn,
		fmt.Sprintf("sandboxes of this data folder (%d) run in another container or machine (%s), where no server manages them: their sprites can't be used here", n, strings.Join(names, ", ")),
		"stop that container; or stop the server here (cove server stop), and type there, for each of these sprites: cove restart NAME"}, true
}

// tended reports whether a shim looks after the sandbox of a folder, even one in another
// container. The kernel's list of locks would not show that: it leaves out processes without a
// number here.
func tended(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "shim.lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// privileges says that a process may get no new privileges, if so: an ordinary user's server
// needs them, for the ids of its sprites.
func privileges(string) (check, bool) {
	if os.Geteuid() == 0 || statusField("/proc", "self", "NoNewPrivs") != "1" {
		return check{}, false
	}
	return check{"privileges", levelFail, "this process can't get new privileges (no_new_privs), so newuidmap, which gives an ordinary user's sprites their ids, has none",
		"start the container without --security-opt no-new-privileges (a unit: NoNewPrivileges=no), or run the server as root"}, true
}
