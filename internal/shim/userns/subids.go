package userns

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// MinIDs is how many subordinate ids a user needs: those of a sandbox's own users,
// nobody (65534) included.
const MinIDs = 65536

// Accounts are the files of a machine that say which accounts have which user and group
// ids.
type Accounts struct {
	Root string // "" means "/"; tests set it
}

// A NoAccountError says that a user id has no account.
type NoAccountError struct{ UID int }

func (e *NoAccountError) Error() string {
	return fmt.Sprintf("user id %d has no account (a line in /etc/passwd), and without one newuidmap gives it no subordinate ids; %s", e.UID, e.Fix())
}

// Fix says what to do about it.
func (e *NoAccountError) Fix() string {
	return fmt.Sprintf("as root, type: useradd --uid %d cove; in a container, run as root, or as a user that its image has", e.UID)
}

// Account returns the account of a user id. The environment does not count: USER may
// name another one.
func Account(uid int) (*user.User, error) {
	me, err := user.LookupId(strconv.Itoa(uid))
	if _, ok := errors.AsType[user.UnknownUserIdError](err); ok {
		return nil, &NoAccountError{uid}
	}
	if err != nil {
		return nil, fmt.Errorf("look up the account of user id %d: %w", uid, err)
	}
	return me, nil
}

// ids is a range of user or group ids.
type ids struct{ first, last int64 }

// grant is a line of subuid or subgid.
type grant struct {
	owner string // a name, or a number
	ids
}

// Free returns the first range of MinIDs ids that an account may be given as subordinate
// ids, the same for users and groups. No account has any of them in subuid, subgid,
// passwd or group, and login.defs permits them. If the account has enough ids of one
// kind, Free returns the same ids for the other kind, if they are free. name and id are
// the account's.
func (a Accounts) Free(name, id string) (first, last int64, err error) {
	users, err1 := a.grants("etc/subuid")
	groups, err2 := a.grants("etc/subgid")
	taken, err3 := a.accounts()
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, 0, fmt.Errorf("look for free subordinate ids: %w", err)
	}
	all := slices.Concat(users, groups)
	lowest, highest := a.limits()
	own := func(g grant) bool { return g.owner == name || g.owner == id }
	for _, g := range all {
		// The account has ids of one kind. No other account may have any of them.
		if own(g) && g.last-g.first+1 >= MinIDs && !slices.ContainsFunc(all, func(o grant) bool { return !own(o) && o.overlaps(g.ids) }) {
			return g.first, g.first + MinIDs - 1, nil
		}
	}
	for _, g := range all {
		taken = append(taken, g.ids)
	}
	slices.SortFunc(taken, func(a, b ids) int { return cmp.Compare(a.first, b.first) })
	at := lowest
	for _, t := range taken {
		if t.first-at >= MinIDs {
			break
		}
		at = max(at, t.last+1)
	}
	if at+MinIDs-1 > highest {
		return 0, 0, fmt.Errorf("look for free subordinate ids: from %d to %d, no %d in a row are free", lowest, highest, MinIDs)
	}
	return at, at + MinIDs - 1, nil
}

func (i ids) overlaps(o ids) bool { return i.first <= o.last && o.first <= i.last }

// lines calls fn with the fields of each line of a file; there may be none.
func (a Accounts) lines(name string, separator func(string) []string, fn func(field []string)) error {
	f, err := os.Open(filepath.Join(cmp.Or(a.Root, "/"), name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fn(separator(strings.TrimSpace(lines.Text())))
	}
	return lines.Err()
}

func colons(line string) []string { return strings.Split(line, ":") }

// grants reads subuid or subgid.
func (a Accounts) grants(name string) (grants []grant, err error) {
	err = a.lines(name, colons, func(field []string) {
		if len(field) != 3 {
			return
		}
		first, err1 := strconv.ParseInt(field[1], 10, 64)
		n, err2 := strconv.ParseInt(field[2], 10, 64)
		if err1 == nil && err2 == nil && first >= 0 && n > 0 && n <= 1<<32 {
			grants = append(grants, grant{field[0], ids{first, first + n - 1}})
		}
	})
	return grants, err
}

// accounts are the ids of the machine's own users and groups.
func (a Accounts) accounts() (taken []ids, err error) {
	for _, name := range []string{"etc/passwd", "etc/group"} {
		err := a.lines(name, colons, func(field []string) {
			if len(field) < 4 {
				return
			}
			for _, text := range field[2:4] { // of a group the second are its members
				if id, err := strconv.ParseInt(text, 10, 64); err == nil {
					taken = append(taken, ids{id, id})
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return taken, nil
}

// limits are the ids that login.defs has for both kinds, or useradd's own.
func (a Accounts) limits() (lowest, highest int64) {
	set := map[string]int64{"SUB_UID_MIN": 100000, "SUB_GID_MIN": 100000, "SUB_UID_MAX": 600100000, "SUB_GID_MAX": 600100000}
	_ = a.lines("etc/login.defs", strings.Fields, func(field []string) { // a file that can't be read sets nothing
		if len(field) < 2 {
			return
		}
		if n, err := strconv.ParseInt(field[1], 0, 64); err == nil && n > 0 && set[field[0]] != 0 {
			set[field[0]] = n
		}
	})
	return max(set["SUB_UID_MIN"], set["SUB_GID_MIN"]), min(set["SUB_UID_MAX"], set["SUB_GID_MAX"])
}
