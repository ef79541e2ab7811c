package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCachesPrune: caches that nobody uses go, also one whose size can't be told.
func TestCachesPrune(t *testing.T) {
	c := caches{dir: t.TempDir()}
	folders, release, err := c.take(t.Context(), []string{"used", "free", "deep"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folders["free"], "x"), make([]byte, 9000), 0o600); err != nil {
		t.Fatal(err)
	}
	comb := folders["deep"]
	for range 300 { // two folders in each: more than a walk has open
		if err := os.Mkdir(filepath.Join(comb, "b"), 0o700); err != nil {
			t.Fatal(err)
		}
		comb = filepath.Join(comb, "a")
		if err := os.Mkdir(comb, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	release()
	kept, release, err := c.take(t.Context(), []string{"used"})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	freed, err := c.prune(t.Context(), 0)
	if err != nil || freed < 9000 {
		t.Errorf("freed %d, %v", freed, err)
	}
	left, err := os.ReadDir(c.dir)
	if len(left) != 1 || !strings.Contains(kept["used"], left[0].Name()) || err != nil {
		t.Errorf("left %v, %v; want that of %s", left, err, kept["used"])
	}
}
