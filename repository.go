package cove

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// ModuleRef begins the refs of a bundle for submodules: ModuleRef+COMMIT holds the
// commit that one is at.
const ModuleRef = "refs/cove/sub/"

// The folders beside a job's bundles with the Git LFS objects that go with them:
// files named by their SHA-256.
const (
	LargeFilesIn  = "lfs-in"
	LargeFilesOut = "lfs-out"
)

// RepositoryStore is the folder in a sprite that keeps the objects that were sent of a
// repository. A later job there need not be sent them again. Its file "have" has a line for
// each commit that is there with its history, up to the cuts (shallow). A history that is
// cut elsewhere has another store. The id and the commits are those of a JobRequest and a
// JobStart. Without an id there is no store, and the result is empty.
func RepositoryStore(repoID string, shallow []string) string {
	if repoID == "" {
		return ""
	}
	cuts := slices.Sorted(slices.Values(shallow))
	sum := sha256.Sum256([]byte(repoID + "\n" + strings.Join(cuts, "\n")))
	return "/home/sprite/.cove/repositories/" + hex.EncodeToString(sum[:16])
}
