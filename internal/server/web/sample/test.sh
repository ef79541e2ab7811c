#!/bin/sh
# Fails if the greeting is wrong.
for name in world Ada; do
	want="Hello, $name!" got=$(sh hello.sh "$name")
	if [ "$got" != "$want" ]; then
		echo "FAIL: got \"$got\", want \"$want\""
		exit 1
	fi
	echo "ok: $got"
done
