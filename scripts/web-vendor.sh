#!/usr/bin/env bash
# Downloads the third-party files of the web page that internal/server/web/vendor.txt lists. It refuses a package with another digest.
set -euo pipefail
cd "$(dirname "$0")/../internal/server/web"
to=$PWD/static/vendor work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
rm -rf "$to" && mkdir -p "$to"
names=$(grep -v '^#' vendor.txt | cut -d' ' -f5)
grep -v '^#' vendor.txt | while read -r package version digest file name; do
	archive=$work/$(echo "$package@$version" | tr '@/' '__').packed
	if ! test -e "$archive"; then
		(cd "$work" && mv "$(npm pack --silent "$package@$version")" "$archive")
		got=sha512-$(openssl dgst -sha512 -binary "$archive" | base64 -w0)
		[ "$got" = "$digest" ] || { echo "$package $version: its digest is $got" >&2; exit 1; }
	fi
	mkdir -p "$(dirname "$to/$name")"
	tar -xzOf "$archive" "package/$file" >"$to/$name"
done
cd "$to" && printf '%s\n' "$names" | sort | xargs sha256sum -- >../../vendor.sha256
