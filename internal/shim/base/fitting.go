package base

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/shim/layers"
)

// A Fitting is a small layer between an image and the disks that lie on it. It has what a
// sandbox needs and the image may lack: the account of the sprite's user, folders to mount
// on, settings of the network. It is made once for each image, and never written again.
type Fitting struct {
	Name string // of its folder, in that of all bases
	Dir  string // the layer

	Defaults boot.Defaults // of the commands
}

// fittingFormat is raised when fittings are made differently. A disk stays on the one that it
// was made over.
const fittingFormat = 2

// The folder of a fitting holds:
const (
	fittingTree = "tree" // the layer
	fittingFile = "fitting.json"
)

// fittingRecord is what is known of a fitting, besides its layer.
type fittingRecord struct {
	Digest  string       `json:"digest"` // of the image
	Account boot.Account `json:"account"`
	Workdir string       `json:"workdir"`

	// HTTPPort is Image.HTTPPort. A disk that was made before cove knew it has none.
	HTTPPort int `json:"http_port,omitempty"`
}

// fittingName is the name of an image's fitting.
func (img Image) fittingName(userXattr bool) string {
	name := imagePrefix + hexPrefix(img.Digest)
	if fittingFormat > 1 {
		name += "-" + strconv.Itoa(fittingFormat)
	}
	if img.Bare {
		name += "-bare"
	}
	if userXattr {
		name += "-userns"
	}
	return name
}

// Fit returns the fitting of an image, from dir if it was made there before. name is the
// fitting that a disk lies on already. Empty: it is a new disk. userXattr is as in
// layers.Overlay. The error is ErrImage if no disk can lie on the image.
func (img Image) Fit(dir, name string, userXattr bool) (Fitting, error) {
	fail := func(err error) (Fitting, error) {
		return Fitting{}, fmt.Errorf("fit image %s: %w", img.Digest, err)
	}
	if !IsImage(img.Digest) {
		return fail(errors.New("it is not a digest"))
	}
	env, err := img.variables()
	if err != nil {
		return fail(err)
	}
	own := img.fittingName(userXattr)
	if name == "" {
		name = own
	}
	if name != filepath.Base(name) || !strings.HasPrefix(name, imagePrefix) {
		return fail(fmt.Errorf("%q is not the name of a fitting", name))
	}
	record, err := readFitting(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) && name == own {
		if err = img.makeFitting(dir, name, userXattr); err == nil {
			record, err = readFitting(filepath.Join(dir, name))
		}
	}
	if err == nil && record.Digest != img.Digest {
		err = fmt.Errorf("%s belongs to image %s", name, record.Digest)
	}
	if err != nil {
		return fail(err)
	}
	return Fitting{
		Name: name, Dir: filepath.Join(dir, name, fittingTree),
		Defaults: boot.Defaults{Account: record.Account, Workdir: record.Workdir, Env: env, HTTPPort: record.HTTPPort},
	}, nil
}

func readFitting(dir string) (record fittingRecord, err error) {
	data, err := os.ReadFile(filepath.Join(dir, fittingFile))
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	return record, err
}

// The beginnings of names in the folder of all bases. Hider.Prune leaves both alone.
const (
	imagePrefix = "image-"
	unfinished  = "fit-" // of a fitting that is being made, or removed
)

// stageFitting makes the temporary folder of a fitting that is about to be made.
func stageFitting(dir string) (tmp string, err error) {
	if err = os.MkdirAll(dir, 0o700); err == nil {
		tmp, err = os.MkdirTemp(dir, unfinished)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(tmp, fittingTree), 0o700)
	}
	return tmp, err
}

// SweepFittings removes fittings from the folder of all bases: those that an earlier server
// left unfinished, and those of images that are gone. Fit must not run meanwhile.
func SweepFittings(dir string, gone func(digest string) bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), unfinished) {
			err = errors.Join(err, layers.Remove(name))
		} else if strings.HasPrefix(e.Name(), imagePrefix) {
			if record, readErr := readFitting(name); readErr == nil && gone(record.Digest) {
				err = errors.Join(err, RemoveFittings(dir, record.Digest))
			}
		}
	}
	return err
}

// RemoveFittings removes the fittings of an image, of whatever format, from the folder of all
// bases. No disk may lie on them any more.
func RemoveFittings(dir, digest string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), imagePrefix+hexPrefix(digest)) {
			err = errors.Join(err, removeFitting(dir, e.Name(), digest))
		}
	}
	return err
}

// hexPrefix is the part of an image's digest that the names of its fittings have.
func hexPrefix(digest string) string { return strings.TrimPrefix(digest, "sha256:")[:16] }

