package main

import (
	"strings"
	"testing"
)

// unreadable makes files and folders that only root may read. What is in shut/ nobody
// else can even reach.
const unreadable = `set -e
mkdir -p /opt/seen /tmp/seen /opt/shut
for d in /opt/seen /tmp/seen; do
	cd $d; echo x >file; chmod 600 file; mkdir -m 700 folder; ln -s file link; mkfifo -m 600 fifo
done
echo x >/opt/shut/file; chmod 700 /opt/shut`

// attributes prints what a program that may not read those files is told of attributes.
const attributes = `
import os
for path, follow in ('/opt/seen/file', True), ('/opt/seen/link', True), ('/opt/seen/link', False), ('/opt/shut/file', True), ('/opt/seen/none', True):
    for name in 'security.selinux', 'system.posix_acl_access', 'user.a':
        try: told = os.getxattr(path, name, follow_symlinks=follow).decode()
        except OSError as e: told = e.strerror
        print(os.path.basename(path), follow, name, '->', told)
`

// TestListUnreadable: ls -l looks for attributes of the files that it lists. Linux gives
// those of the kernel's own to everybody.
func TestListUnreadable(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	h.run("", "cove", "exec", "-s", "paint", "--user", "root", "--", "sh", "-c", unreadable)
	out := h.run("", "cove", "exec", "-s", "paint", "--", "sh", "-c", "ls -l /opt/seen /tmp/seen 2>&1; ls -ld /etc/shadow /root 2>&1")
	if strings.Contains(out, "denied") || strings.Count(out, " folder\n") != 2 {
		t.Errorf("ls -l prints\n%s", out)
	}
	const want = `file True security.selinux -> No data available
file True system.posix_acl_access -> Operation not supported
file True user.a -> Permission denied
link True security.selinux -> No data available
link True system.posix_acl_access -> Operation not supported
link True user.a -> Permission denied
link False security.selinux -> No data available
link False system.posix_acl_access -> Operation not supported
link False user.a -> No data available
file True security.selinux -> Permission denied
file True system.posix_acl_access -> Permission denied
file True user.a -> Permission denied
none True security.selinux -> No such file or directory
none True system.posix_acl_access -> No such file or directory
none True user.a -> No such file or directory
`
	if got := h.run("", "cove", "exec", "-s", "paint", "--", "python3", "-c", attributes); got != want {
		t.Errorf("attributes: %s", firstDifference(want, got))
	}
}
