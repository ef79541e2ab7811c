// Package archive is the portable form of a sprite: one tar, compressed by zstd. The
// tar has the sprite's settings and the difference between its disk and the base.
//
// The members are, in this order: cove.json (a Header), base.tar (an archive of the disk's
// image, if the header says so), the files below disk/, and end.json (an End). The files are
// as in a layer of an OCI image. There, .wh.NAME says that the base's NAME is deleted, and
// .wh..wh..opq that nothing of the base is seen in the folder. A folder comes before what is
// in it, and all of that before anything else. PAX records add what OCI has not.
// COVE.literal: a name that begins with .wh. is just a file's. COVE.sparse: the size of a
// file with holes. Its content here is its parts, each after its offset and its length
// (eight bytes each, big endian). COVE.xattr.HEX: an extended attribute whose name can't be
// in a SCHILY.xattr record.
package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"strings"
	"time"

	"github.com/cove-dev/cove/sprites"
)

// The formats of the archives that this package writes and reads.
const (
	Format          = 1
	FormatWithImage = 2 // the image of its base is in it
)

const (
	headerName = "cove.json"
	imageName  = "base.tar"
	diskName   = "disk"
	endName    = "end.json"
	whiteout   = ".wh."
	opaque     = ".wh..wh..opq"

	paxLiteral  = "COVE.literal"
	paxSparse   = "COVE.sparse"
	paxXattr    = "SCHILY.xattr."
	paxXattrHex = "COVE.xattr."

	maxDocument = 1 << 20 // of cove.json and end.json
)

// Header says what is in an archive.
type Header struct {
	Format     int       `json:"format"`
	Created    time.Time `json:"created"`
	Name       string    `json:"name"`
	Checkpoint string    `json:"checkpoint,omitempty"` // empty: what it was when it was exported
	Base       Base      `json:"base"`
	Settings   Settings  `json:"settings"`
}

// Base is what a disk lies on. It is not in the archive, unless that has the format
// FormatWithImage.
type Base struct {
	Name        string   `json:"name"` // host, or the digest of an image
	Fingerprint string   `json:"fingerprint"`
	Image       string   `json:"image,omitempty"` // by which reference the image was got; only a claim
	Mounts      []string `json:"mounts"`          // folders below the root that have an overlay of their own, such as usr
}

// Settings are those of a sprite, without anything secret.
type Settings struct {
	Config        *sprites.Config       `json:"config,omitempty"`
	Labels        []string              `json:"labels,omitempty"`
	Include       []string              `json:"include,omitempty"` // folders of the machine that it came from
	IdleSeconds   int64                 `json:"idle_seconds"`
	Hibernate     *int64                `json:"hibernate_seconds,omitempty"` // nil: as soon as it sleeps
	NetworkPolicy sprites.NetworkPolicy `json:"network_policy"`
	Variables     []string              `json:"variables,omitempty"`   // names of its environment
	Environment   map[string]string     `json:"environment,omitempty"` // with values, if it was asked for
}

// End says that an archive is whole.
type End struct {
	Members int64  `json:"members"` // below disk/
	Bytes   int64  `json:"bytes"`   // of their contents
	Digest  string `json:"sha256"`  // of the header, the image and the members: see digest
	LeftOut int64  `json:"left_out,omitempty"`
}

// Error refuses an archive.
type Error struct {
	Member   string // empty: it is not about one
	Why      string
	TooLarge bool // it is more than the Options allow, and may be sound
}

func (e *Error) Error() string {
	if e.Member == "" {
		return "the archive was refused: " + e.Why
	}
	return fmt.Sprintf("the archive was refused: %.300q: %s", e.Member, e.Why)
}

func refuse(member, format string, args ...any) error {
	return &Error{Member: member, Why: fmt.Sprintf(format, args...)}
}

// digest hashes members, in their order: all that matters of their headers, and their
// contents.
type digest struct{ hash.Hash }

func newDigest() digest { return digest{sha256.New()} }

func (d digest) member(h *tar.Header) error {
	records := map[string][]byte{}
	for k, v := range h.PAXRecords {
		if strings.HasPrefix(k, "COVE.") || strings.HasPrefix(k, paxXattr) {
			records[hex.EncodeToString([]byte(k))] = []byte(v)
		}
	}
	text, err := json.Marshal(struct {
		Type           byte
		Name, Link     []byte
		Mode, Size     int64
		UID, GID       int
		Seconds, Nanos int64
		Records        map[string][]byte
	}{
		Type: h.Typeflag, Name: []byte(h.Name), Link: []byte(h.Linkname), Mode: h.Mode, Size: h.Size, UID: h.Uid, GID: h.Gid,
		Seconds: h.ModTime.Unix(), Nanos: int64(h.ModTime.Nanosecond()), Records: records,
	})
	if err == nil {
		_, err = d.Write(append(text, '\n'))
	}
	return err
}

func (d digest) text() string { return hex.EncodeToString(d.Sum(nil)) }

// partHeader is what stands before each part of a file with holes.
const partHeader = 16

func putPart(b []byte, offset, size int64) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(offset))
	return binary.BigEndian.AppendUint64(b, uint64(size))
}

// carried reports whether an extended attribute is a file's own, and not the
// machine's.
func carried(name string) bool {
	switch name {
	case "security.capability", "system.posix_acl_access", "system.posix_acl_default":
		return true
	}
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.") && len(name) > len("user.")
}

// xattrRecord is the PAX record of an extended attribute.
func xattrRecord(name string) string {
	if strings.ContainsAny(name, "=\x00\n") {
		return paxXattrHex + hex.EncodeToString([]byte(name))
	}
	return paxXattr + name
}

// xattrs are a member's extended attributes.
func xattrs(h *tar.Header) (map[string]string, error) {
	all := map[string]string{}
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, paxXattr)
		if !ok {
			coded, hexed := strings.CutPrefix(k, paxXattrHex)
			if !hexed {
				continue
			}
			b, err := hex.DecodeString(coded)
			if err != nil {
				return nil, refuse(h.Name, "it has an attribute without a name")
			}
			name = string(b)
		}
		if !carried(name) || strings.ContainsRune(name, 0) {
			return nil, refuse(h.Name, "it has the attribute %.100q, which an archive may not carry", name)
		}
		all[name] = v
	}
	return all, nil
}
