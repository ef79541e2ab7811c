package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fault"
	"github.com/cove-dev/cove/internal/lib/private"
)

const plain = "plain-text-of-a-variable"

// plainIn are the files of a folder that have the plain text.
func plainIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if data, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil && bytes.Contains(data, []byte(plain)) {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestSettingsAreSealed(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	s := open(t, filepath.Join(dir, "cove.db"))
	for _, id := range []string{"a", "b"} {
		must(t, s.Jobs.Create(ctx, cove.Job{ID: id, State: cove.JobQueued}, json.RawMessage(`{"env":["`+id+`=`+plain+`"]}`)))
	}
	if got, err := s.Jobs.Settings(ctx, "b"); err != nil || string(got) != `{"env":["b=`+plain+`"]}` {
		t.Errorf("got %s, %v", got, err)
	}
	if files := plainIn(t, dir); files != nil {
		t.Errorf("these have the settings in plain text: %v", files)
	}
	// If the settings of two rows are swapped, neither opens.
	_, err := s.db.write.Exec(`CREATE TEMP TABLE was AS SELECT id, sealed FROM jobs;
		UPDATE jobs SET sealed = (SELECT sealed FROM was WHERE was.id <> jobs.id)`)
	must(t, err)
	for _, id := range []string{"a", "b"} {
		if got, err := s.Jobs.Settings(ctx, id); !errors.Is(err, ErrKey) || strings.Contains(err.Error(), plain) {
			t.Errorf("settings that were moved: got %s, %v", got, err)
		}
	}
}

// olderWithJobs makes a store of an earlier cove, with settings in plain text: of jobs, in
// free pages, and in the log. Its last process was killed.
func olderWithJobs(t *testing.T, path string) {
	t.Helper()
	all := migrations
	migrations = all[:slices.Index(all, sealedMigration)]
	defer func() { migrations = all }()
	db := &database{path: path}
	must(t, makePrivate(path))
	db.openWrite()
	must(t, db.migrate(t.Context(), false))
	settings := func(i int) string {
		return fmt.Sprintf(`{"env":["N%d=%s"],"plan":%q}`, i, plain, strings.Repeat("x", 1<<10))
	}
	tx, err := db.write.Begin()
	must(t, err)
	for i := range 200 {
		_, err := tx.Exec("INSERT INTO jobs (id, state, sprite, created_at, doc, settings) VALUES (?, 'running', 's', 1, '{}', ?)", fmt.Sprint(i), settings(i))
		must(t, err)
	}
	must(t, tx.Commit())
	_, err = db.write.Exec("DELETE FROM jobs WHERE id >= 3")
	must(t, err)
	if !logApplied(db.write) {
		t.Fatal("the log was not applied")
	}
	// Closed as by a kill: the log still says what it did.
	must(t, db.write.Close())
	for _, name := range []string{path, path + "-wal"} {
		if data, err := os.ReadFile(name); err != nil || bytes.Count(data, []byte(plain)) < 100 {
			t.Fatalf("%s has not what is looked for (%v)", name, err)
		}
	}
}

// checkSealed says what is wrong with a store that olderWithJobs made, and that was opened.
func checkSealed(t *testing.T, path string) {
	t.Helper()
	s := open(t, path)
	for i := range 3 {
		got, err := s.Jobs.Settings(t.Context(), fmt.Sprint(i))
		if err != nil || !bytes.Contains(got, fmt.Appendf(nil, `"N%d=%s"`, i, plain)) {
			t.Errorf("job %d: got %.80s, %v", i, got, err)
		}
	}
	if files := plainIn(t, filepath.Dir(path)); files != nil {
		t.Errorf("while it is open, these have plain text: %v", files)
	}
	must(t, s.Close())
	if files := plainIn(t, filepath.Dir(path)); files != nil {
		t.Errorf("these have plain text: %v", files)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || left != nil {
		t.Errorf("this is left: %v, %v", left, err)
	}
}

func TestOlderSettingsAreSealed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	olderWithJobs(t, path)
	checkSealed(t, path)
	checkSealed(t, path)
}

// TestRewriteIsOwed: if the disk has no room for the store's copy, the store gets all later
// migrations all the same. A later start that has the room rewrites it.
func TestRewriteIsOwed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cove.db")
	olderWithJobs(t, path)
	all := migrations
	migrations = slices.Clone(all)
	migrations[slices.Index(all, rewrittenMigration)] = "INSERT INTO settings (key, value) VALUES ('" + rewriteOwed + "', '')" // as with a full disk
	func() {
		defer func() { migrations = all }()
		must(t, open(t, path).Close())
	}()
	if files := plainIn(t, filepath.Dir(path)); files == nil {
		t.Fatal("the store was rewritten")
	}
	checkSealed(t, path)
	s := open(t, path)
	if _, err := s.Settings.Get(t.Context(), rewriteOwed); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is still owed: %v", err)
	}
	must(t, s.Close())
}

