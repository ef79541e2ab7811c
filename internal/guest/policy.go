package guest

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"

	"github.com/cove-dev/cove/sprites"
)

// ShowPolicy writes the network policy for those inside to read, as
// policy/network.json in Dir (protocol section 9.4). The file says what is in force
// and changes nothing about it, also if root overwrites it.
func (s *Server) ShowPolicy(p sprites.NetworkPolicy) error {
	if p.Rules == nil {
		p.Rules = []sprites.NetworkRule{}
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	dir := filepath.Join(s.Dir, "policy")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".network-") // whatever else is there, it is not opened
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Chmod(0o444), f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, "network.json"))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// postPolicy takes the policy that is in force from now on.
func (s *Server) postPolicy(w http.ResponseWriter, r *http.Request) error {
	var p sprites.NetworkPolicy
	if err := readJSON(r, &p); err != nil {
		return err
	}
	if err := s.ShowPolicy(p); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
