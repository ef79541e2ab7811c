package filesync

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Undone is what an undo did.
type Undone struct {
	Undid   string `json:"undid"`  // the backup that was taken back
	Backup  string `json:"backup"` // what takes the undo back in turn
	At      string `json:"at"`     // "local" or "remote"
	Root    string `json:"root"`
	Changes int64  `json:"changes"`
}

// Undo undoes the last sync of the pair, or that of backup id. The files that the sync
// replaced or deleted are as they were, and so is the base of the pair. An undo can be undone.
func (y *Sync) Undo(ctx context.Context, id string) (*Undone, error) {
	s := &session{Sync: y, ctx: ctx}
	defer s.close()
	// Either end may be the one to write to.
	y.Verb = Pull
	if err := s.open(false); err != nil {
		return nil, err
	}
	if id == "" {
		ids, err := s.ids()
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			return nil, failedf(CodeNotFound, "see: cove sync status", "there is no sync of these folders to undo")
		}
		id = ids[len(ids)-1]
	} else if err := checkID(id); err != nil {
		return nil, err
	}
	at, p, root := "local", s.local, s.localAt.Root
	list, err := backupsOf(s.local)
	if err != nil {
		return nil, err
	}
	if !hasBackup(list, id) {
		at, root = "remote", s.remoteAt.Root
		if p, err = s.writableRemote(); err != nil {
			return nil, err
		}
	}
	return s.takeBack(p, Undone{Undid: id, At: at, Root: root})
}

func hasBackup(list []Backup, id string) bool {
	for _, b := range list {
		if b.ID == id {
			return true
		}
	}
	return false
}

// writableRemote connects to the sprite's end once more, to write to its tree.
func (s *session) writableRemote() (*peer, error) {
	s.undo[len(s.undo)-1]() // the one that reads holds the lock
	s.undo = s.undo[:len(s.undo)-1]
	s.Verb = Push
	if err := s.startRemote(s.dial(), false); err != nil {
		return nil, err
	}
	return s.remote, nil
}

func (s *session) takeBack(p *peer, u Undone) (*Undone, error) {
	u.Backup = newID()
	if err := p.ask(kindUndo, undoHead{ID: u.Undid, NewID: u.Backup}); err != nil {
		return nil, err
	}
	if err := recvList(p, within(maxListBytes, func(d *dec) error { _, err := decodeWritten(d); return err })); err != nil {
		return nil, err
	}
	b, err := made(p, u.Backup)
	if err != nil {
		return nil, err
	}
	u.Changes = b.Changes
	return &u, s.restoreBase(u.Undid, u.Backup)
}

// restoreBase restores the base from before a sync. It keeps the present base, so that newID
// can be undone.
func (s *session) restoreBase(id, newID string) error {
	old := filepath.Join(s.dir, "bases", id)
	if err := os.MkdirAll(filepath.Dir(old), 0o700); err != nil {
		return err
	}
	err := os.Link(s.baseName(), filepath.Join(s.dir, "bases", newID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no sync of the pair came to its end
		return err
	}
	if err := os.Rename(old, s.baseName()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ids are the backups that syncs of the pair made, the oldest first.
func (s *session) ids() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "bases"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids, nil
}

func backupsOf(p *peer) (list []Backup, err error) {
	if err := p.ask(kindBackups, nil); err != nil {
		return nil, err
	}
	if err := p.answered(kindDone, &list); err != nil {
		return nil, err
	}
	for _, b := range list {
		if checkID(b.ID) != nil {
			return nil, rejectedf("", "%.80q is not the id of a backup", b.ID)
		}
	}
	return list, nil
}

// Backups lists what can be undone at either end, the newest first.
func (y *Sync) Backups(ctx context.Context) (local, remote []Backup, err error) {
	s := &session{Sync: y, ctx: ctx}
	defer s.close()
	y.DryRun = true
	if err := s.open(false); err != nil {
		return nil, nil, err
	}
	if local, err = backupsOf(s.local); err != nil {
		return nil, nil, err
	}
	remote, err = backupsOf(s.remote)
	return local, remote, err
}
