package web

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1" //nolint:gosec // git's name for an object, not a protection
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"sync"

	"github.com/cove-dev/cove"
)

// sampleFiles are the repository of the first job, with the job's plan beside them.
//
//go:embed sample
var sampleFiles embed.FS

// samplePlan is the plan's file. The repository does not have it.
const samplePlan = "plan.md"

// sample is the first job: a repository of one commit, as a bundle of git's, and a plan.
type sample struct {
	Plan   string
	Files  []sampleFile
	Commit string
	bundle []byte
}

type sampleFile struct{ Name, Text string }

// firstJob is the same each time, and so is its commit.
var firstJob = sync.OnceValue(func() sample {
	s, err := makeSample(sampleFiles)
	if err != nil {
		panic(err) // the files are in the program
	}
	return s
})

func makeSample(files fs.FS) (s sample, err error) {
	entries, err := fs.ReadDir(files, "sample") // by name, as a tree of git's has them
	if err != nil {
		return s, err
	}
	var p pack
	var tree bytes.Buffer
	for _, e := range entries {
		text, err := fs.ReadFile(files, "sample/"+e.Name())
		if err != nil {
			return s, err
		}
		if e.Name() == samplePlan {
			s.Plan = string(text)
			continue
		}
		s.Files = append(s.Files, sampleFile{e.Name(), string(text)})
		id := p.add(packBlob, "blob", text)
		fmt.Fprintf(&tree, "100644 %s\x00%s", e.Name(), id[:])
	}
	root := p.add(packTree, "tree", tree.Bytes())
	const who = "cove <cove@localhost> 1767225600 +0000"
	commit := p.add(packCommit, "commit", fmt.Appendf(nil, "tree %x\nauthor %s\ncommitter %s\n\nA greeting, with a mistake in it\n", root, who, who))
	s.Commit = hex.EncodeToString(commit[:])
	s.bundle = append(fmt.Appendf(nil, "# v2 git bundle\n%s refs/cove/base\n\n", s.Commit), p.bytes()...)
	return s, nil
}

// request asks for the job. It needs no network, no key and no model.
func (s sample) request() cove.JobRequest {
	return cove.JobRequest{
		Plan:        s.Plan,
		JobSettings: cove.JobSettings{Agent: "shell", NetworkPolicy: preset("none")},
		JobSource:   cove.JobSource{PlanName: "first-job.md", Repository: "hello", RepoID: s.Commit, Branch: "main", Base: s.Commit},
	}
}

// start says that the bundle is in the sprite.
func (s sample) start() cove.JobStart {
	sum := sha256.Sum256(s.bundle)
	return cove.JobStart{BundleSHA256: hex.EncodeToString(sum[:]), BundleSize: int64(len(s.bundle))}
}

// A pack is one of git's, version 2, of whole objects (gitformat-pack).
type pack struct {
	count   uint32
	objects bytes.Buffer
}

// The types of objects in a pack.
const (
	packCommit = 1
	packTree   = 2
	packBlob   = 3
)

// add adds an object, and returns its name.
func (p *pack) add(kind byte, name string, data []byte) [sha1.Size]byte {
	p.count++
	n := len(data)
	b := kind<<4 | byte(n&15)
	for n >>= 4; n > 0; n >>= 7 {
		p.objects.WriteByte(b | 0x80)
		b = byte(n & 0x7f)
	}
	p.objects.WriteByte(b)
	zw := zlib.NewWriter(&p.objects)
	_, _ = zw.Write(data) // to memory
	_ = zw.Close()
	return sha1.Sum(append(fmt.Appendf(nil, "%s %d\x00", name, len(data)), data...)) //nolint:gosec // git's name for an object
}

func (p *pack) bytes() []byte {
	out := append([]byte("PACK"), 0, 0, 0, 2)
	out = binary.BigEndian.AppendUint32(out, p.count)
	out = append(out, p.objects.Bytes()...)
	sum := sha1.Sum(out) //nolint:gosec // the format's
	return append(out, sum[:]...)
}
