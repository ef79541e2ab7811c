package sprites

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"
)

// NetworkPolicy is what a sprite may reach (protocol section 9.1). Without rules
// that is every public address; with rules, what they allow. The most specific rule
// decides, whatever the order.
type NetworkPolicy struct {
	Rules  []NetworkRule  `json:"rules"`
	Limits *NetworkLimits `json:"limits,omitempty"` // cove's; nil: none

	// Revision says which policy of the sprite this is, if the server told (cove does).
	// SetNetworkPolicy replaces only the policy of this revision; empty: any.
	Revision string `json:"-"`
}

// NetworkLimits bound what a sprite does to others' networks; 0 is no limit.
type NetworkLimits struct {
	BytesPerSecond       int64 `json:"bytes_per_second,omitempty"`       // of its connections out, each way
	ConnectionsPerSecond int64 `json:"connections_per_second,omitempty"` // that it opens
}

// NetworkRule is a rule: of exactly one of Domain, CIDR and Include, and for the
// first two with an action. CIDR, Ports, Protocol, and presets other than defaults
// are cove's.
type NetworkRule struct {
	Domain   string   `json:"domain,omitempty"`   // a name, *.suffix, which is all below it, or *
	CIDR     string   `json:"cidr,omitempty"`     // an address, or a prefix such as 10.1.0.0/16
	Include  string   `json:"include,omitempty"`  // a preset: open, none, agent, defaults
	Action   string   `json:"action,omitempty"`   // allow or deny
	Ports    []string `json:"ports,omitempty"`    // such as 443 or 8000-8999; none: every port
	Protocol string   `json:"protocol,omitempty"` // tcp, which is the default, or udp
}

// PresetRules are the rules that the presets of a policy stand for on its server.
type PresetRules struct {
	Rules []NetworkRule `json:"rules"`

	// Withheld counts rules for package registries that are not among Rules, because only a
	// token with the verb admin may see them.
	Withheld int `json:"withheld,omitempty"`
}

// Presets asks a server of cove for the rules that the presets of a sprite's policy stand
// for. nil: the server does not tell.
func Presets(ctx context.Context, s *Sprite) (*PresetRules, error) {
	var answer struct {
		Presets *PresetRules `json:"presets"`
	}
	if err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("policy", "network"), Query: url.Values{"presets": {"true"}}, Retry: true}, &answer); err != nil {
		return nil, fmt.Errorf("presets of %s: %w", s.describe(), err)
	}
	return answer.Presets, nil
}

// PolicyDecision says whether a sprite may reach something.
type PolicyDecision struct {
	Target    string           `json:"target"`
	Allow     bool             `json:"allow"`
	Rule      string           `json:"rule"`                // what decided
	Hint      string           `json:"hint,omitempty"`      // of a refusal: what to do about it
	Addresses []PolicyDecision `json:"addresses,omitempty"` // of a name that is allowed: where it leads, as far as that is known
}

// NetworkEvent is something that a sprite reached, or was refused.
type NetworkEvent struct {
	Time       time.Time   `json:"time"`
	Allowed    bool        `json:"allowed,omitempty"`
	Protocol   string      `json:"protocol"`          // tcp, udp, or dns for a name
	Name       string      `json:"name,omitempty"`    // looked up or said, as far as it is known
	Address    *netip.Addr `json:"address,omitempty"` // nil for a name
	Port       int         `json:"port,omitempty"`
	Rule       string      `json:"rule"`                 // what decided
	Hint       string      `json:"hint,omitempty"`       // of a refusal: what to do about it
	Opens      string      `json:"opens,omitempty"`      // of a refusal: the rule that would allow it, as cove policy allow takes it; empty: none would
	Suppressed int         `json:"suppressed,omitempty"` // refusals before this one that were not kept
	Process    *Process    `json:"process,omitempty"`    // of a refusal: whose it was, if the sandbox could say
}

// Process is a process in a sprite, as the sprite says: what runs there may call
// itself what it likes.
type Process struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
}

