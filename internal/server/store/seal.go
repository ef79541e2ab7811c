package store

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-dev/cove/internal/lib/atomicfile"
	"github.com/cove-dev/cove/internal/lib/private"
)

// ErrKey says that the key of the secrets is missing, damaged, or not theirs.
var ErrKey = errors.New("the key of the secrets can't be used")

// keySize is AES-256's.
const keySize = 32

// sealVersion is bound to every sealed value, with its name.
const sealVersion = "cove secret v1\x00"

// readKey reads the key file. If others may read the file, or it is not a whole key,
// the error is ErrKey. If there is no file, it is fs.ErrNotExist.
func readKey(path string) (cipher.AEAD, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%w: %s must be a file that nobody else may read, and is %v; if nobody else has read it: chmod 600 %s", ErrKey, path, st.Mode(), path)
	}
	key, err := io.ReadAll(io.LimitReader(f, keySize+1))
	if err != nil {
		return nil, err
	}
	if len(key) != keySize {
		return nil, fmt.Errorf("%w: %s does not have the %d bytes of a key", ErrKey, path, keySize)
	}
	return newSeal(key)
}

func newSeal(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// makeKey makes the key file, and never replaces one. The key is on the disk when
// makeKey returns, because nothing that is sealed with it can be opened without it.
func makeKey(path string) (_ cipher.AEAD, err error) {
	f, err := atomicfile.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Discard()
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	if _, err := f.Write(key); err != nil {
		return nil, err
	}
	if err := f.CommitNew(0o600); err != nil {
		return nil, err
	}
	return newSeal(key)
}

// seal encrypts a value under its name; the nonce goes before it.
func seal(key cipher.AEAD, name string, value []byte) []byte {
	nonce := make([]byte, key.NonceSize(), key.NonceSize()+len(value)+key.Overhead())
	_, _ = rand.Read(nonce) // never fails
	return key.Seal(nonce, nonce, value, []byte(sealVersion+name))
}

// unseal decrypts what seal made for the same name, with the same key.
func unseal(key cipher.AEAD, name string, sealed []byte) ([]byte, error) {
	n := key.NonceSize()
	if len(sealed) < n {
		return nil, errors.New("it is cut short")
	}
	return key.Open(nil, sealed[:n], sealed[n:], []byte(sealVersion+name))
}

// keyProblem says what is the matter with a key that could not be read. It is ErrKey.
func keyProblem(path string, err error) error {
	switch {
	case errors.Is(err, ErrKey):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is gone", ErrKey, path)
	}
	return fmt.Errorf("%w: %w", ErrKey, err)
}

// A KeyError says that a store was not opened because its key is missing, damaged, or not
// the one that its rows were sealed with. It is ErrKey.
type KeyError struct {
	Dir string
	Err error
}

func (e *KeyError) Error() string { return e.Err.Error() }

// Unwrap tells a person what to do, too.
func (e *KeyError) Unwrap() []error {
	return []error{e.Err, &private.RefusedError{Dir: e.Dir, Why: "lacks the key that its secrets are sealed with", Hint: fmt.Sprintf(
		"put the right %[1]s back; or, if it is lost, move away any file in its place, and give up what was sealed with it: cove serve --data %[2]s --forget-sealed",
		filepath.Join(e.Dir, KeyFile), e.Dir)}}
}
