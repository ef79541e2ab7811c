package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// bad refuses an image that is hostile or damaged.
func bad(format string, args ...any) error {
	return fail.Newf("image_bad", "", "the image was refused: "+format, args...)
}

// maxEnv is the most environment variables that a configuration may have, doubles included.
const maxEnv = 10_000

// The system and the architecture that an image must be for.
const thisOS = "linux"

var thisPlatform = v1.Platform{OS: thisOS, Architecture: runtime.GOARCH}

// document is a manifest or an index.
type document struct {
	raw    []byte
	digest v1.Hash
}

func newDocument(raw []byte) document {
	sum := sha256.Sum256(raw)
	return document{raw, v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
}

// kind tells manifests and indexes apart by what they say themselves: what a registry says
// of them is not what their digest is of.
func (d document) kind() (types.MediaType, error) {
	var head struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Manifests     json.RawMessage `json:"manifests"`
		Config        json.RawMessage `json:"config"`
		FSLayers      json.RawMessage `json:"fsLayers"`
	}
	if err := json.Unmarshal(d.raw, &head); err != nil {
		return "", bad("its manifest can't be read: %v", err)
	}
	isIndex, isImage := len(head.Manifests) > 0, len(head.Config) > 0
	switch {
	case head.SchemaVersion == 1 || len(head.FSLayers) > 0:
		return "", bad("its manifest has the format that registries gave up in 2019 (schema 1)")
	case isIndex && isImage:
		return "", bad("its manifest is both an image's and an index")
	case isIndex && (head.MediaType == "" || head.MediaType.IsIndex()):
		return types.OCIImageIndex, nil
	case isImage && (head.MediaType == "" || head.MediaType.IsImage()):
		return types.OCIManifestSchema1, nil
	}
	return "", bad("its manifest is of a kind that is not known (%.100q)", head.MediaType)
}

// choose picks the manifest of this machine's platform from an index.
func choose(d document, what string) (v1.Descriptor, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(d.raw))
	if err != nil {
		return v1.Descriptor{}, bad("its index can't be read: %v", err)
	}
	var found *v1.Descriptor
	platforms := map[string]bool{}
	for i, m := range index.Manifests {
		if m.MediaType != "" && !m.MediaType.IsImage() && !m.MediaType.IsIndex() {
			continue
		}
		if m.Platform == nil {
			if len(index.Manifests) == 1 { // its configuration says what it is for
				found = &index.Manifests[i]
			}
			continue
		}
		if m.Platform.OS != "unknown" { // so attestations say
			platforms[shown(*m.Platform)] = true
		}
		if m.Platform.OS == thisOS && m.Platform.Architecture == runtime.GOARCH {
			if found == nil || found.Platform != nil && rank(m.Platform.Variant) < rank(found.Platform.Variant) {
				found = &index.Manifests[i]
			}
		}
	}
	if found == nil {
		return v1.Descriptor{}, foreign(what, slices.Sorted(maps.Keys(platforms)))
	}
	if err := sound(*found, MaxDocument); err != nil {
		return v1.Descriptor{}, err
	}
	return *found, nil
}

// rank orders variants of an architecture: one that any of its processors runs comes first.
func rank(variant string) string {
	if variant == "v8" && runtime.GOARCH == "arm64" || variant == "v1" && runtime.GOARCH == "amd64" {
		return ""
	}
	return variant
}

// shown is a platform as people write it.
func shown(p v1.Platform) string {
	text := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		text += "/" + p.Variant
	}
	return fmt.Sprintf("%.100s", text)
}

// foreign says that an image is made for other machines only.
func foreign(what string, platforms []string) error {
	const most = 12
	list := strings.Join(platforms[:min(len(platforms), most)], ", ")
	if len(platforms) > most {
		list += ", …"
	}
	if list == "" {
		list = "nothing"
	}
	return fail.Newf("image_platform", "", "image %s is for %s; this machine is %s", what, list, shown(thisPlatform))
}

