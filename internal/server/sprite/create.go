package sprite

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/cgroup"
	"github.com/cove-dev/cove/sprites"
)

// Bounds on what a caller may ask for.
const (
	maxName    = 63 // a DNS label: it is the host name, and the first label of the URL
	maxLabels  = 64
	maxLabel   = 200
	maxInclude = 64
	maxEnv     = 1000
	maxEnvName = 255
	maxEnvText = 128 << 10 // that Linux takes
)

// minRAM is the least memory of a sprite, in MiB: what gVisor and the guest need,
// and a little.
const minRAM = 64

// ownFolders are those that every sprite has of its own; nothing below those that
// are whole can be another's.
var (
	ownFolders = []string{"/etc", "/proc", "/sys", "/dev", boot.Dir, boot.Home, "/run", "/tmp", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/var/lib/dpkg"}
	whole      = map[string]bool{"/etc": true, "/proc": true, "/sys": true, "/dev": true, boot.Dir: true}
)

// defaultBase is what a disk begins with: the tools of this machine.
const defaultBase = "host"

var nameRule = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`) })

// CheckName returns an *fail.Error that gives the rule unless name may be a sprite's.
func CheckName(name string) error {
	if len(name) <= maxName && nameRule().MatchString(name) {
		return nil
	}
	if len(name) > 2*maxName {
		name = name[:2*maxName] + "…"
	}
	return fail.Newf(CodeBadName, "for example: paint, or ci-build-7",
		"%q can't be a sprite's name: it must be 1 to %d lower-case letters, digits and hyphens, with no hyphen at either end", name, maxName)
}

// Create makes a sprite. Its sandbox starts with the first use.
func (h *Host) Create(ctx context.Context, req sprites.CreateRequest) (sprites.Info, error) {
	if req.Config != nil && req.Config.Image == sprites.HostBase {
		c := *req.Config
		req.Config, c.Image = &c, ""
	}
	if err := checkCreate(h.Data, req); err != nil {
		return sprites.Info{}, err
	}
	row := store.Sprite{
		ID:          randomHex(8),
		Name:        req.Name,
		MachineID:   randomHex(16),
		Include:     req.Include,
		Env:         req.Environment,
		Labels:      req.Labels,
		URL:         sprites.URLSettings{Auth: "sprite"},
		IdleSeconds: store.ServersOwn,
		Hibernate:   store.ServersOwn,
		Owner:       req.Owner,
		Status:      sprites.StatusCold,
	}
	if req.Config != nil {
		row.Config = *req.Config
	}
	if req.URLSettings != nil {
		row.URL = *req.URLSettings
		row.URL.Auth = cmp.Or(row.URL.Auth, "sprite")
	}
	if req.IdleSeconds != nil {
		row.IdleSeconds = *req.IdleSeconds
	}
	if req.HibernateSeconds != nil {
		row.Hibernate = *req.HibernateSeconds
	}
	if req.NetworkPolicy != nil {
		if _, err := h.network.compile(ctx, *req.NetworkPolicy); err != nil {
			return sprites.Info{}, err
		}
		row.Policy = *req.NetworkPolicy
	}
	if req.LeaseSeconds > 0 {
		row.LeaseUntil = time.Now().Add(time.Duration(req.LeaseSeconds) * time.Second)
	}
	var err error
	if row.Base, err = baseOf(ctx, h, req.Name, row.Config.Image); err != nil {
		return sprites.Info{}, err
	}
	if req.Install != "" {
		if row.Layer, err = h.begun(ctx, req.Install, row.Base); err != nil {
			return sprites.Info{}, err
		}
	}
	if row.Base == defaultBase {
		prepare(h)
	}
	if s := h.pool.take(row); s != nil { // such a sandbox starts at once
		err = h.pool.create(ctx, s, &row)
	} else {
		err = h.Store.Sprites.Create(ctx, &row)
	}
	if errors.Is(err, store.ErrExists) {
		return sprites.Info{}, nameTaken(req.Name)
	}
	if errors.Is(err, store.ErrNoImage) {
		return sprites.Info{}, goneImage(row)
	}
	if errors.Is(err, store.ErrNotFound) {
		return sprites.Info{}, noInstall(req.Install) // it was dropped in between
	}
	if err != nil {
		return sprites.Info{}, err
	}
	return h.info(row), nil
}

// prepare has the runtime make what its first sandbox needs, while there is a sprite that
// may want one soon.
func prepare(h *Host) {
	h.tasks.begin(func() {
		if err := h.Runtime.Prepare(); err != nil {
			h.Logger.Error("preparing the base; the next sandbox tries again", "err", err)
		}
	})
}

func checkCreate(data string, req sprites.CreateRequest) error {
	if err := CheckName(req.Name); err != nil {
		return err
	}
	if req.Base != "" && req.Base != defaultBase {
		return fail.Newf(CodeBadRequest, "leave it out, or set it to host; an image belongs in config", "there is no base %q", req.Base)
	}
	if req.Config != nil && req.Config.Image != "" {
		if req.Base != "" {
			return fail.Newf(CodeBadRequest, "leave one of them out", "a sprite can't start from the base %s and from an image", req.Base)
		}
		if err := checkReference(req.Config.Image); err != nil {
			return err
		}
	}
	if err := errors.Join(checkConfig(req.Config), checkInclude(data, req.Include)); err != nil {
		return err
	}
	if err := checkEnvironment(req.Environment); err != nil {
		return err
	}
	if req.Owner == store.PoolOwner || req.Owner == store.BuildOwner {
		return fail.Newf(CodeBadRequest, "", "a sprite can't belong to the pool or to a build")
	}
	if req.LeaseSeconds < 0 {
		return fail.Newf(CodeBadRequest, "", "a lease can't be negative")
	}
	return errors.Join(CheckLabels(req.Labels), checkURL(req.URLSettings), checkIdle(req.IdleSeconds), checkIdle(req.HibernateSeconds))
}

// CheckPlace refuses a machine and folders of the host that no new sprite could have.
func CheckPlace(h *Host, c *sprites.Config, include []string) error {
	if c != nil && c.Image != "" && c.Image != sprites.HostBase {
		if err := checkReference(c.Image); err != nil {
			return err
		}
	}
	return errors.Join(checkConfig(c), checkInclude(h.Data, include))
}

func checkEnvironment(env map[string]string) error {
	if len(env) > maxEnv {
		return fail.Newf(CodeBadRequest, "", "%d environment variables are more than the %d allowed", len(env), maxEnv)
	}
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fail.Newf(CodeBadRequest, "", "%.100q can't be an environment variable", k)
		}
		if len(k) > maxEnvName || len(k)+len(v)+len("=\x00") > maxEnvText {
			return fail.Newf(CodeBadRequest, "", "the environment variable %.100q is too long: a name may have %d bytes, and a name with its value %d", k, maxEnvName, maxEnvText)
		}
	}
	return nil
}

// checkConfig refuses what the machine can't give.
func checkConfig(c *sprites.Config) error {
	if c == nil {
		return nil
	}
	if c.RAMMB < 0 || c.CPUs < 0 || c.StorageGB < 0 || c.StorageMB < 0 {
		return fail.Newf(CodeBadRequest, "0 means the server's default", "a sprite's memory, CPUs and disk can't be negative: %+v", *c)
	}
	if c.RAMMB > 0 && c.RAMMB < minRAM {
		return fail.Newf(CodeBadRequest, "", "a sprite does not start with %d MiB of memory; give it %d at least", c.RAMMB, minRAM)
	}
	if err := checkDisk(*c); err != nil {
		return err
	}
	machine, err := cgroup.Process{}.Machine()
	if err != nil {
		return err
	}
	return fits(*c, machine)
}

// fits refuses limits that are beyond the machine, or beyond what the server may use of it.
func fits(c sprites.Config, m cgroup.Machine) error {
	whose := func(limit bool) string {
		if limit {
			return "the server may use"
		}
		return "the server's machine has"
	}
	if c.CPUs > m.CPUs {
		return fail.Newf(CodeTooMuch, "", "a sprite can't have %d CPUs: %s %d", c.CPUs, whose(m.Server.CPUs > 0), m.CPUs)
	}
	if n := int(m.Memory >> 20); c.RAMMB > n {
		return fail.Newf(CodeTooMuch, "", "a sprite can't have %d MiB of memory: %s %d", c.RAMMB, whose(m.Server.Memory > 0), n)
	}
	return nil
}

// Bounds on a disk limit, in MiB: what a sandbox starts with, and some more; and what
// can be counted.
const (
	minDisk = 16
	maxDisk = 1 << 40
)

func checkDisk(c sprites.Config) error {
	switch {
	case c.StorageMB > maxDisk || c.StorageGB > maxDisk>>10:
		return fail.Newf(CodeBadRequest, "leave it out for no limit", "the disk limit is larger than any disk")
	case c.StorageMB > 0 && c.StorageMB < minDisk:
		return fail.Newf(CodeBadRequest, "", "a sprite needs more than %d MiB of disk; give it %d at least", c.StorageMB, minDisk)
	}
	return nil
}

func checkStorage(mib *int) error {
	if mib == nil {
		return nil
	}
	if *mib < 0 {
		return fail.Newf(CodeBadRequest, "0 means no limit", "a disk limit can't be %d MiB", *mib)
	}
	return checkDisk(sprites.Config{StorageMB: *mib})
}

// checkInclude refuses folders of this machine that a sprite may not be shown; data is the
// server's own.
func checkInclude(data string, dirs []string) error {
	if len(dirs) > maxInclude {
		return fail.Newf(CodeBadRequest, "", "%d folders to include are more than the %d allowed", len(dirs), maxInclude)
	}
	for _, dir := range dirs {
		if !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" || strings.ContainsRune(dir, 0) {
			return fail.Newf(CodeBadRequest, "give an absolute path without . and ..", "%q can't be included", dir)
		}
		for _, own := range ownFolders {
			if within(own, dir) || whole[own] && within(dir, own) {
				return fail.Newf(CodeBadRequest, "", "%s can't be included: a sprite has a %s of its own", dir, own)
			}
		}
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return fail.Newf(CodeBadRequest, "give a folder of the server's machine", "%s can't be included: it is not a folder of this machine", dir)
		}
		// It has the token of the server's owner, and the disks of others.
		if real := realPath(dir); data != "" && (within(realPath(data), real) || within(real, realPath(data))) {
			return fail.Newf(CodeBadRequest, "give folders outside it", "%s can't be included: the server's data folder is there", dir)
		}
	}
	return nil
}

// within reports whether a clean path is dir, or below it.
func within(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// realPath is where a path leads, or the path itself if that can't be told.
func realPath(name string) string {
	if real, err := filepath.EvalSymlinks(name); err == nil {
		return real
	}
	return name
}

// CheckLabels refuses labels that no sprite can have.
func CheckLabels(labels []string) error {
	if len(labels) > maxLabels {
		return fail.Newf(CodeBadRequest, "", "%d labels are more than the %d allowed", len(labels), maxLabels)
	}
	for _, l := range labels {
		if l == "" || len(l) > maxLabel || !utf8.ValidString(l) || strings.ContainsFunc(l, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fail.Newf(CodeBadRequest, "", "%q can't be a label: it must have 1 to %d printable characters", l, maxLabel)
		}
	}
	return nil
}

func checkURL(u *sprites.URLSettings) error {
	if u == nil {
		return nil
	}
	if u.Auth != "" && u.Auth != "sprite" && u.Auth != "public" {
		return fail.Newf(CodeBadRequest, "use sprite or public", "the URL's auth can't be %q", u.Auth)
	}
	if u.PrivateAccess != "" && u.PrivateAccess != "admins" && u.PrivateAccess != "org_users" {
		return fail.Newf(CodeBadRequest, "use admins or org_users", "the URL's private_access can't be %q", u.PrivateAccess)
	}
	return nil
}

func checkIdle(seconds *int64) error {
	if seconds != nil && (*seconds < 0 || *seconds > int64(100*365*24*time.Hour/time.Second)) {
		return fail.Newf(CodeBadRequest, "give seconds; 0 means never", "the idle time can't be %d", *seconds)
	}
	return nil
}

// changeable is the part of a sprite that clients change by what they have read of it.
func changeable(row store.Sprite) any { return []any{row.Labels, row.Retention} }

// Labels returns a sprite's labels and their revision.
func Labels(ctx context.Context, h *Host, name string) (labels []string, revision string, err error) {
	row, err := h.rows.named(ctx, name)
	if err == nil {
		revision, err = revisionOf(changeable(row))
	}
	return row.Labels, revision, err
}

// checkRevision refuses a change that was made of another revision of a sprite; empty: of
// any.
func checkRevision(row store.Sprite, revision string) error {
	if revision == "" {
		return nil
	}
	now, err := revisionOf(changeable(row))
	if err == nil && now != revision {
		err = fail.Newf(CodeSpriteChanged, "read it again, and make the change on the current version", "sprite %s has been changed since it was read", row.Name)
	}
	return err
}

// Update changes a sprite's settings. Settings that req leaves out stay as they are.
func (h *Host) Update(ctx context.Context, name string, req sprites.UpdateRequest) (sprites.Info, error) {
	var labels []string
	if req.Labels != nil {
		labels = *req.Labels
	}
	if err := errors.Join(CheckLabels(labels), checkURL(req.URLSettings), checkIdle(req.IdleSeconds), checkIdle(req.HibernateSeconds), checkRetention(req.Retention), checkStorage(req.StorageMB)); err != nil {
		return sprites.Info{}, err
	}
	row, err := h.rows.named(ctx, name)
	if err == nil {
		err = checkRevision(row, req.Revision)
	}
	if err != nil {
		return sprites.Info{}, err
	}
	if req.RAMMB != nil || req.CPUs != nil {
		if err := h.lives.limits.update(ctx, row.ID, req); err != nil {
			return sprites.Info{}, err
		}
	}
	row, err = h.Store.Sprites.Update(ctx, row.ID, func(s *store.Sprite) error {
		if err := checkRevision(*s, req.Revision); err != nil {
			return err
		}
		if req.Labels != nil {
			s.Labels = slices.Clone(*req.Labels)
		}
		if req.ClearLabels {
			s.Labels = nil
		}
		if u := req.URLSettings; u != nil {
			s.URL.Auth = cmp.Or(u.Auth, s.URL.Auth)
			s.URL.PrivateAccess = cmp.Or(u.PrivateAccess, s.URL.PrivateAccess)
		}
		if req.IdleSeconds != nil {
			s.IdleSeconds = *req.IdleSeconds
		}
		if req.HibernateSeconds != nil {
			s.Hibernate = *req.HibernateSeconds
		}
		if req.Retention != nil {
			s.Retention = *req.Retention
		}
		if req.StorageMB != nil {
			s.Config.StorageMB, s.Config.StorageGB = *req.StorageMB, 0
		}
		s.UpdatedAt = time.Now()
		h.machines.heed(*s)
		return nil
	})
	if err != nil {
		h.rows.note(row.ID, func(s *store.Sprite) { h.machines.heed(*s) }) // it was perhaps not stored
		return sprites.Info{}, err
	}
	h.disk.reviewNow(ctx, row.ID)
	if req.Labels != nil || req.ClearLabels { // connectors may be granted by them
		if err := h.SyncConnectors(ctx); err != nil {
			return sprites.Info{}, err
		}
	}
	return h.info(row), nil
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
