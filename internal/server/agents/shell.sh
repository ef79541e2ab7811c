#!/bin/sh
# Runs the steps of a plan: shell.sh FOLDER COUNT. Each step is FOLDER/NNN.sh or
# .bash, its commit message NNN.title, and the event of its beginning NNN.json.
# Events go to file descriptor 3, which the steps don't have.
dir=$1
count=$2
# The steps read nothing, or the terminal where there is somebody to ask.
if [ -t 0 ]; then
	exec 4<&0
else
	exec 4</dev/null
fi
n=1
while [ "$n" -le "$count" ]; do
	step=$(printf '%s/%03d' "$dir" "$n")
	cat "$step.json" >&3
	if [ -e "$step.bash" ]; then
		bash -e "$step.bash" <&4 3>&- 4<&-
	else
		sh -e "$step.sh" <&4 3>&- 4<&-
	fi
	code=$?
	if [ "$code" -eq 0 ]; then
		git -c core.hooksPath=/dev/null -c core.checkStat=default -c core.trustctime=true add --all 3>&- || code=$?
	fi
	if [ "$code" -eq 0 ] && ! git diff --cached --quiet 3>&-; then
		git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit -q --cleanup=whitespace -F "$step.title" 3>&- || code=$?
	fi
	printf '{"type":"step_end","n":%d,"exit":%d}\n' "$n" "$code" >&3
	if [ "$code" -ne 0 ]; then
		exit "$code"
	fi
	n=$((n + 1))
done
printf '{"type":"result","ok":true}\n' >&3
