package web

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestComponents: each component is shown, by itself or as a part of another, in states that have
// names, and renders in each of them.
func TestComponents(t *testing.T) {
	files, err := fs.Glob(templateFiles, "templates/components/*.html")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	missing := map[string]string{}
	for _, file := range files {
		source, err := templateFiles.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		defined := regexp.MustCompile(`{{-?\s*define "([^"]+)"`).FindAllSubmatch(source, -1)
		if len(defined) == 0 {
			t.Errorf("%s defines nothing", file)
		}
		for _, d := range defined {
			missing[string(d[1])] = file
		}
	}
	calls := regexp.MustCompile(`{{template "([^"]+)"`)
	var isShown func(name string)
	isShown = func(name string) {
		if _, ok := missing[name]; !ok {
			return
		}
		delete(missing, name)
		for _, part := range calls.FindAllStringSubmatch(templates().Lookup(name).Tree.Root.String(), -1) {
			isShown(part[1])
		}
	}
	states := map[string]bool{}
	for _, c := range shown() {
		key := c.Name + ", " + c.State
		if states[key] && c.Name != "entry" {
			t.Errorf("%s is shown twice", key)
		}
		states[key] = true
		isShown(c.Name)
		out, err := html(c.Name, c.Data)
		if err != nil || strings.Contains(out, "<img") || strings.Contains(out, "\u202e") {
			t.Errorf("%s: %v %s", key, err, out)
		}
	}
	for name, file := range missing {
		t.Errorf("the component %s of %s is not shown", name, file)
	}
}

// TestVendor: the files of others that are here are exactly those of vendor.sha256. vendor.txt
// tells the package of each file.
func TestVendor(t *testing.T) {
	lines := func(file string) (all [][]string) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "#") {
				all = append(all, strings.Fields(line))
			}
		}
		return all
	}
	const dir = "static/vendor"
	origin := map[string]bool{}
	for _, l := range lines("vendor.txt") {
		if len(l) != 5 || !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(l[1]) || !strings.HasPrefix(l[2], "sha512-") {
			t.Fatalf("vendor.txt has %q", l)
		}
		origin[l[4]] = true
	}
	sums := map[string]string{}
	for _, l := range lines("vendor.sha256") {
		sums[l[1]] = l[0]
		if !origin[l[1]] {
			t.Errorf("vendor.txt does not name %s", l[1])
		}
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range there {
		origin[f.Name()] = true
	}
	for name := range origin {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := sha256.Sum256(text); hex.EncodeToString(got[:]) != sums[name] {
			t.Errorf("%s has the digest %x, and vendor.sha256 says %q", name, got, sums[name])
		}
	}
}
