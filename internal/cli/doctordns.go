package cli

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	resolvConf = "/etc/resolv.conf"
	dnsLimit   = 3 * time.Second
)

// names checks this machine's resolvers, which look names up for sprites. It asks for the
// DNS root, so that no name has to exist. Any answer will do.
func (d *doctor) names(ctx context.Context) check {
	conf, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return check{"names", levelWarn, err.Error() + ": sprites can't look up names", "name a resolver in " + resolvConf}
	}
	return namesCheck(ctx, conf.Servers, conf.Port)
}

func namesCheck(ctx context.Context, servers []string, port string) check {
	c := check{Name: "names", Level: levelOK}
	if len(servers) == 0 {
		return check{c.Name, levelWarn, resolvConf + " names no resolver: sprites can't look up names", "name one there"}
	}
	ctx, cancel := context.WithTimeout(ctx, dnsLimit)
	defer cancel()
	silent := make([]string, len(servers))
	var wg sync.WaitGroup
	for i, server := range servers {
		wg.Go(func() {
			client := dns.Client{Timeout: dnsLimit}
			question := new(dns.Msg).SetQuestion(".", dns.TypeNS)
			if _, _, err := client.ExchangeContext(ctx, question, net.JoinHostPort(server, port)); err != nil {
				silent[i] = server
			}
		})
	}
	wg.Wait()
	if list := strings.Fields(strings.Join(silent, " ")); len(list) > 0 {
		c.Level, c.Detail = levelWarn, "no answer from the resolver "+strings.Join(list, ", nor from ")
		c.Fix = "see why it does not answer, or name another one in " + resolvConf
		if len(list) == len(servers) {
			c.Detail += ": sprites can't look up external names"
		}
		return c
	}
	c.Detail = "are looked up by " + strings.Join(servers, ", ")
	return c
}
