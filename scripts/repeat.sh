#!/bin/sh
# Runs make test again and again, beside a program that keeps one processor busy. A test that
# depends on time rather than on events fails in one of the rounds.
# usage: repeat.sh N [ARGUMENT...]; the arguments are for make: repeat.sh 10 TESTFLAGS=-shuffle=on
# The output of a failed round is kept. The exit code is 1 if a round failed.
set -u

case ${1-} in
'' | *[!0-9]* | 0*)
	echo "usage: $0 N [ARGUMENT...]: how many times, and what make is given besides test" >&2
	exit 2
	;;
esac
rounds=$1
shift
cd "$(dirname "$0")/.." || exit 1
mkdir -p .cache/repeat || exit 1
rm -f .cache/repeat/round-*.log

busy=
end() { # whatever ends this, ends that
	[ -z "$busy" ] || kill "$busy" 2>/dev/null
	busy=
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
(while kill -0 $$ 2>/dev/null; do :; done) & # not longer than this, however it ends
busy=$!

done=0 failed=0 total=0 fastest='' slowest=0
while [ "$done" -lt "$rounds" ]; do
	done=$((done + 1))
	log=.cache/repeat/round-$done.log
	began=$(date +%s)
	if ${MAKE:-make} test "$@" >"$log" 2>&1; then
		result=passed
	else
		result="FAILED ($log)"
		failed=$((failed + 1))
	fi
	took=$(($(date +%s) - began))
	total=$((total + took))
	[ -n "$fastest" ] && [ "$fastest" -le "$took" ] || fastest=$took
	[ "$slowest" -ge "$took" ] || slowest=$took
	printf 'round %d of %d: %d s, %s\n' "$done" "$rounds" "$took" "$result"
	if [ "$result" = passed ]; then
		rm -f "$log"
	else
		grep -E '^ *--- FAIL|^FAIL|left behind|^panic:' "$log" | head -n 20 | sed 's/^/    /'
	fi
done
printf '%d of %d rounds failed; a round took %d to %d s, %d s on average\n' "$failed" "$rounds" "$fastest" "$slowest" $((total / rounds))
[ "$failed" -eq 0 ]
