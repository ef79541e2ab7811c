package guest

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/internal/guest/wire"
	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/sprites"
)

// shown is the folder of the files that programs inside may read.
type shown struct{ dir string }

// policy writes the network policy for programs inside to read, as policy/network.json in the
// folder (protocol section 9.4). The file only shows the policy: if root overwrites the file,
// that does not change the policy.
func (s shown) policy(p sprites.NetworkPolicy) error {
	if p.Rules == nil {
		p.Rules = []sprites.NetworkRule{}
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return s.put("policy", "network.json", append(data, '\n'))
}

// gitConfig writes what git's own configuration in a sprite includes, as
// git/config in the folder: how repositories are reached through connectors.
func (s shown) gitConfig(text string) error {
	return s.put("git", "config", []byte(text))
}

// put writes a file that all inside may read to a folder in it, and replaces the old one.
func (s shown) put(folder, name string, data []byte) error {
	dir := filepath.Join(s.dir, folder)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return atomicfile.Replace(filepath.Join(dir, name), data, 0o444)
}

// ShowPolicy writes the network policy for programs inside to read, as policy/network.json in
// Dir.
func (s *Server) ShowPolicy(p sprites.NetworkPolicy) error { return shown{s.Dir}.policy(p) }

// ShowGitConfig writes what git's own configuration in a sprite includes, as
// git/config in Dir.
func (s *Server) ShowGitConfig(text string) error { return shown{s.Dir}.gitConfig(text) }

// postPolicy takes the policy that is valid from now on.
func (s shown) postPolicy(w http.ResponseWriter, r *http.Request) error {
	var p sprites.NetworkPolicy
	if err := wire.ReadLater(r, &p); err != nil {
		return err
	}
	if err := s.policy(p); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

const maxGitConfig = 1 << 20

// putGitConfig takes the configuration of git from now on.
func (s shown) putGitConfig(w http.ResponseWriter, r *http.Request) error {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxGitConfig))
	if err != nil {
		return err
	}
	if err := s.gitConfig(string(text)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
