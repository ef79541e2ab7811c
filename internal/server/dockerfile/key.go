package dockerfile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// keyFormat changes if the same key may mean another result.
const keyFormat = 1

// Key is the cache key of what a step makes of its parent. Two steps with the same key make the
// same, as far as a build can tell. parent is the digest of the image below. content is the
// digest of what the step has from elsewhere: a Copy's files, and the stages and images of its
// mounts. The key does not depend on the values of secrets and proxies.
func Key(parent string, step Step, content string) string {
	k := struct {
		Format  int
		Parent  string
		Content string
		Config  v1.Config
		Author  string
		Run     *Run
		Copy    *Copy
		Folder  string
	}{keyFormat, parent, content, step.Config, step.Author, nil, nil, step.Folder}
	if step.Run != nil {
		r := *step.Run
		r.Proxy, k.Run = nil, &r
	}
	if step.Copy != nil {
		c := *step.Copy
		c.FromStage, c.FromImage, k.Copy = 0, "", &c // content says which files these are
	}
	text, err := json.Marshal(k)
	if err != nil {
		panic(err) // of types that JSON has
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
