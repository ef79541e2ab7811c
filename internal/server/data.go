package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/datafolder"
	"github.com/cove-dev/cove/internal/lib/private"
	"github.com/cove-dev/cove/internal/server/store"
	"github.com/cove-dev/cove/sprites"
)

// Lock waits lockPatience for a server that is about to end, and lastPatience for one that has
// left only its lock. It waits for a killed server until the kernel has removed the process.
const (
	lockPatience = time.Second
	lastPatience = 2 * time.Minute
	lockSilence  = 3 * time.Second // then it says for whom it waits
	lockPoll     = 50 * time.Millisecond
)

// Lock makes this process the only server of the data folder until the lock is closed. It
// makes the folder if there is none, and closes it to other users (see private.Folder). It
// waits until a killed server has ended. After some seconds it calls waits, unless that is
// nil, with the process ID. The error names the server that has the lock.
func Lock(ctx context.Context, dir string, waits func(pid int)) (io.Closer, error) {
	if _, err := private.Folder(dir); err != nil {
		return nil, err
	}
	lock, err := store.Lock(dir)
	for start := time.Now(); errors.Is(err, store.ErrLocked); {
		waited, pid := time.Since(start), datafolder.Dying(dir)
		if pid == 0 && (waited > lastPatience || waited > lockPatience && !datafolder.Gone(dir)) {
			break
		}
		if pid != 0 && waited > lockSilence && waits != nil {
			waits(pid)
			waits = nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(lockPoll):
		}
		lock, err = store.Lock(dir)
	}
	if errors.Is(err, store.ErrLocked) {
		info, infoErr := datafolder.Read(dir)
		if infoErr == nil && private.Elsewhere(info.Processes) {
			return nil, fmt.Errorf("%w: process %d of another container or machine, named %s; use cove there, or give this one another folder with --data", err, info.PID, cmp.Or(info.Host, "?"))
		}
		if infoErr == nil && info.PID > 0 {
			return nil, fmt.Errorf("%w: process %d, at %s; use that one, or give this one another folder with --data", err, info.PID, info.URL)
		}
		return nil, fmt.Errorf("%w, which is starting or stopping; try again in a moment, or give this one another folder with --data", err)
	}
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// A sprite can take each byte of the disk as soon as it is free, so a starting server may find
// no room. Therefore a server overwrites the files of the last one, and removes none:
// server.json is renamed to the spare file at the end, and back.

// publish writes the address file and server.json, which say where the server listens and
// which flags it was started with. It returns the server's part of server.json.
func publish(info sprites.ServerInfo, listens net.Addr, flags []string) (sprites.ServerInfo, error) {
	address := callable(listens)
	info.URL = "http://" + address
	if err := writeOver(filepath.Join(info.Data, datafolder.AddressFile), []byte(address+"\n")); err != nil {
		return info, fmt.Errorf("write the address: %w", err)
	}
	host, _ := os.Hostname()
	text, err := json.Marshal(datafolder.Server{
		ServerInfo: info,
		Host:       host, Processes: private.Processes(), Started: private.StartOf(info.PID),
		Listener: datafolder.Listener(address),
		Flags:    flags,
	})
	if err == nil {
		err = writeInfo(info.Data, append(text, '\n'))
	}
	if err != nil {
		return info, fmt.Errorf("write %s: %w", datafolder.ServerFile, err)
	}
	return info, nil
}

// writeInfo writes server.json into the file that the last server has left (server.json or the
// spare file).
func writeInfo(dir string, text []byte) error {
	path, spare := filepath.Join(dir, datafolder.ServerFile), filepath.Join(dir, datafolder.SpareFile)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return writeOver(path, text) // of one that was killed
	}
	if err := writeOver(spare, text); err != nil {
		return err
	}
	return os.Rename(spare, path)
}

// withdraw takes server.json away, but not the room that it has.
func withdraw(dir string) error {
	return os.Rename(filepath.Join(dir, datafolder.ServerFile), filepath.Join(dir, datafolder.SpareFile))
}

// callable is the address for calling a listener. If it listens everywhere, that is loopback.
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
		if err := atomicfile.Write(path, []byte(secret+"\n"), 0o600); err != nil {
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

// writeOver replaces the text of a small file in place, or makes the file. If the old text was
// longer, line feeds fill the rest: the file never gives room back.
func writeOver(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return atomicfile.Write(path, text, 0o600)
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		if more := info.Size() - int64(len(text)); more > 0 {
			text = append(slices.Clone(text), bytes.Repeat([]byte("\n"), int(more))...)
		}
		_, err = f.WriteAt(text, 0)
	}
	return errors.Join(err, f.Sync(), f.Close())
}