// NetworkPolicy returns what the sprite may reach, with its revision.
func (s *Sprite) NetworkPolicy(ctx context.Context) (NetworkPolicy, error) {
	var p NetworkPolicy
	var header http.Header
	if err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("policy", "network"), Retry: true, Answered: keepHeader(&header)}, &p); err != nil {
		return p, fmt.Errorf("network policy of %s: %w", s.describe(), err)
	}
	p.Revision = header.Get("ETag")
	return p, nil
}

// changeTries is how often ChangeNetworkPolicy and Change begin anew.
const changeTries = 100

// ChangeNetworkPolicy replaces the policy by the one that change makes of it, and returns
// that. If somebody else has replaced the policy meanwhile, change is called again with
// theirs, so neither change is lost. On a server that tells no revisions, one of them may be
// lost. An error of change is returned as it is, and nothing is replaced.
func (s *Sprite) ChangeNetworkPolicy(ctx context.Context, change func(NetworkPolicy) (NetworkPolicy, error)) (NetworkPolicy, error) {
	for try := 1; ; try++ {
		was, err := s.NetworkPolicy(ctx)
		if err != nil {
			return was, err
		}
		p, err := change(was)
		if err != nil {
			return was, err
		}
		p.Revision = was.Revision
		err = s.SetNetworkPolicy(ctx, p)
		if e, ok := errors.AsType[*Error](err); ok && e.StatusCode == http.StatusPreconditionFailed && try < changeTries {
			continue
		}
		return p, err
	}
}

// SetNetworkPolicy replaces the policy, at once: open connections that it does not allow
// are ended. If p has a revision and the sprite's policy has another, nothing is
// replaced, and the error is an *Error with the status 412.
func (s *Sprite) SetNetworkPolicy(ctx context.Context, p NetworkPolicy) error {
	if p.Rules == nil {
		p.Rules = []NetworkRule{}
	}
	set := Request{Method: http.MethodPost, Path: s.path("policy", "network"), JSON: p}
	if p.Revision != "" {
		set.Header = http.Header{"If-Match": {p.Revision}}
	}
	if err := s.client.Call(ctx, set, nil); err != nil {
		return fmt.Errorf("set the network policy of %s: %w", s.describe(), err)
	}
	return nil
}

// TestNetworkPolicy asks whether the sprite may reach HOST, HOST:PORT, or either
// with /udp after it; without a port, 443. Nothing is connected to.
func (s *Sprite) TestNetworkPolicy(ctx context.Context, target string) (PolicyDecision, error) {
	var d PolicyDecision
	if err := s.client.Call(ctx, Request{Method: http.MethodGet, Path: s.path("policy", "test"), Query: url.Values{"target": {target}}, Retry: true}, &d); err != nil {
		return d, fmt.Errorf("test the network policy of %s: %w", s.describe(), err)
	}
	return d, nil
}

// NetworkLogOptions select events. The zero value is all refusals so far.
type NetworkLogOptions struct {
	Connections bool      // those that were allowed too
	Since       time.Time // zero: from the beginning
	Follow      bool      // go on with what comes, until the context ends
}

// NetworkLog calls each with what the sprite was refused, oldest first, until it
// returns an error.
func (s *Sprite) NetworkLog(ctx context.Context, opts NetworkLogOptions, each func(NetworkEvent) error) error {
	query := logQuery(opts.Since, opts.Follow)
	if opts.Connections {
		query.Set("connections", "true")
	}
	if err := eachEvent(ctx, s.client, Request{Method: http.MethodGet, Path: s.path("policy", "log"), Query: query, Retry: true}, each); err != nil {
		return fmt.Errorf("network log of %s: %w", s.describe(), err)
	}
	return nil
}

func logQuery(since time.Time, follow bool) url.Values {
	query := url.Values{}
	if follow {
		query.Set("follow", "true")
	}
	if !since.IsZero() {
		query.Set("since", strconv.FormatInt(since.UnixMilli(), 10))
	}
	return query
}

// eachEvent makes a call that answers with an event a line, and calls each with
// them until it returns an error, which is eachEvent's.
func eachEvent[E any](ctx context.Context, c *Client, r Request, each func(E) error) error {
	resp, err := c.Do(ctx, r)
	if err != nil {
		return err
	}
	defer closeBody(resp.Body)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 { // a sign of life
			continue
		}
		var e E
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		if err := each(e); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return lines.Err()
}
