package dockerfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-dev/cove/internal/lib/fail"
)

// TestRefused: an instruction that can't be done is refused by name and line, before there is a step.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"FROM a\nRUN --mount=type=ssh x":                      "2: RUN --mount=type=ssh is not supported",
		"FROM a\nRUN --security=insecure x":                   "2: RUN --security=insecure is not supported",
		"FROM a\nRUN --network=host x":                        "2: RUN --network=host is not supported",
		"FROM a\nRUN --device=gpu x":                          "2: RUN --device is not supported",
		"FROM a\n\nADD https://example.org/x /x":              `3: ADD of "https://example.org/x" is not supported`,
		"FROM a\nADD git@example.org:x/y /x":                  "2: ADD of",
		"FROM a\nENV H=https://h\nADD $H/x /x":                `3: ADD of "https://h/x"`,
		"FROM a\nENV T=ssh\nRUN --mount=type=$T x":            "3: RUN --mount=type=ssh is not supported",
		"FROM a\nHEALTHCHECK --start-interval=1s CMD x":       "2: HEALTHCHECK --start-interval is not supported",
		"FROM --platform=linux/arm64 a":                       "1: FROM --platform=linux/arm64 is not supported: this machine is linux/amd64",
		"# syntax=example/other\nFROM a":                      `1: the syntax "example/other" is not supported`,
		"FROM a AS z\nCOPY --from=b x y\nFROM c AS b\nFROM z": `2: the stage "b" is not before this one (line 3)`,
		"FROM a\nCOPY --from=0 x y":                           "2: there is no stage 0 before this one",
		"FROM a\nCOPY --from=$X x y":                          `2: --from="$X" has a variable`,
		"FROM a\nCOPY --chmod=9 x y":                          "2: --chmod=9 is not a mode",
		"FROM a\nSTOPSIGNAL SIGNOT":                           `2: "SIGNOT" is not a signal`,
		"FROM a\nEXPOSE 80-9000":                              `2: "80-9000": more than 1000 ports`,
		"FROM a\nNOPE x":                                      "2: unknown instruction: NOPE",
		"FROM a\nRUN <<EOF\nx":                                "2: unterminated heredoc",
		"RUN x":                                               "1: RUN before the first FROM",
		"FROM $X":                                             "1: FROM $X names no image",
		"ARG X=1":                                             " has no FROM",
		"FROM a\nENV A=" + strings.Repeat("a", 60_000) + "\nENV A=$A$A$A$A$A":                                   "3: a word",
		"FROM a\nENV A=" + strings.Repeat("a", 1000) + " B=" + strings.Repeat("b", 1000) + "\nENV A=${A//a/$B}": "3: a word may become larger",
		"FROM a" + strings.Repeat("\nUSER x", 1000):                                                             "1001: it has more than 1000 instructions",
		"FROM a\nRUN " + strings.Repeat("x", 65_000) + "\\\n" + strings.Repeat("y", 60_000):                     "2: the instruction has more than 65536 bytes",
		"FROM a\nRUN \xff":             "is not UTF-8",
		strings.Repeat("#", MaxSize+1): "more than 1048576 bytes",
	} {
		doc, err := Parse([]byte(text), "Dockerfile")
		var stages []Stage
		if err == nil {
			stages, err = doc.Stages("", nil, amd64)
		}
		for i := range stages {
			if err == nil {
				_, err = stages[i].Steps(nil)
			}
		}
		var f *fail.Error
		if !errors.As(err, &f) || !strings.HasPrefix(f.Code, "dockerfile_") || !strings.HasPrefix(err.Error(), "Dockerfile") || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %v, want %s", text, err, want)
		}
	}
}

// TestUndeclared: an argument that no ARG declares is no error, and is named.
func TestUndeclared(t *testing.T) {
	doc := parsed(t, "ARG ONE\nFROM a\nARG TWO")
	args := map[string]string{"TOW": "1", "ONE": "2", "HTTP_PROXY": "p"}
	if _, err := doc.Stages("", args, amd64); err != nil {
		t.Error(err)
	}
	if names, declared := doc.Undeclared(args); !slices.Equal(names, []string{"TOW"}) || declared != "ONE, TWO" {
		t.Errorf("got %v of %s", names, declared)
	}
}