// TestOlderStoreElsewhere: the database may be a link to another disk, and stays one.
func TestOlderStoreElsewhere(t *testing.T) {
	there, dir := t.TempDir(), t.TempDir()
	olderWithJobs(t, filepath.Join(there, "real.db"))
	path := filepath.Join(dir, "cove.db")
	must(t, os.Symlink(filepath.Join(there, "real.db"), path))
	must(t, open(t, path).Close())
	if st, err := os.Lstat(path); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", st, err)
	}
	if files := append(plainIn(t, dir), plainIn(t, there)...); files != nil {
		t.Errorf("these have plain text: %v", files)
	}
}

// sealChild is what the child of TestSealingKilled has in its environment: the database.
const sealChild = "COVE_TEST_SEAL_CHILD"

// TestSealingKilled kills, with -9, a process that seals the settings of an older store. The
// next one finishes that.
func TestSealingKilled(t *testing.T) {
	if path := os.Getenv(sealChild); path != "" {
		open(t, path) // it is stopped in here
		t.Fatal("the point was not reached")
	}
	for _, point := range []fault.Point{fault.SettingsSealed, fault.StoreCopied, fault.StoreReplaced} {
		t.Run(string(point), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cove.db")
			olderWithJobs(t, path)
			killAt(t, "TestSealingKilled", sealChild, point, path, filepath.Join(t.TempDir(), "reached"))
			if point != fault.StoreReplaced && len(plainIn(t, filepath.Dir(path))) == 0 {
				t.Error("nothing was left to do, so this shows nothing")
			}
			must(t, Check(t.Context(), path))
			checkSealed(t, path)
		})
	}
}

// keyTrouble are ways for a key to be of no use, and what the error says.
var keyTrouble = map[string]struct {
	spoil func(t *testing.T, key string)
	want  string
}{
	"missing":  {func(t *testing.T, key string) { must(t, os.Remove(key)) }, "is gone"},
	"short":    {func(t *testing.T, key string) { must(t, os.Truncate(key, keySize-1)) }, "32 bytes"},
	"long":     {func(t *testing.T, key string) { must(t, os.Truncate(key, keySize+1)) }, "32 bytes"},
	"readable": {func(t *testing.T, key string) { must(t, os.Chmod(key, 0o644)) }, "chmod 600"},
	"another": {func(t *testing.T, key string) {
		must(t, os.WriteFile(key, bytes.Repeat([]byte{1}, keySize), 0o600))
	}, "is not the one"},
	"a folder": {func(t *testing.T, key string) {
		must(t, os.Remove(key))
		must(t, os.Mkdir(key, 0o700))
	}, KeyFile},
}

