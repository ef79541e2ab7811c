package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cove-dev/cove/internal/private"
	"github.com/cove-dev/cove/internal/store"
	"github.com/cove-dev/cove/sprites"
)

// The files by which a server's owner finds it.
const (
	infoFile    = "server.json"
	tokenFile   = "token"
	addressFile = "address" // outlives the server: the next one is where clients look for it
	spareFile   = "spare"   // becomes one of the others if the disk is full
)

// lockPatience is for a server that is about to end, and lastPatience for one that has been
// killed: its lock is free once the kernel is done with it, which may have to write first.
const (
	lockPatience = time.Second
	lastPatience = 30 * time.Second
)

// Lock makes this process the only server of the data folder, which is made if
// there is none and closed to other users (see private.Folder), until the lock is
// closed. The error names the server that has it.
func Lock(dir string) (io.Closer, error) {
	if _, err := private.Folder(dir); err != nil {
		return nil, err
	}
	lock, err := store.Lock(dir)
	for start := time.Now(); errors.Is(err, store.ErrLocked); {
		if waited := time.Since(start); waited > lastPatience || waited > lockPatience && !lastKilled(dir) {
			break
		}
		<-time.After(lockPatience / 20)
		lock, err = store.Lock(dir)
	}
	if errors.Is(err, store.ErrLocked) {
		var info sprites.ServerInfo
		text, _ := os.ReadFile(filepath.Join(dir, infoFile))
		if json.Unmarshal(text, &info) == nil && info.PID > 0 {
			return nil, fmt.Errorf("%w: process %d, at %s; use that one, or give this one another folder with --data", err, info.PID, info.URL)
		}
		return nil, fmt.Errorf("%w, which has only just started; use that one, or give this one another folder with --data", err)
	}
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// lastKilled reports whether the server that a data folder names is dying, or dead.
func lastKilled(dir string) bool {
	var info sprites.ServerInfo
	text, err := os.ReadFile(filepath.Join(dir, infoFile))
	if err != nil || json.Unmarshal(text, &info) != nil || info.PID <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", info.PID))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// publish reads or makes the owner's token and writes server.json. On a full disk it takes
// the spare file, so that somebody can call the server and delete something.
func (s *Server) publish(ln net.Listener) error {
	secret, err := ownerToken(filepath.Join(s.Dir, tokenFile))
	if err != nil {
		return err
	}
	s.boot = newPrincipal("owner", secret)
	address := callable(ln.Addr())
	s.url = "http://" + address
	if err := s.noteAddress([]byte(address + "\n")); err != nil {
		return fmt.Errorf("write the address: %w", err)
	}
	if _, port, err := net.SplitHostPort(ln.Addr().String()); err == nil {
		s.port.Store(port)
	}
	if err := writeJSONFile(filepath.Join(s.Dir, infoFile), sprites.ServerInfo{
		Version: s.Version, URL: s.url, Data: s.Dir, PID: os.Getpid(),
	}); err != nil {
		return err
	}
	return nil
}

// spareTries is how often the spare file is tried again on a full disk.
const spareTries = 5 * time.Second

// keepSpare makes the spare file as soon as there is room for it, until the server ends.
func (s *Server) keepSpare() {
	err := makeSpare(s.Dir)
	if err == nil {
		return
	}
	s.Logger.Warn("the data folder has no room for its spare file, without which a server may not start on a full disk", "err", err)
	tick := time.NewTicker(spareTries)
	defer tick.Stop()
	for err != nil {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
			err = makeSpare(s.Dir)
		}
	}
}

// noteAddress writes the address of this server, if it is another one than the last's.
func (s *Server) noteAddress(line []byte) error {
	path := filepath.Join(s.Dir, addressFile)
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, line) {
		return nil
	}
	return writeFile(path, line)
}

// withdraw removes server.json. On a full disk the next server may need its room.
func (s *Server) withdraw() {
	path := filepath.Join(s.Dir, infoFile)
	err := makeSpare(s.Dir)
	if err != nil {
		err = os.Rename(path, filepath.Join(s.Dir, spareFile))
	} else {
		err = os.Remove(path)
	}
	if err != nil {
		s.Logger.Warn("removing server.json", "err", err)
	}
}

// callable is the address to call a listener by: one that listens everywhere is
// called by loopback.
func callable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: tcp.Port}).String()
}

// ownerToken reads the token of the data folder's owner, or makes one.
func ownerToken(path string) (string, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		secret := newSecret()
		if err := writeFile(path, []byte(secret+"\n")); err != nil {
			return "", fmt.Errorf("write the token: %w", err)
		}
		return secret, nil
	}
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("the token in %s may be known to others (%v): delete it, and start again", path, info.Mode())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if len(secret) < 20 {
		return "", fmt.Errorf("the token in %s is too short to be safe: delete it, and start again", path)
	}
	return secret, nil
}

func writeJSONFile(path string, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		err = writeFile(path, append(b, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return nil
}

// writeFile replaces a file at once, readable by its owner alone. On a full disk the spare
// file takes its place, or else the file is overwritten: a server that is killed just then
// leaves it half-written, and the next one writes it anew.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // mode 0600
	if err == nil {
		defer func() { _ = os.Remove(f.Name()) }() // gone already if all went well
		_, err = f.Write(data)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		return os.Rename(f.Name(), path)
	}
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	spare := filepath.Join(filepath.Dir(path), spareFile)
	if overwrite(spare, data) == nil {
		return os.Rename(spare, path)
	}
	if overwrite(path, data) == nil {
		return nil
	}
	return err
}

// overwrite writes a file in place: within its last block, it takes no room.
func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(data, 0); err == nil {
		err = errors.Join(f.Truncate(int64(len(data))), f.Sync())
	}
	return errors.Join(err, f.Close())
}

// spareSize is more than each of the small files has, and a block of most file systems.
const spareSize = 4 << 10

// makeSpare makes the spare file, if there is none that is long enough.
func makeSpare(dir string) error {
	path := filepath.Join(dir, spareFile)
	if info, err := os.Lstat(path); err == nil && info.Size() >= spareSize {
		return nil
	}
	f, err := os.CreateTemp(dir, "."+spareFile+"-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(bytes.Repeat([]byte("\n"), spareSize)) // no hole, and nothing that compresses to one
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