// TestTriggers: the base's ONBUILD runs first, and is not the image's any more.
func TestTriggers(t *testing.T) {
	base := &v1.ConfigFile{Config: v1.Config{OnBuild: []string{"ENV X=1", "RUN echo $X"}}}
	all := steps(t, "FROM a\nONBUILD USER app\nFROM b\nENV Y=$X", "", nil, base)
	if len(all) != 3 || !all[1].OnBuild || all[1].Run == nil || all[2].Config.OnBuild != nil {
		t.Errorf("got %+v", all)
	}
	all = steps(t, "FROM scratch AS a\nONBUILD USER app\nFROM a\nWORKDIR x", "", nil, nil)
	if len(all) != 2 || all[1].Config.User != "app" || all[1].Folder != "/x" {
		t.Errorf("of a stage: got %+v", all)
	}
}

// TestRun: here-documents, mounts and proxies work as in BuildKit.
func TestRun(t *testing.T) {
	all := steps(t, `FROM a
SHELL ["/bin/bash", "-c"]
RUN <<EOF
one
EOF
RUN <<-EOF
#!/usr/bin/env python
	x
EOF
RUN cat <<EOF >x
$Y
EOF
RUN --network=none --mount=type=cache,target=c,sharing=locked --mount=type=secret,id=key,mode=0440 --mount=type=secret,id=env,env=E --mount=type=tmpfs,target=/t,size=1m --mount=target=/src,source=x --mount=type=bind,from=img,target=/i x
`, "", map[string]string{"https_proxy": "p"}, nil)
	for i, want := range map[int]string{1: "one\n", 2: "/dev/pipes/EOF", 3: "cat <<EOF >x\n$Y\nEOF"} {
		if argv := all[i].Run.Argv; len(argv) != 3 || argv[0] != "/bin/bash" || argv[2] != want {
			t.Errorf("step %d: got %q, want %q", i, argv, want)
		}
	}
	if files := all[2].Run.Files; len(files) != 1 || files[0] != (File{Name: "/dev/pipes/EOF", Data: "#!/usr/bin/env python\nx\n", Mode: 0o755}) {
		t.Errorf("the script: %+v", files)
	}
	r := all[4].Run
	mode := uint32(0o440)
	want := []Mount{
		{Type: MountCache, Target: "/c", FromStage: -1, ID: "c", Sharing: "locked"},
		{Type: MountSecret, Target: "/run/secrets/key", FromStage: -1, ReadOnly: true, ID: "key", Mode: &mode},
		{Type: MountSecret, FromStage: -1, ReadOnly: true, ID: "env", Env: "E"},
		{Type: MountTmpfs, Target: "/t", FromStage: -1, Size: 1 << 20},
		{Type: MountBind, Target: "/src", FromStage: -1, Context: true, Source: "/x", ReadOnly: true},
		{Type: MountBind, Target: "/i", FromStage: -1, FromImage: "img", Source: "/", ReadOnly: true},
	}
	for i, m := range r.Mounts {
		if m.Mode != nil && *m.Mode == mode {
			m.Mode = want[i].Mode
		}
		if i >= len(want) || m != want[i] {
			t.Errorf("mount %d: got %+v", i, m)
		}
	}
	if r.Network != NetworkNone || strings.Join(r.Proxy, " ") != "HTTPS_PROXY=p https_proxy=p" || strings.Contains(strings.Join(r.Env, " "), "proxy") {
		t.Errorf("got %+v", r)
	}
	other := steps(t, "FROM a\nRUN x", "", map[string]string{"https_proxy": "other"}, nil)[0]
	plain := steps(t, "FROM a\nRUN x", "", nil, nil)[0]
	if Key("p", other, "") != Key("p", plain, "") || Key("q", plain, "") == Key("p", plain, "") || Key("p", plain, "c") == Key("p", plain, "") {
		t.Error("the key has what does not matter, or lacks what does")
	}
	given := steps(t, "FROM a\nARG A\nRUN x", "", map[string]string{"A": "1"}, nil)[1]
	if again := steps(t, "FROM a\nARG A\nRUN x", "", map[string]string{"A": "2"}, nil)[1]; Key("p", given, "") == Key("p", again, "") {
		t.Error("an argument that a RUN sees is not in the key")
	}
}