// TestKeyAtStart: if anything is sealed in a store, it is not opened without the key.
// Nothing is changed.
func TestKeyAtStart(t *testing.T) {
	for what, put := range map[string]func(*Store) error{
		"a secret": func(s *Store) error { return s.Secrets.Set(t.Context(), "a", "value") },
		"a backend": func(s *Store) error {
			return s.Backends.Put(t.Context(), "far", cove.BackendRequest{URL: "https://far.example", Token: "token"})
		},
		"a job":    func(s *Store) error { return s.Jobs.Create(t.Context(), cove.Job{ID: "a"}, nil) },
		"an older": nil,
	} {
		for name, trouble := range keyTrouble {
			t.Run(what+" "+name, func(t *testing.T) {
				dir := t.TempDir()
				path, key := filepath.Join(dir, "cove.db"), filepath.Join(dir, KeyFile)
				if put == nil { // it has a secret, and jobs that are to be sealed
					olderWithJobs(t, path)
					db := &database{path: path}
					db.openWrite()
					tx, err := db.write.BeginTx(t.Context(), nil)
					must(t, err)
					k, err := makeKey(key)
					must(t, err)
					_, err = tx.Exec("INSERT INTO secrets VALUES ('a', ?, 1, 1)", seal(k, "a", []byte("value")))
					must(t, errors.Join(err, tx.Commit(), db.write.Close()))
				} else {
					s := open(t, path)
					must(t, put(s))
					must(t, s.Close())
				}
				must(t, Check(t.Context(), path))
				trouble.spoil(t, key)
				before, _ := os.ReadFile(key)
				stored, err := os.ReadFile(path)
				must(t, err)
				_, err = Open(t.Context(), path)
				var refused *private.RefusedError
				if !errors.Is(err, ErrKey) || !errors.As(err, &refused) || !strings.Contains(err.Error(), trouble.want) || !strings.Contains(refused.Hint, "cove serve --data "+dir+" --forget-sealed") {
					t.Errorf("got %v, want one with %q, and a hint", err, trouble.want)
				}
				if err := Check(t.Context(), path); put != nil && !errors.As(err, new(*KeyError)) {
					t.Errorf("a check: got %v", err)
				}
				if after, _ := os.ReadFile(key); !bytes.Equal(after, before) {
					t.Error("the key was changed")
				}
				if after, err := os.ReadFile(path); err != nil || put != nil && !bytes.Equal(after, stored) {
					t.Errorf("the store was changed (%v)", err)
				}
			})
		}
	}
}

// TestKeyIsMade: a key is made only if there is none and nothing was sealed; else the one that
// is there is used.
func TestKeyIsMade(t *testing.T) {
	dir := t.TempDir()
	path, key := filepath.Join(dir, "cove.db"), filepath.Join(dir, KeyFile)
	s := open(t, path)
	must(t, s.Close())
	if _, err := os.Stat(key); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a key, and nothing is sealed: %v", err)
	}
	own := bytes.Repeat([]byte{7}, keySize)
	must(t, os.WriteFile(key, own, 0o600))
	s = open(t, path)
	must(t, s.Jobs.Create(t.Context(), cove.Job{ID: "a"}, nil))
	if after, err := os.ReadFile(key); err != nil || !bytes.Equal(after, own) {
		t.Errorf("the key that was there was replaced (%v)", err)
	}
	must(t, s.Close())
	for _, bad := range [][]byte{nil, own[:31]} { // also with nothing that it would open
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, KeyFile), bad, 0o600))
		if _, err := Open(t.Context(), filepath.Join(dir, "cove.db")); !errors.Is(err, ErrKey) {
			t.Errorf("a key of %d bytes: got %v", len(bad), err)
		}
	}
}

