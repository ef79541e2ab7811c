package base

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Programs of packages need their settings in /etc: chromium does not start without
// /etc/chromium.d. The skeleton has those settings of the host that hold nothing but
// what a package brought. A file below /etc is shown if all of this is true:
//
//   - A package of the host owns it: it is a conffile in dpkg's list, or ucf put it
//     there for a package.
//   - Its content is still the package's: its MD5 is the one in that list, and for a
//     file of ucf also that of a file which a package has in another place.
//   - It is a regular file, and all users may read it and list the folders above it.
//   - It is in no place, and has no name, of closedPlaces and closedNames.
//
// A link is shown if it leads to a folder of programs or to something that is shown. A
// folder is shown if a package owns it. A file that cove writes itself (ownSettings) is
// never shown.

// A setting is a file or a link below /etc that may be shown.
type setting struct {
	path   string // such as etc/chromium.d/README
	mode   fs.FileMode
	info   fs.FileInfo
	sum    string // MD5 of a file
	data   []byte // of a file
	target string // of a link
	byUCF  bool
}

// settings are what may be shown of the host's /etc.
type settings struct {
	entries []setting
	folders map[string]fs.FileMode // the host's that all users may list
	owned   map[string]string      // the MD5 of each conffile
}

const (
	maxSetting      = 1 << 20  // bytes of one file
	maxSettings     = 10_000   // files and links
	maxSettingBytes = 32 << 20 // bytes of all files
	maxPackageList  = 64 << 20 // bytes of one of the packages' lists
)

// closedPlaces hold secrets of the host, or what concerns the host alone.
var closedPlaces = []string{
	"etc/NetworkManager/system-connections", "etc/cloud", "etc/docker", "etc/ipsec.d", "etc/kubernetes", "etc/letsencrypt", "etc/openvpn",
	"etc/pki/private", "etc/pki/tls/private", "etc/ppp", "etc/rancher", "etc/security/opasswd", "etc/ssl/private", "etc/sudoers.d", "etc/wireguard",
	"etc/wpa_supplicant",
}

// closedNames are the names of secrets in any folder.
var closedNames = []string{
	"*-", "*.jks", "*.kdbx", "*.key", "*.keytab", "*.p12", "*.pfx", ".*", "*credential*", "*passwd*", "*password*", "*private*", "*secret*", "*shadow*", "*token*",
	"auth.conf*", "ssh_host_*",
}

// ownSettings are what cove writes: accounts and build do.
var ownSettings = []string{
	"etc/apt/apt.conf.d/90cove", "etc/gitconfig", "etc/group", "etc/hostname", "etc/hosts", "etc/machine-id", "etc/mtab", "etc/passwd",
	"etc/profile.d/zz-sprite.sh", "etc/resolv.conf", "etc/shadow", "etc/sudoers",
}

// enabledPlaces hold links that say which services the host starts.
var enabledPlaces = []string{"etc/rc?.d/*", "etc/systemd/*/*", "etc/systemd/*/*/*"}

// picked reports whether eachPick sees to a path.
func picked(rel string) bool {
	return slices.ContainsFunc(picks, func(p string) bool { return rel == p || strings.HasPrefix(rel, p+"/") })
}

func closedSetting(rel string) bool {
	name := strings.ToLower(path.Base(rel))
	if path.Dir(rel) == "etc/skel" {
		name = strings.TrimPrefix(name, ".") // as .bashrc: what a new user's home begins with
	}
	return slices.Contains(closedPlaces, rel) || slices.Contains(ownSettings, rel) ||
		slices.ContainsFunc(closedNames, func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok })
}

// settings reads what may be shown of /etc.
func (f Files) settings() (settings, error) {
	s := settings{folders: map[string]fs.FileMode{}}
	var err error
	if s.owned, err = f.conffiles(); err != nil {
		return s, err
	}
	byUCF, err := f.ucfFiles()
	if err != nil {
		return s, err
	}
	bytesLeft := maxSettingBytes
	err = filepath.WalkDir(f.path("etc"), func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return nil
			}
			return err
		}
		rel, err := filepath.Rel(f.path(""), name)
		if err != nil {
			return err
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		if picked(rel) || closedSetting(rel) || st.IsDir() && st.Mode()&0o005 != 0o005 {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if len(s.entries) == maxSettings {
			return fs.SkipAll
		}
		switch entry := (setting{path: rel, mode: st.Mode(), info: st}); {
		case st.IsDir():
			s.folders[rel] = st.Mode().Perm()
		case st.Mode()&fs.ModeSymlink != 0:
			if slices.ContainsFunc(enabledPlaces, func(p string) bool { ok, _ := path.Match(p, rel); return ok }) {
				return nil
			}
			if entry.target, err = os.Readlink(name); err == nil {
				s.entries = append(s.entries, entry)
			}
		case st.Mode().IsRegular() && st.Mode()&0o004 != 0 && st.Size() <= int64(min(maxSetting, bytesLeft)):
			want, ok := s.owned[rel]
			if !ok {
				want, entry.byUCF = byUCF[rel]
			}
			if want == "" {
				return nil
			}
			if entry.data, err = readRegular(name); err != nil {
				return nil // the host goes on living while we look
			}
			if entry.sum = md5sum(entry.data); entry.sum == want && len(entry.data) <= bytesLeft {
				bytesLeft -= len(entry.data)
				s.entries = append(s.entries, entry)
			}
		}
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("read /etc: %w", err)
	}
	return s, nil
}

// readRegular reads at most maxSetting bytes of a regular file that all users may read.
// The file may have changed since its folder was read.
func readRegular(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Mode()&0o004 == 0 || st.Size() > maxSetting {
		return nil, fs.ErrPermission
	}
	return io.ReadAll(io.LimitReader(file, maxSetting))
}

