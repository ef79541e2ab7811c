#!/bin/sh
# Runs the main job on a scratch clone of this repository: it pushes a plan into a
# sandbox, has it carried out there, and pulls the commits. Nothing is left.
# usage: demo.sh DIR, the folder with the three binaries
set -eu

bin=$(cd "$1" && pwd)
repo=$(cd "$(dirname "$0")/.." && pwd)
go=${GO:-go}

die() {
	echo "demo: $*" >&2
	exit 1
}

say() { printf '\n== %s\n' "$*"; }

now() { date +%s%N; }

# took SINCE NOTE records the milliseconds since SINCE for the summary.
took() {
	printf '%8d ms  %s\n' $((($(now) - $1) / 1000000)) "$2" >>"$tmp/times"
}

git -C "$repo" rev-parse --verify -q HEAD >/dev/null || die "$repo has no commit; the demo runs in a git clone"
goroot=$($go env GOROOT)
for name in cove cove-guest cove-runsc; do
	[ -x "$bin/$name" ] || die "$bin/$name is missing; type: make build"
done

unset COVE_URL COVE_TOKEN COVE_SPRITE
tmp=$(mktemp -d "${TMPDIR:-/tmp}/cove-demo.XXXXXX")
export COVE_DATA="$tmp/data"
PATH=$bin:$PATH
server=
$go build -C "$repo" -o "$tmp/leakcheck" ./internal/test/leakcheck/cmd/leakcheck
"$tmp/leakcheck" before "$tmp/before.json"

# Files that an ordinary user's sandboxes wrote belong to that user's subordinate ids.
remove() {
	rm -rf "$1" 2>/dev/null || unshare --user --map-root-user --map-auto rm -rf "$1"
}

clean_up() {
	code=$?
	trap - EXIT INT TERM HUP
	if [ -n "$server" ]; then
		if [ "$code" -ne 0 ]; then
			echo "the server's log:" >&2
			tail -n 20 "$tmp/serve.log" >&2
		fi
		# The sandboxes would outlive the server.
		cove list --json >"$tmp/list.json" && for sprite in $(names <"$tmp/list.json"); do
			cove rm --force "$sprite" || code=1
		done
		kill -TERM "$server" 2>/dev/null || code=1
		wait "$server" 2>/dev/null || :
	fi
	if "$tmp/leakcheck" after "$tmp/before.json"; then
		[ "$code" -ne 0 ] || say "Nothing is left: no process, mount, namespace or cgroup"
	else
		code=1
	fi
	remove "$tmp" || code=1
	exit "$code"
}

# names prints the names of the sprites in a JSON list, which may be on one line.
names() { tr -d '\n' | tr '{' '\n' | sed -n 's/.*"name": *"\([a-z0-9-]*\)", *"organization".*/\1/p'; }

# field KEY prints a string of a JSON document on standard input.
field() { tr ',{}' '\n\n\n' | sed -n "s/^ *\"$1\": *\"\\([^\"]*\\)\".*/\\1/p" | head -n 1; }

trap clean_up EXIT
trap 'exit 130' INT TERM HUP

say "A server on a temporary folder"
start=$(now)
cove serve --addr 127.0.0.1:0 --data "$COVE_DATA" >"$tmp/serve.out" 2>"$tmp/serve.log" &
server=$!
until grep -q 'listening on' "$tmp/serve.out"; do
	kill -0 "$server" 2>/dev/null || die "the server ended: $(cat "$tmp/serve.log")"
	[ $((($(now) - start) / 1000000000)) -lt 600 ] || die "the server does not start"
	sleep 0.02
done
took "$start" "server start"
cat "$tmp/serve.out"

say "A scratch clone of this repository, and a plan"
git clone -q --no-hardlinks "$repo" "$tmp/clone"
cd "$tmp/clone"
git checkout -q -B demo
git config user.name "cove demo"
git config user.email demo@example.org
base=$(git rev-parse HEAD)
cat >"$tmp/plan.md" <<PLAN
# A plan in three steps

## Write down where the work was done

\`\`\`sh
mkdir -p demo
{ uname -srm; dmesg | head -n 1; } >demo/machine.txt
\`\`\`

## Run the unit tests of internal/lib/registries

\`\`\`sh
PATH=$goroot/bin:\$PATH GOTOOLCHAIN=local GOPROXY=off GOFLAGS= go test -v ./internal/lib/registries >demo/test.txt
tail -n 2 demo/test.txt
\`\`\`

## Count the packages of this repository

\`\`\`sh
git ls-files '*.go' | xargs -n 1 dirname | sort | uniq -c >demo/packages.txt
\`\`\`
PLAN
cat "$tmp/plan.md"

# The toolchain is below /usr on most machines, and so in every sprite.
set --
case $goroot in
/usr/*) ;;
*)
	cove create demo --include "$goroot"
	set -- --sprite demo
	;;
esac

say "cove push"
start=$(now)
cove push --agent shell "$@" --json "$tmp/plan.md" >"$tmp/push.json"
took "$start" "push: a sprite, the repository in it, the job started"
pushed=$(now)
job=$(field job <"$tmp/push.json")
[ -n "$job" ] || die "push printed: $(cat "$tmp/push.json")"
cat "$tmp/push.json"

cove job wait "$job" || { cove job logs "$job" >&2; die "the job did not succeed"; }
took "$pushed" "job: the three steps, and the collecting of the commits"

say "cove pull"
start=$(now)
cove pull "$job" --wait=10m
took "$start" "pull: the commits checked and fast-forwarded"

say "git log"
[ "$(git rev-list --count "$base..HEAD")" -eq 3 ] || die "three commits were to come back; these did: $(git log --oneline "$base..HEAD")"
git --no-pager log --stat --format='%h %an: %s' "$base..HEAD"
say "demo/machine.txt, written by the first step inside"
cat demo/machine.txt
say "demo/test.txt, the tests run by the second"
tail -n 2 demo/test.txt
grep -q '^ok' demo/test.txt || die "the tests did not pass"

say "Times"
cat "$tmp/times"
