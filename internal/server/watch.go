package server

import (
	"encoding/json"
	"strings"

	"github.com/cove-dev/cove/sprites"
)

const (
	maxWatchPaths = 1000     // that the guest says it watches
	maxEventPath  = 16 << 10 // the kernel has none of more than 4 KiB, but what is not UTF-8 grows in JSON
)

// watchUp is for a client's messages on a watch socket. If a message can't be read, the guest
// gets an empty request, and refuses that.
func watchUp(text []byte) []byte {
	var m sprites.WatchRequest
	if json.Unmarshal(text, &m) != nil {
		m = sprites.WatchRequest{}
	}
	return encode(m)
}

var watchOps = map[sprites.WatchOp]bool{
	sprites.WatchCreate: true, sprites.WatchWrite: true, sprites.WatchRemove: true, sprites.WatchRename: true, sprites.WatchChmod: true,
}

// watchDown is for a guest's messages on a watch socket. Names of files stay as they are; a
// text is made fit to be read by people.
func watchDown(text []byte) []byte {
	var m struct {
		sprites.WatchMessage
		Paths json.RawMessage `json:"paths"`
	}
	if json.Unmarshal(text, &m) != nil {
		return nil
	}
	switch m.Type {
	case "subscribed":
		var paths []string
		err := elements(m.Paths, func(path string) bool {
			paths = append(paths, path)
			return len(paths) <= maxWatchPaths
		})
		if err != nil || len(paths) > maxWatchPaths {
			return nil
		}
		return encode(sprites.WatchMessage{Type: m.Type, Paths: paths})
	case "event":
		e := m.WatchEvent
		if e == nil || !watchOps[e.Event] || !strings.HasPrefix(e.Path, "/") || len(e.Path) > maxEventPath || e.Size < 0 {
			return nil
		}
		e.Timestamp = e.Timestamp.UTC()
		return encode(sprites.WatchMessage{Type: m.Type, WatchEvent: e})
	case "error":
		if !fileCode().MatchString(m.Code) && !plainCode().MatchString(m.Code) {
			m.Code = ""
		}
		return encode(sprites.WatchMessage{Type: m.Type, Code: m.Code, Message: clean(m.Message, maxGuestText+maxGuestPath)})
	}
	return nil
}