// sound checks what a descriptor says before its blob is asked for.
func sound(d v1.Descriptor, most int64) error {
	switch {
	case d.Digest.Algorithm != "sha256" || len(d.Digest.Hex) != 2*sha256.Size:
		return bad("%.200q is not a SHA-256 digest", d.Digest.String())
	case d.Size < 0 || d.Size > most:
		return bad("%s has %d bytes, at most %d are allowed", d.Digest, d.Size, most)
	}
	return nil
}

// readManifest reads a manifest, and checks what it says of blobs.
func readManifest(d document) (*v1.Manifest, error) {
	m, err := v1.ParseManifest(bytes.NewReader(d.raw))
	if err != nil {
		return nil, bad("its manifest can't be read: %v", err)
	}
	if len(m.Layers) > MaxLayers {
		return nil, bad("it has %d layers, at most %d are allowed", len(m.Layers), MaxLayers)
	}
	if m.Config.MediaType != "" && !m.Config.MediaType.IsConfig() {
		return nil, bad("it is an artifact (%.100q), and has no file system to run", m.Config.MediaType)
	}
	if err := sound(m.Config, MaxDocument); err != nil {
		return nil, err
	}
	var together int64
	for _, l := range m.Layers {
		if err := sound(l, maxBytes); err != nil {
			return nil, err
		}
		if together += l.Size; together > maxBytes {
			return nil, bad("its layers have more than %d bytes together", int64(maxBytes))
		}
		if l.MediaType != "" && !isLayer(l.MediaType) {
			return nil, bad("its layer %s is of a kind that is not known (%.100q)", l.Digest, l.MediaType)
		}
	}
	return m, nil
}

// isLayer reports whether a layer of that kind is a tar. Which compression it has is told by
// its first bytes.
func isLayer(m types.MediaType) bool {
	kind := string(m)
	return (strings.HasPrefix(kind, "application/vnd.oci.image.layer.") || strings.HasPrefix(kind, "application/vnd.docker.image.rootfs.")) &&
		strings.Contains(kind, ".tar") && !strings.Contains(kind, "encrypted")
}

// readConfig reads an image's configuration, and what it says of the layers of a manifest.
func readConfig(raw []byte, m *v1.Manifest, what string) (doc, time.Time, error) {
	c, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return doc{}, time.Time{}, bad("its configuration can't be read: %v", err)
	}
	if (c.OS != "" && c.OS != thisOS) || (c.Architecture != "" && c.Architecture != runtime.GOARCH) {
		return doc{}, time.Time{}, foreign(what, []string{shown(v1.Platform{OS: c.OS, Architecture: c.Architecture, Variant: c.Variant})})
	}
	if len(c.RootFS.DiffIDs) != len(m.Layers) {
		return doc{}, time.Time{}, bad("its configuration has another number of layers (%d) than its manifest (%d)", len(c.RootFS.DiffIDs), len(m.Layers))
	}
	if len(c.Config.Env) > maxEnv {
		return doc{}, time.Time{}, bad("it has %d environment variables, at most %d are allowed", len(c.Config.Env), maxEnv)
	}
	d := doc{ID: m.Config.Digest.String(), Config: Config{
		Env: c.Config.Env, Workdir: c.Config.WorkingDir, User: c.Config.User, StopSignal: c.Config.StopSignal,
		Shell: c.Config.Shell, Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd, Labels: c.Config.Labels,
		Ports: slices.Sorted(maps.Keys(c.Config.ExposedPorts)),
		OS:    c.OS, Architecture: c.Architecture, Variant: c.Variant,
	}}
	d.Bytes = m.Config.Size
	chain := ""
	for i, l := range m.Layers {
		diff := c.RootFS.DiffIDs[i]
		if diff.Algorithm != "sha256" {
			return doc{}, time.Time{}, bad("%.200q is not a SHA-256 digest", diff.String())
		}
		if chain == "" {
			chain = diff.String()
		} else {
			sum := sha256.Sum256([]byte(chain + " " + diff.String()))
			chain = "sha256:" + hex.EncodeToString(sum[:])
		}
		d.Layers = append(d.Layers, Layer{Digest: l.Digest.String(), DiffID: diff.String(), ChainID: chain, MediaType: string(l.MediaType), Bytes: l.Size})
		d.Bytes += l.Size
	}
	return d, c.Created.Time, nil
}
