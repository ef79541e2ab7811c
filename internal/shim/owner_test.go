package shim

import (
	"strings"
	"testing"

	"github.com/cove-dev/cove/internal/shim/gateway"
)

// The guest's answer about a process becomes bounded text without control
// characters.
func TestReadOwner(t *testing.T) {
	for answer, want := range map[string]gateway.Process{
		`{"name":"curl","pid":7}`:                               {Name: "curl", PID: 7},
		`{"name":"\u001b[2J\nx\u202e\ufffd","pid":7}`:           {Name: "?[2J?x??", PID: 7},
		`{"name":"` + strings.Repeat("é", 99) + `","pid":7}`:    {Name: strings.Repeat("é", 32), PID: 7},
		`{"name":"` + strings.Repeat("x", 1<<20) + `","pid":7}`: {},
		`{"name":"x","pid":0}`:                                  {},
		`{"name":"x","pid":-1}`:                                 {},
		`{"name":"x","pid":99999999}`:                           {},
		`{"name":"","pid":7}`:                                   {},
		`{"name":["x"],"pid":7}`:                                {},
		`<html>`:                                                {},
		``:                                                      {},
	} {
		got, err := readOwner(strings.NewReader(answer))
		if got != want || (err == nil) != (want.PID != 0) {
			t.Errorf("%.60s: got %+v, %v, want %+v", answer, got, err, want)
		}
	}
}