// removeFitting first gives a fitting the name of an unfinished one: half a fitting must not
// be used.
func removeFitting(dir, name, digest string) error {
	placing.Lock()
	record, err := readFitting(filepath.Join(dir, name))
	if err != nil || record.Digest != digest {
		placing.Unlock()
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}
	tmp, err := os.MkdirTemp(dir, unfinished)
	if err == nil {
		err = os.Rename(filepath.Join(dir, name), filepath.Join(tmp, name))
	}
	placing.Unlock()
	return errors.Join(err, layers.Remove(tmp))
}

// placing is held while a fitting gets its name. A server makes all fittings of its folder.
var placing sync.Mutex

// placeFitting gives a finished fitting its name, unless the image has a fitting by now. A folder
// without a record is not a fitting: something removed parts of it.
func placeFitting(tmp, to string) error {
	placing.Lock()
	defer placing.Unlock()
	_, err := os.Lstat(filepath.Join(to, fittingFile))
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := layers.Remove(to); err != nil {
		return err
	}
	return os.Rename(tmp, to)
}

// makeFitting makes a fitting, which appears under its name when it is whole and on disk.
func (img Image) makeFitting(dir, name string, userXattr bool) error {
	tmp, err := stageFitting(dir)
	if tmp != "" {
		defer os.RemoveAll(tmp)
	}
	if err != nil {
		return err
	}
	tree, err := img.open(userXattr)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Join(tmp, fittingTree))
	if err != nil {
		return errors.Join(err, tree.view.Close())
	}
	f := &fitter{image: tree, root: root}
	record, err := f.make(img, userXattr)
	for _, clash := range []error{unix.ENOTDIR, unix.EISDIR, unix.EEXIST, unix.ENAMETOOLONG} {
		if errors.Is(err, clash) { // in a new folder, only the image's links can lead to it
			err = refuse("its links put one file of a sprite into another: %v", err)
		}
	}
	if err := errors.Join(err, root.Close(), tree.view.Close()); err != nil {
		return err
	}
	data, err := json.Marshal(record)
	if err == nil {
		err = os.WriteFile(filepath.Join(tmp, fittingFile), data, 0o600)
	}
	if err == nil {
		err = syncTree(tmp)
	}
	if err != nil {
		return err
	}
	if err := placeFitting(tmp, filepath.Join(dir, name)); err != nil {
		return err
	}
	return syncTree(dir)
}

// syncTree has all of a folder's file system on disk.
func syncTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// A fitter fills a fitting's layer. The image chooses some of the names in it. So they are
// made in an open folder that has no links.
type fitter struct {
	image imageTree
	root  *os.Root
}

// mountPoints are folders that are the sandbox's own, whatever the image has there.
var mountPoints = []struct {
	name string
	mode fs.FileMode
}{
	{"proc", 0o555}, {"sys", 0o555}, {"dev", 0o755}, {"run", 0o755}, {"tmp", fs.ModeSticky | 0o777},
	{".sprite", 0o755}, {".sprite/bin", 0o755}, {".sprite/git", 0o755}, {".sprite/etc/profile.d", 0o755}, {".sprite/logs/services", 0o755}, {".sprite/policy", 0o755}, {".sprite/tmp", fs.ModeSticky | 0o777},
}

func (f *fitter) make(img Image, userXattr bool) (record fittingRecord, err error) {
	record.Digest, record.HTTPPort = img.Digest, img.HTTPPort
	top := f.image.view.Root()
	if err := f.own(".", top); err != nil {
		return record, err
	}
	for _, d := range mountPoints {
		if err := f.folder(d.name, d.mode); err != nil {
			return record, err
		}
	}
	// The image may have been made from a sprite. Then it has that sprite's files there.
	mark := "trusted.overlay.opaque"
	if userXattr {
		mark = "user.overlay.opaque"
	}
	if err := unix.Setxattr(filepath.Join(f.root.Name(), boot.Dir), mark, []byte("y"), 0); err != nil {
		return record, fmt.Errorf("mark %s: %w", boot.Dir, err)
	}
	if img.Bare {
		record.Account, record.Workdir = boot.Account{Name: "root", Groups: []int{0}, Home: "/root"}, "/"
		return record, f.network()
	}
	if record.Account, err = f.accounts(img); err != nil {
		return record, err
	}
	if record.Account.Home != boot.Home {
		err = f.home(record.Account) // where jobs are, whoever they run as
	}
	if err != nil {
		return record, err
	}
	if record.Workdir, err = f.workdir(img, record.Account); err != nil {
		return record, err
	}
	return record, f.settings(img, record.Account)
}

// workdir is where commands start.
func (f *fitter) workdir(img Image, own boot.Account) (string, error) {
	if soundPath(img.Workdir) {
		return path.Clean(img.Workdir), nil
	}
	if own.Name == boot.User {
		return own.Home, nil
	}
	is, err := f.image.isFolder(own.Home)
	if is {
		return own.Home, err
	}
	return "/", err
}