// FuzzSteps: any Dockerfile results in steps, or in an error with a code.
func FuzzSteps(f *testing.F) {
	for _, text := range []string{
		"FROM a AS b\nENV A=${B:-$C} D=${A//x/y}\nRUN <<EOF\nx\nEOF\nCOPY --from=b a b\nEXPOSE 1-3\n",
		"# escape=`\nARG X=1\nFROM $X\nONBUILD RUN [\"a\"]\nFROM scratch\nRUN --mount=type=cache,target=/x true\n",
		"FROM a\nADD --chmod=u+x <<A <<B /\nA\nB\nHEALTHCHECK CMD x\nLABEL a=b \"c d\"=e\nVOLUME [\"/x\"]\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		doc, err := Parse([]byte(text), "Dockerfile")
		var stages []Stage
		if err == nil {
			stages, err = doc.Stages("", nil, amd64)
		}
		for i := range stages {
			if err == nil {
				_, err = stages[i].Steps(&v1.ConfigFile{})
			}
		}
		if _, ok := errors.AsType[*fail.Error](err); err != nil && !ok {
			t.Errorf("%v has no code", err)
		}
	})
}

// TestRefusedPlan: if the plan of a small Dockerfile would be large, the Dockerfile is refused, by
// line, before there are steps. At the bound, a plan holds no more memory than that.
func TestRefusedPlan(t *testing.T) {
	numbered := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	half := "ENV A=" + strings.Repeat("a", 60_000) + "\nENV A=$A$A\n" // of what an environment may have
	for name, text := range map[string]string{
		"a RUN's environment":       "FROM a\n" + half + strings.Repeat("RUN x\n", 900),
		"variables that double":     "FROM a\nENV A=0123456789abcdef01234567\n" + strings.Repeat("ENV A=$A$A\n", 12) + strings.Repeat("ENV B=$A\nENV B=\n", 480),
		"stages":                    "FROM a AS first\n" + half + numbered(150, "FROM first AS s%d\n"+strings.Repeat("RUN x\n", 4)) + "FROM first\n" + numbered(150, "COPY --from=s%d / /\n"),
		"words of one COPY":         "FROM a\n" + half + "COPY " + strings.Repeat("$A ", 10_000) + "/\n",
		"arguments before any FROM": "ARG A=" + strings.Repeat("a", 60_000) + "\nARG A=$A$A\n" + numbered(900, "ARG B%d=$A\n") + "FROM a\n",
		"history of arguments":      "FROM a\nARG A=" + strings.Repeat("a", 60_000) + "\n" + strings.Repeat("RUN x\n", 900),
		"labels":                    "FROM a\n" + half + strings.Repeat("LABEL a=$A\n", 900),
	} {
		if len(text) > 300_000 {
			t.Fatalf("%s: %d bytes", name, len(text))
		}
		count := 0
		err := func() error {
			doc, err := Parse([]byte(text), "Dockerfile")
			if err != nil {
				return err
			}
			stages, err := doc.Stages("", nil, amd64)
			if err != nil {
				return err
			}
			for i := range stages {
				all, err := stages[i].Steps(nil)
				if err != nil {
					return err
				}
				for _, s := range all {
					count += cost(s)
				}
			}
			return nil
		}()
		if f, ok := errors.AsType[*fail.Error](err); !ok || f.Code != "dockerfile_bad" || !strings.Contains(f.Message, "becomes larger than 67108864 bytes") || !lineOf.MatchString(f.Message) || count > maxPlan {
			t.Errorf("%s: %d bytes of steps, %v", name, count, err)
		}
	}
	// As much as people write is far from the bound.
	text := "FROM a\n" + numbered(40, "ENV V%d=/usr/local/lib/something/of/a/usual/length\n") + strings.Repeat("RUN x\n", 900)
	if all := steps(t, text, "", nil, nil); len(all) != 940 {
		t.Errorf("%d steps", len(all))
	}
}

var lineOf = regexp.MustCompile(`^Dockerfile:[1-9][0-9]*: `)
