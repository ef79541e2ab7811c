package sprites

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// exitStatus is how a command ended.
type exitStatus struct {
	code   int
	reason string
}

// parseExit reads the payload of a StreamExit frame: one byte is the code, more
// are a big-endian number, four at most and then signed. An empty payload says
// nothing, and is an error: it must not pass for success.
func parseExit(payload []byte) (int, error) {
	if len(payload) == 0 || len(payload) > 4 {
		return 0, fmt.Errorf("exit frame of %d bytes", len(payload))
	}
	var b [4]byte
	copy(b[4-len(payload):], payload)
	return int(int32(binary.BigEndian.Uint32(b[:]))), nil
}

// parseMessage reads a text message. If b is not a JSON object with a type, it returns
// false. That is no error: both sides ignore what they don't know.
func parseMessage(b []byte) (Message, bool) {
	var m Message
	if err := json.Unmarshal(b, &m); err != nil || m.Type == "" {
		return Message{}, false
	}
	return m, true
}

// exit is the end that a text message reports, if it reports one.
func (m Message) exit() *exitStatus {
	if m.Type != "exit" {
		return nil
	}
	switch {
	case m.ExitCode != nil:
		return &exitStatus{*m.ExitCode, m.Reason}
	case m.Code != nil:
		return &exitStatus{*m.Code, m.Reason}
	}
	return nil
}
