package main

import "testing"

// receiver reads what a client on the same machine sends, and prints the size of its
// receive buffer before and after.
const receiver = `import socket, threading
ln = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(ln.getsockname())
server, _ = ln.accept()
size = lambda: server.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
before = size()
threading.Thread(target=lambda: (client.sendall(bytes(64 << 20)), client.close())).start()
while server.recv(1 << 16): pass
print(before, size())
`

// TestReceiveBuffer checks that receive buffers in a sandbox do not grow. When gVisor
// grows one, its TCP can keep the end of a window of zero to itself, and the sender
// pauses for 200 ms: a call with 1 MiB of input took ten times as long as one with 64 KiB.
func TestReceiveBuffer(t *testing.T) {
	h := newHost(t)
	h.serve(nil)
	h.run("", "cove", "create", "paint")
	if got := h.run("", "cove", "exec", "-s", "paint", "--", "python3", "-c", receiver); got != "2097152 2097152\n" {
		t.Errorf("the receive buffer had %s bytes before and after", got)
	}
}
