//go:build deps

// Package deps keeps requirements while packages are being written.
package deps

import (
	_ "github.com/bmatcuk/doublestar/v4"
	_ "github.com/coder/websocket"
	_ "github.com/creack/pty"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/miekg/dns"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/vishvananda/netlink"
	_ "golang.org/x/net/idna"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	_ "gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	_ "modernc.org/sqlite"
)