func md5sum(data []byte) string {
	sum := md5.Sum(data)
	return hex.EncodeToString(sum[:])
}

// copySettings writes the settings of s that are shown into dir, the skeleton.
func (f Files) copySettings(dir string, s settings) error {
	shipped, err := f.shipped(s)
	if err != nil {
		return err
	}
	folders, err := f.packageFolders(s)
	if err != nil {
		return err
	}
	shown := map[string]setting{}
	var links []setting
	for _, e := range s.entries {
		if e.byUCF && !shipped[e.sum] {
			continue
		}
		shown[e.path] = e
		if e.target == "" {
			addParents(folders, e.path)
		}
	}
	for _, e := range s.entries {
		if e.target != "" && leadsToShown(e.path, shown, folders) {
			links = append(links, e)
		}
	}
	for _, e := range links {
		addParents(folders, e.path)
	}
	for rel := range folders {
		if mode, ok := s.folders[rel]; ok {
			if err := makeDir(dir, rel, mode); err != nil {
				return err
			}
		}
	}
	for _, e := range links { // a pick may have made a folder of what is a link on the host
		if err := os.Symlink(e.target, filepath.Join(dir, e.path)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for rel, e := range shown {
		if e.target != "" {
			continue
		}
		dst := filepath.Join(dir, rel)
		if err := writeFile(dst, e.data, e.mode.Perm()); err != nil {
			return err
		}
		if err := os.Chtimes(dst, e.info.ModTime(), e.info.ModTime()); err != nil {
			return err
		}
	}
	return nil
}

// addParents adds the folders above a path, up to /etc.
func addParents(folders map[string]bool, rel string) {
	for at := path.Dir(rel); at != "etc" && at != "."; at = path.Dir(at) {
		folders[at] = true
	}
}

// leadsToShown reports whether links below /etc (8 at most) lead to a folder of
// programs, or to something that is shown.
func leadsToShown(rel string, shown map[string]setting, folders map[string]bool) bool {
	for range 8 {
		e, ok := shown[rel]
		if !ok {
			return folders[rel] || picked(rel)
		}
		if e.target == "" {
			return true
		}
		if rel = linkTarget(rel, e.target); inPrograms(rel) {
			return true
		}
	}
	return false
}

// conffiles reads dpkg's list of the packages that are installed: the MD5 of each of
// their configuration files below /etc, as the package brought it.
func (f Files) conffiles() (map[string]string, error) {
	files := map[string]string{}
	data, err := readList(f.path("var/lib/dpkg/status"))
	if err != nil {
		return files, err
	}
	installed, listing := false, false
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case line == "":
			installed, listing = false, false
		case line[0] != ' ' && line[0] != '\t':
			listing = line == "Conffiles:"
			if status, ok := strings.CutPrefix(line, "Status:"); ok {
				installed = strings.HasSuffix(status, " installed")
			}
		case listing && installed:
			name, sum, ok := cutLast(strings.TrimSpace(line))
			if ok && len(sum) == hex.EncodedLen(md5.Size) && strings.HasPrefix(name, "/etc/") { // else obsolete, or new
				files[path.Clean(name)[1:]] = sum
			}
		}
	}
	return files, sc.Err()
}

func cutLast(line string) (before, after string, ok bool) {
	i := strings.LastIndexByte(line, ' ')
	if i < 0 {
		return "", "", false
	}
	return strings.TrimSpace(line[:i]), line[i+1:], true
}

// ucfFiles reads the MD5 of each file below /etc that ucf has put there.
func (f Files) ucfFiles() (map[string]string, error) {
	files := map[string]string{}
	data, err := readList(f.path("var/lib/ucf/hashfile"))
	for line := range strings.Lines(string(data)) {
		sum, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		if name = strings.TrimSpace(name); ok && strings.HasPrefix(name, "/etc/") {
			files[path.Clean(name)[1:]] = sum
		}
	}
	return files, err
}

// shipped finds which contents of ucf's files are those of files that packages have
// elsewhere. A file that a package's script made, perhaps with a password, has another.
func (f Files) shipped(s settings) (map[string]bool, error) {
	wanted, shipped := map[string]bool{}, map[string]bool{}
	for _, e := range s.entries {
		if e.byUCF {
			wanted[e.sum] = true
		}
	}
	if len(wanted) == 0 {
		return shipped, nil
	}
	return shipped, f.eachInfo("*.md5sums", func(line []byte) {
		if sum, _, ok := bytes.Cut(line, []byte(" ")); ok && wanted[string(sum)] {
			shipped[string(sum)] = true
		}
	})
}

// packageFolders are the folders below /etc that packages own, or have settings in.
func (f Files) packageFolders(s settings) (map[string]bool, error) {
	folders := map[string]bool{}
	for rel := range s.owned {
		addParents(folders, rel)
	}
	return folders, f.eachInfo("*.list", func(line []byte) {
		if bytes.HasPrefix(line, []byte("/etc/")) {
			rel := path.Clean(string(line))[1:]
			if _, ok := s.folders[rel]; ok {
				folders[rel] = true
			}
			addParents(folders, rel)
		}
	})
}

// eachInfo calls fn for each line of dpkg's lists with such names.
func (f Files) eachInfo(pattern string, fn func(line []byte)) error {
	dir := f.path("var/lib/dpkg/info")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if ok, _ := path.Match(pattern, e.Name()); !ok {
			continue
		}
		data, err := readList(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		for line := range bytes.Lines(data) {
			fn(bytes.TrimRight(line, "\n"))
		}
	}
	return nil
}

// readList reads one of the packages' lists; a list that is not there is empty.
func readList(name string) ([]byte, error) {
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxPackageList))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}
