package hostile

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/test/e2e"
)

// evilGit replaces git in a sprite. After the job's supervisor has written a bundle with
// it, evilGit alters the bundle. Then the supervisor takes the altered one's digest.
const evilGit = `#!/bin/sh
/usr/bin/git "$@" || exit
for arg; do
	case $arg in *out.bundle*) file=$arg ;; esac
done
kind=$(cat "$(/usr/bin/git rev-parse --absolute-git-dir 2>/dev/null)/evil" 2>/dev/null)
if test -n "$kind" && test -e "$file"; then python3 /home/sprite/evil.py "$kind" "$file"; fi
`

const evilBundle = `
import hashlib, struct, sys, zlib
kind, name = sys.argv[1:]
data = open(name, 'rb').read()
head, pack = data.split(b'\n\n', 1)
lines = head.split(b'\n')
commit, ref = next(l for l in lines if b' refs/cove/' in l and l.endswith(b'/head')).split(b' ', 1)
def entry(kind, size, body):
    b, size = kind << 4 | size & 15, size >> 4
    out = b''
    while size: out, b, size = out + bytes([b | 128]), size & 127, size >> 7
    return out + bytes([b]) + body
if kind == 'elsewhere': lines.append(commit + b' refs/heads/main')
if kind == 'another': lines = [l.replace(ref, b'refs/cove/ffffff/head') for l in lines]
if kind == 'hidden': lines.append(commit + b' ' + ref + b'/../../../heads/main')
if kind == 'filter': lines = [b'# v3 git bundle', b'@object-format=sha1', b'@filter=blob:none'] + lines[1:]
if kind == 'many': lines += [b'%s refs/cove/x%d' % (commit, i) for i in range(1_000_000)]
if kind == 'cut': pack = pack[:-30]
if kind == 'bomb':
    zeros = zlib.compress(bytes(200 << 20), 1)
    body = b'PACK' + struct.pack('>II', 2, 50) + entry(3, 200 << 20, zeros) * 50
    pack = body + hashlib.sha1(body).digest()
data = b'\n'.join(lines) + b'\n\n' + pack
if kind == 'list': data = b'[bundle]\n\tversion = 1\n\tmode = all\n[bundle "x"]\n\turi = file:///etc/passwd\n'
open(name, 'wb').write(data)
`

// evilTree commits a tree that git itself would refuse.
const evilTree = `python3 - <<'end'
import subprocess
def store(kind, body):
    return subprocess.run(['git', 'hash-object', '-w', '--literally', '-t', kind, '--stdin'], input=body, stdout=subprocess.PIPE, check=True).stdout.strip().decode()
def entry(mode, name, id): return mode + b' ' + name + b'\0' + bytes.fromhex(id)
blob = store('blob', b'x')
inner = store('tree', entry(b'100644', b'config', store('blob', b'[core]\n\tfsmonitor = touch /tmp/canary\n')))
tree = %s
parent = subprocess.check_output(['git', 'rev-parse', 'HEAD']).strip().decode()
who = 'Ada <ada@example.org> 1700000000 +0000'
commit = store('commit', f'tree {store("tree", tree)}\nparent {parent}\nauthor {who}\ncommitter {who}\n\nevil\n'.encode())
subprocess.run(['git', 'update-ref', 'HEAD', commit], check=True)
end
git read-tree --empty`

// TestHostileBundles: the sprite alters the bundle that a job's commits come in (with a
// matching digest), or an agent makes bad objects. Each is rejected before a ref moves,
// and the work tree is untouched (statement 43).
func TestHostileBundles(t *testing.T) {
	h := e2e.NewGitHost(t)
	c := h.Clone("home")
	h.Write("evil/git", evilGit)
	h.Write("evil/evil.py", evilBundle)
	h.Run("", "cove", "cp", "evil/.", e2e.GitSprite+":")
	h.Run("", "cove", "exec", "-s", e2e.GitSprite, "--user", "root", "--", "install", "-m", "755", "/home/sprite/git", "/usr/local/bin/git")
	type attack struct{ name, step, says, job string }
	var attacks []*attack
	kinds := map[string]string{"elsewhere": "refs", "many": "more than", "bomb": "", "list": "not a git bundle"}
	trees := map[string]string{
		".GIT": `entry(b'40000', b'.GIT', inner)`, "a linked .git": `entry(b'120000', b'.git', blob)`,
		"a submodule's path": `entry(b'100644', b'.gitmodules', store('blob', b'[submodule "x"]\n\tpath = "sub\r"\n\turl = -u./payload\n'))`,
	}
	if e2e.Soak() { // the package's own tests have these, and many more
		maps.Copy(kinds, map[string]string{"another": "refs", "hidden": "", "filter": "asks for", "cut": "cut off"})
		maps.Copy(trees, map[string]string{"git~1": `entry(b'40000', b'git~1', inner)`, "twice": `entry(b'100644', b'x', blob) * 2`, "upwards": `entry(b'40000', b'..', inner)`})
	}
	for kind, says := range kinds {
		attacks = append(attacks, &attack{name: kind, step: "echo x > x\ngit add x\ngit commit -qm x\necho " + kind + " > .git/evil", says: says})
	}
	for name, tree := range trees {
		attacks = append(attacks, &attack{name: name, step: fmt.Sprintf(evilTree, tree)})
	}
	for _, a := range attacks {
		out := h.Run("home", "cove", "push", "--agent", "shell", "-s", e2e.GitSprite, "--json", h.Plan(a.step))
		a.job = e2e.JSONField(t, out, "job")
	}
	honest := h.Run("home", "cove", "push", "--agent", "shell", "-s", e2e.GitSprite, "--json", h.Plan("echo fine > fine"))
	state := func() string {
		return c.Git("for-each-ref") + c.Git("symbolic-ref", "HEAD") + c.Git("status", "--porcelain", "--ignored") + fmt.Sprint(e2e.TreeOf(t, h.Path("home/.git/refs"))) + h.Run("home", "find", ".git/objects")
	}
	before := state()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			h.Try("home", "cove", "job", "wait", a.job)
			out, code, peak := e2e.Peak(h, "home", "pull", a.job)
			if code != 5 || !strings.Contains(out, a.says) || !strings.Contains(out, "reject") {
				t.Errorf("code %d, want 5 and %q: %s", code, a.says, out)
			}
			if peak > 128<<20 {
				t.Errorf("it took %d MiB", peak>>20)
			}
			if after := state(); after != before {
				t.Errorf("the repository was\n%s\nand is\n%s", before, after)
			}
			if left, _ := filepath.Glob(h.Path("home/.git/cove/in-*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
	h.Run("home", "cove", "job", "wait", e2e.JSONField(t, honest, "job"))
	c.Forwarded(e2e.JSONField(t, honest, "job"))
}
