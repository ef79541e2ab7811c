package sprite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/server/archive"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/internal/shim/base"
	"github.com/cove-dev/cove/internal/shim/layers"
	"github.com/cove-dev/cove/sprites"
)

// ImportOptions say what becomes of an archive.
type ImportOptions struct {
	Name    string   // empty: the one in the archive
	Labels  []string // those in the archive don't count: connectors are granted by labels
	MaxSize int64    // of what is unpacked; 0: most of what is free
	By      string   // the token that asks; empty: the server's owner, who has all the room that there is

	// Pull gets the image of its base, if that is not here, from the registry that the archive
	// names.
	Pull bool

	// MayBring is asked whether the image of its base may come with it, or from a registry; nil:
	// it may.
	MayBring func() error

	// Interrupt, if not nil, is called when the import is to end: what it reads from is
	// to fail.
	Interrupt func()

	// Allow is asked whether there may be a sprite of that name; nil: there may.
	Allow func(name string) error

	// MayLabel is asked, when the archive has arrived, whether the sprite may have the
	// labels; nil: it may. Import calls done when the sprite is stored or the import has
	// failed.
	MayLabel func() (done func(), err error)
}

// freeShare is how much of what is free on the disk an import may take, in percent.
const freeShare = 90

// Import makes a sprite of an archive, which may be anybody's. Before there is a
// sprite, the archive is unpacked beside the layers, and compared with its digest. The
// answer names the settings that were not taken over.
func (h *Host) Import(ctx context.Context, in io.Reader, o ImportOptions) (sprites.Imported, error) {
	disks := h.Runtime.Layers()
	if disks == nil {
		return sprites.Imported{}, fail.Newf(CodeNotAvailable, "", "this server can't import sprites")
	}
	if err := CheckLabels(o.Labels); err != nil {
		return sprites.Imported{}, err
	}
	staged, err := disks.Stage(ctx)
	if err != nil {
		return sprites.Imported{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	i := importer{store: h.Store.Sprites, images: h.Images, finish: func(bool) {}, layers: h.layers, network: h.network, disk: h.disk, disks: disks, o: o, staged: staged}
	i.claim, err = h.disk.imports.open(staged.Path, o.By, h.DiskReserve, cancel)
	if err == nil {
		defer i.claim.close() // when what was unpacked is gone
	}
	defer func() {
		if err := layers.Remove(staged.Path); err != nil { // gone, if it was adopted
			h.Logger.Error("removing an import's leftover files", "err", err)
		}
	}()
	if err != nil {
		return i.done, i.noRoom(err)
	}
	if o.Interrupt != nil {
		defer context.AfterFunc(ctx, o.Interrupt)()
	}
	done, err := i.run(ctx, in)
	i.finish(err == nil)
	if err == nil {
		done.Sprite = h.info(i.row)
	}
	if errors.Is(context.Cause(ctx), ErrNoRoom) && err != nil {
		err = ErrNoRoom // however it ended because of that
	}
	return done, i.noRoom(err)
}

// noRoom says why there is no room for an import. Other errors it returns as they are.
func (i *importer) noRoom(err error) error {
	if !errors.Is(err, ErrNoRoom) {
		return err
	}
	const full = "there is not enough space for the archive on the disk of the server: nothing was imported. %d bytes are free, and %d of them are reserved"
	if i.o.By == "" {
		return fail.Newf(CodeNoSpace, freeSome, full, i.disk.sample().avail, i.disk.reserve)
	}
	return fail.Newf(CodeNoSpace, "free some space, or import it with the server's own token; see how full the disk is: cove doctor",
		full+"; a token's imports may take a %dth of the others", i.disk.sample().avail, othersLeave*i.disk.reserve, sharePart)
}

type importer struct {
	store   *store.Sprites
	images  Images          // nil: there are none
	finish  func(used bool) // ends the use of an image that has come
	layers  *layerKeeper
	network *network
	disk    *diskWatch
	disks   LayerStore
	o       ImportOptions
	staged  layers.Dir
	claim   *claim
	row     store.Sprite
	was     string // its name in the archive, if that can be one
	done    sprites.Imported
}

func (i *importer) run(ctx context.Context, in io.Reader) (sprites.Imported, error) {
	limits, err := i.limits()
	if err != nil {
		return i.done, err
	}
	limits.Take = i.claim.take
	limits.Begin = func(head archive.Header, image io.Reader) (archive.Target, error) { return i.begin(ctx, head, image) }
	end, err := archive.Read(ctx, in, limits)
	e, refused := errors.AsType[*archive.Error](err)
	switch {
	case refused && e.TooLarge && (i.o.MaxSize == 0 || limits.MaxSize < i.o.MaxSize):
		return i.done, ErrNoRoom
	case refused:
		return i.done, fail.New(CodeRejected, e.Error()+"; nothing was imported", "")
	case err != nil:
		return i.done, fmt.Errorf("import: %w", err)
	}
	i.done.Members, i.done.Bytes = end.Members, end.Bytes
	if end.LeftOut > 0 {
		i.note("sockets and devices that were left out when it was exported: %d", end.LeftOut)
	}
	if err := i.adopt(ctx); err != nil {
		return i.done, err
	}
	return i.done, nil
}

func (i *importer) note(format string, args ...any) {
	i.done.Notes = append(i.done.Notes, fmt.Sprintf(format, args...))
}

// limits are the most that the disk can bear at the beginning. While others write to the
// disk, too, the claim says how much fits.
func (i *importer) limits() (o archive.Options, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(i.staged.Path, &st); err != nil {
		return o, fmt.Errorf("import: %w", err)
	}
	o.MaxSize = int64(st.Bavail) * st.Bsize / 100 * freeShare
	if i.o.MaxSize > 0 {
		o.MaxSize = min(o.MaxSize, i.o.MaxSize)
	}
	if st.Files > 0 { // some file systems have as many as there is room for
		o.MaxFiles = int64(st.Ffree / 100 * freeShare)
	}
	return o, nil
}

// begin makes of an archive's header what the sprite will be.
func (i *importer) begin(ctx context.Context, head archive.Header, image io.Reader) (t archive.Target, err error) {
	set := head.Settings
	name := i.o.Name
	if name == "" {
		name = head.Name
	}
	if err := CheckName(name); err != nil {
		return t, err
	}
	if i.was = "NAME"; CheckName(head.Name) == nil {
		i.was = head.Name
	}
	if i.o.Allow != nil {
		if err := i.o.Allow(name); err != nil {
			return t, err
		}
	}
	if _, err := i.store.Get(ctx, name); err == nil {
		return t, nameTaken(name)
	}
	here, err := i.base(ctx, head.Base, image)
	if err != nil {
		return t, err
	}
	if why := head.Base.Fits(here); why != "" {
		return t, fail.Newf(CodeBadRequest, "", "this machine can't run the sprite: %s", why)
	}
	i.done.SameBase = head.Base.Fingerprint == here.Fingerprint
	if !i.done.SameBase {
		i.note("it was made over another base, and now lies on this machine's; the files of the base that it has not changed are this machine's")
	}
	for _, err := range []error{checkIdle(&set.IdleSeconds), checkIdle(set.Hibernate), checkEnvironment(set.Environment)} {
		if err != nil {
			return t, &archive.Error{Why: err.Error()}
		}
	}
	i.row = store.Sprite{
		ID: randomHex(8), Name: name, MachineID: randomHex(16), Base: here.Name, Env: set.Environment, Labels: i.o.Labels,
		URL: sprites.URLSettings{Auth: "sprite"}, IdleSeconds: set.IdleSeconds, Hibernate: set.IdleSeconds, Status: sprites.StatusCold,
	}
	if set.Hibernate != nil {
		i.row.Hibernate = *set.Hibernate
	}
	i.settings(set)
	if i.row.Config.Image = ""; here.Name != defaultBase {
		i.row.Config.Image = pinned(head.Base.Image, here.Name)
	}
	if i.row.Policy, err = i.policy(ctx, set.NetworkPolicy); err != nil {
		return t, err
	}
	t = archive.Target{UserXattr: i.staged.UserXattr, Uppers: map[string]string{"": filepath.Join(i.staged.Path, "root", "upper")}}
	for _, m := range here.Mounts {
		t.Uppers[m] = filepath.Join(i.staged.Path, m, "upper")
	}
	return t, nil
}

// base is the base here that a disk which was made over another lies on: the same image, or
// else this machine's own tools. If the image is not here, it is taken from the archive, or from
// its registry.
func (i *importer) base(ctx context.Context, was archive.Base, image io.Reader) (archive.Base, error) {
	name := defaultBase
	if base.IsImage(was.Name) {
		name = was.Name
	}
	if image != nil && name == defaultBase {
		return archive.Base{}, &archive.Error{Why: "it has an image, but does not say that its disk is over one"}
	}
	here, err := i.disks.Base(ctx, name)
	if !isGone(err) {
		return here, err
	}
	switch brought, err := i.bring(ctx, was, image); {
	case err != nil:
		return here, err
	case !brought:
		ref := pinned(was.Image, name)
		hint := "get the image, and import the archive again: cove image pull " + ref
		if ref != name {
			hint += "; or let the import get it: cove import --pull < FILE"
		}
		return here, fail.Newf(CodeImageNotFound, hint+"; or export the sprite with its image: cove export "+i.was+" --with-base > FILE", "the sprite in the archive is over image %s, which is not here", ref)
	}
	return i.disks.Base(ctx, name)
}

// isGone reports whether an error is that an image is not here.
func isGone(err error) bool {
	e, ok := errors.AsType[*fail.Error](err)
	return errors.Is(err, ErrNoImage) || ok && e.Code == CodeImageNotFound
}

// bring gets the image of a base; false: nobody has said from where.
func (i *importer) bring(ctx context.Context, was archive.Base, image io.Reader) (brought bool, err error) {
	ref := pinned(was.Image, was.Name)
	all, ok := i.images.(ImageArchives)
	pull := i.o.Pull && ref != was.Name
	if !ok || image == nil && !pull {
		return false, nil
	}
	if i.o.MayBring != nil {
		if err := i.o.MayBring(); err != nil {
			return false, err
		}
	}
	if image == nil {
		return true, all.Pull(ctx, ref, was.Name)
	}
	finish, err := all.Bring(ctx, was.Name, image)
	if err != nil {
		return false, err
	}
	i.finish = finish
	i.note("its image %s has come with it, without a name; give it one: cove image tag %s NAME", was.Name, strings.TrimPrefix(was.Name, "sha256:")[:12])
	return true, nil
}

// settings takes over what this machine can give, and notes the rest.
func (i *importer) settings(set archive.Settings) {
	if c := set.Config; c != nil {
		if err := checkConfig(c); err != nil {
			i.note("its memory and CPUs are this server's default: %v", err)
		} else {
			i.row.Config = *c
		}
	}
	if len(set.Include) > 0 {
		i.note("folders of the other machine are not included: %s", listed(set.Include, maxInclude))
	}
	if len(set.Labels) > 0 && !slices.Equal(set.Labels, i.o.Labels) {
		i.note("its labels there are not taken over: %s", listed(set.Labels, maxLabels))
	}
	if missing := slices.DeleteFunc(slices.Clone(set.Variables), func(v string) bool { _, ok := set.Environment[v]; return ok }); len(missing) > 0 {
		i.note("variables of its environment are not in the archive: %s", listed(missing, maxEnv))
	}
}

// listed shows people the first names that an archive claims, and no more than most of
// them. It cuts each to the length that a file's name can have.
func listed(names []string, most int) string {
	short := make([]string, min(len(names), most))
	for n := range short {
		short[n] = fmt.Sprintf("%.255s", names[n])
	}
	return strings.Join(short, ", ")
}

// policy is a network policy without what opens addresses, or names of the host's own
// network: those are another network's here.
func (i *importer) policy(ctx context.Context, p sprites.NetworkPolicy) (sprites.NetworkPolicy, error) {
	if _, err := i.network.compile(ctx, p); err != nil {
		return p, err
	}
	var kept []sprites.NetworkRule
	for _, r := range p.Rules {
		if r.Action == "deny" || r.CIDR == "" && i.network.opensInward(ctx, i.row.Name, sprites.NetworkPolicy{Rules: []sprites.NetworkRule{r}}) == nil {
			kept = append(kept, r)
			continue
		}
		one, err := i.network.compile(ctx, sprites.NetworkPolicy{Rules: []sprites.NetworkRule{r}})
		if err != nil {
			return p, err
		}
		for _, rule := range one.Rules {
			i.note("the rule that allows %s is not taken over; to allow it here, too: cove policy allow -s %s %s", rule, i.row.Name, rule.Argument())
		}
	}
	if len(kept) == 0 && len(p.Rules) > 0 { // without rules everything public would be open
		kept = []sprites.NetworkRule{{Include: "none"}}
	}
	p.Rules = kept
	return p, nil
}

// adopt makes the sprite from the complete layer.
func (i *importer) adopt(ctx context.Context) error {
	err := i.layers.adopt(func() error {
		layer, err := i.store.NewLowest(ctx)
		if err != nil {
			return err
		}
		if err := i.disks.Adopt(ctx, i.staged, layer, i.row.Base); err != nil {
			return err
		}
		i.row.Layer = layer
		if i.o.MayLabel != nil {
			labelled, err := i.o.MayLabel()
			if err != nil {
				return err
			}
			defer labelled()
		}
		return i.store.Create(ctx, &i.row)
	})
	if errors.Is(err, store.ErrExists) {
		return nameTaken(i.row.Name)
	}
	if errors.Is(err, store.ErrNoImage) {
		return goneImage(i.row)
	}
	if err == nil {
		i.layers.listLater()
	}
	return err
}
