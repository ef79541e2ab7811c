package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/boot"
	"github.com/cove-dev/cove/sprites"
)

// identity is the guest's key, incarnation and variables. If a sandbox resumes from a memory
// image, it gets another identity before anything else asks for it.
type identity struct {
	token       string
	incarnation int64
	env         map[string]string
}

// who is the guest's identity now.
func (s *Server) who() *identity {
	if id := s.identity.Load(); id != nil {
		return id
	}
	return &identity{token: s.Token, incarnation: s.Incarnation, env: s.Env}
}

// putIdentity gives a guest that was restored from memory another identity, or the same one
// again: names, environment and key. The key is not sent. The guest derives it from the key
// before and the token in the request.
func (s *Server) putIdentity(w http.ResponseWriter, r *http.Request) error {
	var cfg boot.Config
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxIdentity)).Decode(&cfg); err != nil || cfg.Token == "" {
		return wire.BadRequest("the body is not an identity")
	}
	err := errors.Join(setHostname(cfg.Hostname), setMachineID(cfg.MachineID), shown{s.Dir}.all(cfg))
	if err != nil {
		s.Logger.Warn("take up another identity", "err", err) // a sandbox without a host name is still one
	}
	s.identity.Store(&identity{token: boot.NextKey(s.who().token, cfg.Token), incarnation: cfg.Incarnation, env: cfg.Env})
	if cfg.Copied {
		if err := s.generation.renew(s.Dir); err != nil {
			s.Logger.Error("tell programs that they are copies", "err", err)
		}
		s.services.Copied() // it does not wait for them
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

const maxIdentity = 4 << 20

// showAll writes what those inside may read.
func (s shown) all(cfg boot.Config) error {
	var policy sprites.NetworkPolicy
	var err error
	if len(cfg.NetworkPolicy) > 0 {
		err = json.Unmarshal(cfg.NetworkPolicy, &policy)
	}
	return errors.Join(err, s.policy(policy), s.gitConfig(cfg.GitConfig))
}

// secretFiles identify a machine, which makes missing ones anew. If two machines had the same
// ones, each could be taken for the other.
var secretFiles = []string{"/etc/ssh/ssh_host_*_key", "/etc/ssh/ssh_host_*_key.pub", "/var/lib/systemd/random-seed", "/var/lib/dbus/machine-id"}

// forgetSecrets removes the secretFiles of the machine that this one is a copy of.
func forgetSecrets() error {
	var errs []error
	for _, pattern := range secretFiles {
		files, _ := filepath.Glob(pattern) // the patterns are right
		for _, f := range files {
			if st, err := os.Lstat(f); err == nil && st.Mode().IsRegular() {
				errs = append(errs, os.Remove(f))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("forget another machine's keys: %w", err)
	}
	return nil
}
