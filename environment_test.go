package cove_test

import (
	"testing"
	"time"

	"github.com/cove-dev/cove"
)

// TestHealthWord: H1: the two signals are one word, and a detail that has both.
func TestHealthWord(t *testing.T) {
	at := time.Now()
	for _, test := range []struct {
		state        cove.EnvironmentState
		health       cove.EnvironmentHealth
		word, detail string
	}{
		{cove.EnvironmentReady, cove.EnvironmentHealth{}, "", ""},
		{cove.EnvironmentGone, cove.EnvironmentHealth{Provider: "running", CheckedAt: &at, Failures: 3}, "", ""},
		{cove.EnvironmentDestroying, cove.EnvironmentHealth{Provider: "running", CheckedAt: &at}, "", ""},
		{cove.EnvironmentReady, cove.EnvironmentHealth{Provider: "running", CheckedAt: &at}, "healthy", "the sprite is running; no job works in it"},
		{cove.EnvironmentReady, cove.EnvironmentHealth{Provider: "running", Supervisor: "answers", CheckedAt: &at}, "healthy", "the sprite is running; the supervisor answers"},
		{cove.EnvironmentReady, cove.EnvironmentHealth{Provider: "running", Supervisor: "held", CheckedAt: &at}, "healthy", "the sprite is running; the supervisor is paused with its sprite"},
		{cove.EnvironmentReady, cove.EnvironmentHealth{Provider: "running", Supervisor: "starting", CheckedAt: &at}, "healthy", "the sprite is running; the supervisor has not answered yet"},
		{cove.EnvironmentAsleep, cove.EnvironmentHealth{Provider: "warm", CheckedAt: &at}, "asleep", "the sprite is warm; no job works in it"},
		{cove.EnvironmentReady, cove.EnvironmentHealth{Provider: "running", Supervisor: "silent", CheckedAt: &at, Failures: 2}, "unknown", "the sprite is running; the supervisor does not answer"},
		{cove.EnvironmentReady, cove.EnvironmentHealth{Provider: "running", Supervisor: "silent", CheckedAt: &at, Failures: 3}, "degraded", "the sprite is running; the supervisor does not answer"},
		{cove.EnvironmentUnknown, cove.EnvironmentHealth{Provider: "unreachable", Supervisor: "silent", CheckedAt: &at, Failures: 1}, "unknown", "its backend does not answer, or refuses; the supervisor does not answer"},
		{cove.EnvironmentUnknown, cove.EnvironmentHealth{Provider: "running", CheckedAt: &at}, "unknown", "its backend does not answer, or refuses; no job works in it"}, // a job has heard it since
	} {
		if h := (cove.Environment{State: test.state, Health: test.health}).Judged().Health; h.Word != test.word || h.Detail != test.detail {
			t.Errorf("%s, %+v: got %q, %q, want %q, %q", test.state, test.health, h.Word, h.Detail, test.word, test.detail)
		}
	}
}

// TestUptime: H4: it counts from the last time that it woke, if that is known.
func TestUptime(t *testing.T) {
	now := time.Now()
	woken := now.Add(-time.Minute)
	e := cove.Environment{State: cove.EnvironmentReady, CreatedAt: now.Add(-time.Hour)}
	if up, known := e.Uptime(now); known {
		t.Errorf("one that never woke is up for %v", up)
	}
	e.WokenAt = &woken
	if up, known := e.Uptime(now); !known || up != time.Minute {
		t.Errorf("it is up for %v, %v", up, known)
	}
	e.State = cove.EnvironmentAsleep
	if up, known := e.Uptime(now); known {
		t.Errorf("one that sleeps is up for %v", up)
	}
}