// TestForgetSealed: the values that a lost key sealed are given up on request, and no others.
func TestForgetSealed(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	path, key := filepath.Join(dir, "cove.db"), filepath.Join(dir, KeyFile)
	s := open(t, path)
	must(t, s.Secrets.Set(ctx, "a", "value"))
	must(t, s.Backends.Put(ctx, "far", cove.BackendRequest{URL: "https://far.example", Token: "token"}))
	must(t, s.Jobs.Create(ctx, cove.Job{ID: "a", State: cove.JobRunning}, json.RawMessage(`{"plan":"x"}`)))
	must(t, s.Close())
	forget := Options{ForgetSealed: true}
	s, err := forget.Open(ctx, path) // with the right key, nothing is given up
	must(t, err)
	if v, err := s.Secrets.Value(ctx, "a"); err != nil || v != "value" {
		t.Errorf("got %q, %v", v, err)
	}
	must(t, s.Close())

	must(t, os.WriteFile(key, []byte("short"), 0o600))
	if _, err := forget.Open(ctx, path); !errors.Is(err, ErrKey) {
		t.Errorf("with a damaged key, which may be mended: got %v", err)
	}
	must(t, os.Remove(key))
	s, err = forget.Open(ctx, path)
	must(t, err)
	secrets, err := s.Secrets.List(ctx)
	must(t, err)
	backends, err := s.Backends.List(ctx)
	must(t, err)
	if len(secrets)+len(backends) > 0 {
		t.Errorf("still there: %v %v", secrets, backends)
	}
	if job, err := s.Jobs.Get(ctx, "a"); err != nil || job.State != cove.JobRunning {
		t.Errorf("the job: got %v, %v", job, err)
	}
	if got, err := s.Jobs.Settings(ctx, "a"); !errors.Is(err, ErrForgotten) {
		t.Errorf("its settings: got %s, %v", got, err)
	}
	must(t, s.Secrets.Set(ctx, "a", "another"))
	must(t, s.Close())
	s = open(t, path)
	if v, err := s.Secrets.Value(ctx, "a"); err != nil || v != "another" {
		t.Errorf("got %q, %v", v, err)
	}
	must(t, s.Close())

	path = filepath.Join(t.TempDir(), "cove.db") // an older store, which has yet to be sealed
	olderWithJobs(t, path)
	db := &database{path: path}
	db.openWrite()
	_, err = db.write.Exec("INSERT INTO secrets VALUES ('a', x'00', 1, 1)")
	must(t, errors.Join(err, db.write.Close()))
	s, err = forget.Open(ctx, path)
	must(t, err)
	must(t, s.Close())
	checkSealed(t, path)
}

func TestSecretInUse(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	must(t, s.Secrets.Set(ctx, "ci", "value"))
	must(t, s.Secrets.Set(ctx, "other", "value"))
	job := cove.Job{ID: "a", State: cove.JobQueued, Secrets: []string{"ci"}}
	must(t, s.Jobs.Create(ctx, job, nil))
	must(t, s.Connectors.Put(ctx, cove.Connector{Name: "api", Headers: map[string]string{"A": "x {secret:ci}"}}))
	var used *SecretInUseError
	if err := s.Secrets.Delete(ctx, "ci", false); !errors.As(err, &used) || !errors.Is(err, ErrInUse) || fmt.Sprint(used.Jobs, used.Connectors) != "[a] [api]" {
		t.Errorf("a secret in use: got %v", err)
	}
	must(t, s.Secrets.Delete(ctx, "other", false))
	must(t, s.Connectors.Delete(ctx, "api"))
	if err := s.Secrets.Delete(ctx, "ci", false); !errors.As(err, &used) || fmt.Sprint(used.Jobs, used.Connectors) != "[a] []" {
		t.Errorf("a job's secret: got %v", err)
	}
	_, err := s.Jobs.Finish(ctx, "a", cove.JobFailed, cove.Outcome{}, nil)
	must(t, err)
	must(t, s.Secrets.Delete(ctx, "ci", false))
	if err := s.Secrets.Delete(ctx, "ci", true); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: got %v", err)
	}

	job.ID = "b"
	var missing *NoSecretError
	if err := s.Jobs.Create(ctx, job, nil); !errors.As(err, &missing) || missing.Name != "ci" {
		t.Errorf("a job without its secret: got %v", err)
	}
	if _, err := s.Jobs.Get(ctx, "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("its row is there: %v", err)
	}
	must(t, s.Secrets.Set(ctx, "ci", "value"))
	must(t, s.Jobs.Create(ctx, job, nil))
	must(t, s.Secrets.Delete(ctx, "ci", true))
}