// place is where a path of the image leads. If the path leads nowhere, place is the path
// itself: a file that is put there hides the image's links.
func (f *fitter) place(name string) (string, error) {
	at, _, _, err := f.image.real(name)
	if errors.Is(err, ErrImage) {
		return path.Join(split(name)...), nil
	}
	return at, err
}

// own gives a name of the fitting the owner and rights of the image's file there.
func (f *fitter) own(name string, n layers.Node) error {
	if err := f.root.Lchown(name, int(n.UID), int(n.GID)); err != nil {
		return err
	}
	return f.root.Chmod(name, modeOf(n.Mode))
}

// modeOf are the rights in a mode as of stat(2).
func modeOf(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, as := range map[uint32]fs.FileMode{unix.S_ISVTX: fs.ModeSticky, unix.S_ISGID: fs.ModeSetgid, unix.S_ISUID: fs.ModeSetuid} {
		if mode&bit != 0 {
			m |= as
		}
	}
	return m
}

// folder makes a folder of the sandbox's own.
func (f *fitter) folder(name string, mode fs.FileMode) error {
	if err := f.root.MkdirAll(name, 0o755); err != nil {
		return err
	}
	return f.root.Chmod(name, mode)
}

// shared makes a folder that is merged with the image's. It has the owner and the rights of
// the image's folder; if the image has none, it has mode.
func (f *fitter) shared(name string, mode fs.FileMode) error {
	if name == "" || name == "." {
		return nil
	}
	if _, err := f.root.Lstat(name); err == nil {
		return nil
	}
	if err := f.shared(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := f.root.Mkdir(name, 0o755); err != nil {
		return err
	}
	at, n, found, err := f.image.real(name)
	if ignoreBad(err) != nil {
		return err
	}
	if err == nil && found && n.IsDir() && at == name {
		return f.own(name, n)
	}
	return f.root.Chmod(name, mode)
}

// write writes a file of /etc, in place of the image's. was, if it is a file, has its owner and
// rights.
func (f *fitter) write(name, text string, mode fs.FileMode, was *layers.Node) error {
	dir, err := f.place(path.Dir(path.Join("etc", name)))
	if err != nil {
		return err
	}
	at := path.Join(dir, path.Base(name))
	if err := f.shared(dir, 0o755); err != nil {
		return err
	}
	if err := f.root.WriteFile(at, []byte(text), 0o600); err != nil {
		return err
	}
	if was != nil {
		return f.own(at, *was)
	}
	return f.root.Chmod(at, mode)
}

// accounts writes the user database if something must be added. It returns the account that
// commands run as.
func (f *fitter) accounts(img Image) (own boot.Account, err error) {
	passwd, _, userNode, hasUsers, err := f.image.read("etc/passwd")
	if err != nil {
		return own, err
	}
	groups, _, groupNode, hasGroups, err := f.image.read("etc/group")
	if err != nil {
		return own, err
	}
	shell, err := f.image.shell()
	if err != nil {
		return own, err
	}
	login := shell
	if login == "" {
		login = "/sbin/nologin"
	}
	a := readAccounts(passwd, groups)
	users := newDatabase(passwd, hasUsers, "root:*:0:0:root:/root:"+login)
	names := newDatabase(groups, hasGroups, "root:x:0:")
	switch {
	case img.User != "":
		own, err = f.image.configured(a, img.User)
	default:
		own, err = f.sprite(a, shell, login, users, names)
	}
	if err != nil {
		return own, err
	}
	if !hasUsers {
		if err := f.shared("root", 0o700); err != nil {
			return own, err
		}
	}
	for _, file := range []struct {
		name string
		db   *database
		was  layers.Node
	}{{"passwd", users, userNode}, {"group", names, groupNode}} {
		if !file.db.changed {
			continue
		}
		was := &file.was
		if !file.db.had {
			was = nil
		}
		if err := f.write(file.name, file.db.text.String(), 0o644, was); err != nil {
			return own, err
		}
	}
	return own, nil
}

// database is a file of accounts that lines can be added to.
type database struct {
	text         strings.Builder
	had, changed bool
}

// newDatabase has the image's lines, or else one of ours.
func newDatabase(data []byte, had bool, first string) *database {
	d := &database{had: had}
	if !had {
		d.add(first)
		return d
	}
	d.text.Write(data)
	if len(data) > 0 && data[len(data)-1] != '\n' {
		d.text.WriteByte('\n')
	}
	return d
}

func (d *database) add(line string) {
	d.text.WriteString(line + "\n")
	d.changed = true
}

// sprite is the account of the sprite's user, which is added if the image has none.
func (f *fitter) sprite(a accounts, shell, login string, users, groups *database) (boot.Account, error) {
	if u, ok := a.named(boot.User); ok {
		own := boot.Account{Name: u.name, UID: u.uid, GID: u.gid, Home: u.home, Shell: u.shell}
		if !soundPath(own.Home) {
			own.Home = boot.Home
		}
		if ok, err := f.image.isProgram(own.Shell); err != nil || !ok || !soundPath(own.Shell) || boot.NoLogin(own.Shell) {
			own.Shell = shell
			return own, err
		}
		return own, nil
	}
	id := a.freeID()
	own := boot.Account{Name: boot.User, UID: id, GID: id, Home: boot.Home, Shell: shell}
	if gid, ok := a.groupNamed(boot.User); ok {
		own.GID = gid
	} else {
		groups.add(fmt.Sprintf("%s:x:%d:", own.Name, own.GID))
	}
	password := "*" // of an account that is in no shadow file
	shadow, _, n, found, err := f.image.read("etc/shadow")
	if err != nil {
		return own, err
	}
	if found {
		password = "x"
		db := newDatabase(shadow, true, "")
		db.add(own.Name + ":*:19000:0:99999:7:::")
		if err := f.write("shadow", db.text.String(), 0o640, &n); err != nil {
			return own, err
		}
	}
	users.add(fmt.Sprintf("%s:%s:%d:%d:%s:%s:%s", own.Name, password, own.UID, own.GID, own.Name, own.Home, login))
	return own, f.home(own)
}

// home makes boot.Home an account's.
func (f *fitter) home(own boot.Account) error {
	at, err := f.place(boot.Home)
	if err == nil && at == "" {
		err = refuse("its %s is a link to /", boot.Home)
	}
	if err == nil {
		err = f.shared(at, 0o755)
	}
	if err == nil {
		err = f.root.Lchown(at, own.UID, own.GID)
	}
	return err
}

// settings writes the other files of /etc.
func (f *fitter) settings(img Image, own boot.Account) error {
	git, _, _, _, err := f.image.read("etc/gitconfig")
	if err != nil {
		return err
	}
	if len(git) > 0 && git[len(git)-1] != '\n' {
		git = append(git, '\n')
	}
	files := []struct {
		name, text string
		mode       fs.FileMode
	}{
		{"resolv.conf", resolvConf, 0o644},
		{"hosts", hosts, 0o644},
		{"hostname", "sprite\n", 0o644},
		{"gitconfig", string(git) + gitConfig, 0o644},
		{"profile.d/zz-sprite.sh", img.loginShells(), 0o644},
	}
	if has, err := f.image.isFolder("etc/apt/apt.conf.d"); err != nil {
		return err
	} else if has {
		files = append(files, struct {
			name, text string
			mode       fs.FileMode
		}{"apt/apt.conf.d/90cove", aptConf, 0o644})
	}
	for _, file := range files {
		if err := f.write(file.name, file.text, file.mode, nil); err != nil {
			return err
		}
	}
	if own.Name != boot.User {
		return nil
	}
	return f.sudo()
}

// network writes the files of /etc that every sandbox has of its own.
func (f *fitter) network() error {
	return errors.Join(f.write("resolv.conf", resolvConf, 0o644, nil), f.write("hosts", hosts, 0o644, nil), f.write("hostname", "sprite\n", 0o644, nil))
}

// sudo lets the sprite's user become root, if the image has sudo.
func (f *fitter) sudo() error {
	for _, name := range []string{"/usr/bin/sudo", "/usr/local/bin/sudo", "/bin/sudo"} {
		has, err := f.image.isProgram(name)
		if err != nil {
			return err
		}
		if !has {
			continue
		}
		dir, err := f.place("etc/sudoers.d")
		if err == nil {
			err = f.shared(dir, 0o750)
		}
		if err != nil {
			return err
		}
		return f.write("sudoers.d/zz-cove", "Defaults:"+boot.User+" !lecture, !fqdn\n"+boot.User+" ALL=(ALL:ALL) NOPASSWD: ALL\n", 0o440, nil)
	}
	return nil
}

// loginShells is a script that gives a login shell the PATH that commands have. The shell's
// own files set PATH anew.
func (img Image) loginShells() string {
	const standard = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	search := standard
	env, _ := img.variables() // an image has no fitting if its variables can't be used
	for _, pair := range env {
		if value, ok := strings.CutPrefix(pair, "PATH="); ok {
			search = value
		}
	}
	return fmt.Sprintf(imageLogin, "'"+strings.ReplaceAll(search, "'", `'\''`)+"'")
}

const imageLogin = `# So that a login shell finds what commands in a sprite find.
case ":$PATH:" in
*:/.sprite/bin:*) ;;
*) PATH="/.sprite/bin:$HOME/.local/bin:"%s ;;
esac
export PATH
for sprite_file in /.sprite/etc/profile.d/*.sh; do
	[ -r "$sprite_file" ] && . "$sprite_file"
done
unset sprite_file
`
