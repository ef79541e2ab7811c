package dockerfile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

var amd64 = v1.Platform{OS: "linux", Architecture: "amd64"}

// parsed is a Dockerfile that is right.
func parsed(t testing.TB, text string) *Document {
	t.Helper()
	d, err := Parse([]byte(text), "Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// steps are those of the target's stage, over a base for all references.
func steps(t testing.TB, text, target string, args map[string]string, base *v1.ConfigFile) []Step {
	t.Helper()
	stages, err := parsed(t, text).Stages(target, args, amd64)
	if err != nil {
		t.Fatal(err)
	}
	var all []Step
	for _, stage := range stages {
		if all, err = stage.Steps(base); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestStages(t *testing.T) {
	const text = `# syntax=docker/dockerfile:1
ARG VERSION=12
ARG IMAGE=debian:${VERSION}
FROM $IMAGE AS Base
FROM golang AS build
RUN --mount=type=bind,from=tools,target=/tools make
FROM busybox AS unused
FROM base
COPY --from=build /a /b
COPY --from=1 /a /b
COPY --from=alpine:3 /a /b
`
	for _, test := range []struct {
		target string
		args   map[string]string
		want   string
	}{
		{"", nil, "0 base debian:12 -1, 1 build golang -1, 3   0"},
		{"3", map[string]string{"VERSION": "13"}, "0 base debian:13 -1, 1 build golang -1, 3   0"},
		{"BUILD", nil, "1 build golang -1"},
		{"unused", nil, "2 unused busybox -1"},
		{"base", map[string]string{"IMAGE": "scratch"}, "0 base scratch -1"},
	} {
		stages, err := parsed(t, text).Stages(test.target, test.args, amd64)
		var all []string
		for _, s := range stages {
			all = append(all, fmt.Sprintf("%d %s %s %d", s.Index, s.Name, s.From, s.FromStage))
		}
		if got := strings.Join(all, ", "); err != nil || got != test.want {
			t.Errorf("target %q: got %s, %v, want %s", test.target, got, err, test.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	base := &v1.ConfigFile{Config: v1.Config{Env: []string{"PATH=/bin", "HOME=/root"}, WorkingDir: "srv", User: "app"}}
	all := steps(t, `
ARG GLOBAL=g
ARG UNSEEN=u
FROM x AS a
ARG GLOBAL
ARG GIVEN=default
ENV A=$GLOBAL/$GIVEN B="$UNSEEN" PATH=$PATH:/x
ENV A=changed C=$A
WORKDIR sub
RUN echo $A
FROM a
RUN ["a", "$A"]
`, "", map[string]string{"GIVEN": "given"}, base)
	run := all[len(all)-1].Run
	want := &Run{
		Argv: []string{"a", "$A"}, Dir: "/srv/sub", User: "app", Network: "default",
		Env: []string{"PATH=/bin:/x", "HOME=/root", "GLOBAL=g", "GIVEN=given", "A=changed", "B=", "C=g/given"},
	}
	if d := cmp.Diff(want, run); d != "" {
		t.Error(d)
	}
	env := all[len(all)-1].Config.Env
	if want := []string{"PATH=/bin:/x", "HOME=/root", "A=changed", "B=", "C=g/given"}; !slices.Equal(env, want) {
		t.Errorf("the image has %q, want %q", env, want)
	}
}
