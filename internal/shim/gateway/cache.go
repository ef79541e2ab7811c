package gateway

import (
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/publicsuffix"
)

// dnsCache keeps answers for as long as they say, within bounds, and bounds how
// many different names of one domain are asked for. The zero value is ready to use.
type dnsCache struct {
	mu      sync.Mutex
	answers map[dnsKey]answered // guarded by mu
	asked   map[string]*bucket  // by the registrable domain; guarded by mu
}

const (
	leastTTL   = 5 * time.Second
	mostTTL    = time.Hour
	noneTTL    = 10 * time.Second // of an answer that there is nothing
	maxAnswers = 4096

	// Bounds on look-ups of a domain's names that are not in the cache: as many at
	// once, and as many a second.
	lookupBurst = 200
	lookupRate  = 2
	maxDomains  = 4096
)

type dnsKey struct {
	name  string
	qtype uint16
}

// answered is an answer, with what is passed on of it.
type answered struct {
	rcode int
	rrs   []dns.RR
	until time.Time
}

// bucket is how much may be asked for now.
type bucket struct {
	left float64
	at   time.Time
}

func (c *dnsCache) get(name string, qtype uint16) (answered, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.answers[dnsKey{name, qtype}]
	return a, ok && time.Now().Before(a.until)
}

// put keeps what may be passed on of an answer, and returns it.
func (c *dnsCache) put(name string, qtype uint16, resp *dns.Msg) answered {
	a := answered{rcode: resp.Rcode}
	ttl := noneTTL
	for _, rr := range resp.Answer {
		if rr.Header().Class != dns.ClassINET || !passes(rr) {
			continue
		}
		own := min(max(time.Duration(rr.Header().Ttl)*time.Second, leastTTL), mostTTL)
		if len(a.rrs) == 0 || own < ttl {
			ttl = own
		}
		a.rrs = append(a.rrs, rr)
	}
	a.until = time.Now().Add(ttl)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers == nil {
		c.answers = make(map[dnsKey]answered)
	}
	if len(c.answers) >= maxAnswers {
		for key := range c.answers { // any one
			delete(c.answers, key)
			break
		}
	}
	c.answers[dnsKey{name, qtype}] = a
	return a
}

// passes reports whether a record is for the sandbox. It removes from the record the
// keys that would hide a server's name (ECH). It also removes address hints: the
// gateway would not know that these addresses are the server's.
func passes(rr dns.RR) bool {
	switch rr := rr.(type) {
	case *dns.A, *dns.AAAA, *dns.CNAME:
	case *dns.HTTPS:
		rr.Value = plainHints(rr.Value)
	case *dns.SVCB:
		rr.Value = plainHints(rr.Value)
	default:
		return false
	}
	return true
}

func plainHints(values []dns.SVCBKeyValue) []dns.SVCBKeyValue {
	return slices.DeleteFunc(values, func(v dns.SVCBKeyValue) bool {
		switch v.Key() {
		case dns.SVCB_ECHCONFIG, dns.SVCB_IPV4HINT, dns.SVCB_IPV6HINT:
			return true
		}
		return false
	})
}

// has reports whether there is a record of a type.
func (a answered) has(rrtype uint16) bool {
	return slices.ContainsFunc(a.rrs, func(rr dns.RR) bool { return rr.Header().Rrtype == rrtype })
}

// records are copies with the time that is left.
func (a answered) records() []dns.RR {
	left := uint32(max(time.Until(a.until), time.Second) / time.Second)
	out := make([]dns.RR, len(a.rrs))
	for i, rr := range a.rrs {
		out[i] = dns.Copy(rr)
		out[i].Header().Ttl = left
	}
	return out
}

// mayAsk reports whether a name that is not known may be looked up. Many names of
// one domain could carry data to the domain's owner.
func (c *dnsCache) mayAsk(name string) bool {
	domain, err := publicsuffix.EffectiveTLDPlusOne(name)
	if err != nil {
		domain = name
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.asked[domain]
	if b == nil {
		if c.asked == nil || len(c.asked) >= maxDomains {
			c.asked = make(map[string]*bucket)
		}
		b = &bucket{left: lookupBurst, at: now}
		c.asked[domain] = b
	}
	b.left = min(b.left+lookupRate*now.Sub(b.at).Seconds(), lookupBurst)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}
