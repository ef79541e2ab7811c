package web

import "net/http"

// decision says whether a route needs a session that came by a link not long ago.
type decision int

const (
	asks   decision = iota // it can't be undone, opens the network, or gives rights away; so is a route without a decision
	free                   // it can be undone, takes rights away, or is the daily work that a token is for
	partly                 // some of it asks: the handler calls confirm
)

// decisions are those of all routes that change something. TestDecisions fails without one.
var decisions = map[string]decision{
	"POST /web/logout": free,

	// To answer an agent, to send it a message and to begin a job spends what the token's limits allow. A stop keeps the work.
	"POST /web/now/{id}/answer":                     free,
	"POST /web/now/{id}/send":                       free,
	"POST /web/now/{id}/seen":                       free,
	"POST /web/now/{id}/unseen":                     free,
	"POST /web/jobs/{id}/answer":                    free,
	"POST /web/jobs/{id}/send":                      free,
	"POST /web/jobs/{id}/stop":                      free,
	"POST /web/jobs/{id}/resume":                    free,
	"POST /web/jobs/{id}/retry":                     free,
	"POST /web/jobs/{id}/plan":                      free, // a form, filled in
	"POST /web/jobs/{id}/delete":                    asks,
	"POST /web/jobs/{id}/comments":                  free,
	"POST /web/jobs/{id}/comments/send":             free,
	"POST /web/jobs/{id}/comments/{comment}/delete": free, // of a few lines that nobody was sent
	"POST /web/new":                                 free, // in a sandbox of its own
	"POST /web/new/preview":                         free,
	"POST /web/first":                               free,

	// A sprite. A terminal in it can end and delete what is there: that is the verb exec.
	"POST /web/sprites/{name}/do/{deed}":                          partly, // restart, delete
	"POST /web/sprites/{name}/terminal/end":                       free,
	"POST /web/sprites/{name}/files/save":                         free,   // it overwrites only the version that the page has shown
	"POST /web/sprites/{name}/files/upload":                       partly, // over a file that is there
	"POST /web/sprites/{name}/files/do/{deed}":                    partly, // delete
	"POST /web/sprites/{name}/services/{service}/do/{deed}":       free,
	"POST /web/sprites/{name}/checkpoints":                        free,
	"POST /web/sprites/{name}/checkpoints/prune":                  partly, // not to see what would go
	"POST /web/sprites/{name}/checkpoints/{checkpoint}/do/{deed}": asks,
	"POST /web/sprites/{name}/network/allow":                      asks,
	"POST /web/sprites/{name}/network/remove":                     partly, // a rule that denies
	"POST /web/sprites/{name}/network/learn":                      asks,

	// Settings. A profile, a connector and a backend say what jobs reach; a webhook says where
	// events go.
	"POST /web/settings/test":              free,
	"POST /web/settings/profiles":          asks,
	"POST /web/settings/profiles/apply":    asks,
	"POST /web/settings/profiles/default":  free, // one of those that are there
	"POST /web/settings/profiles/delete":   asks,
	"POST /web/settings/secrets":           asks, // the value before is lost
	"POST /web/settings/secrets/delete":    asks,
	"POST /web/settings/connectors":        asks,
	"POST /web/settings/connectors/delete": asks,
	"POST /web/settings/connectors/grant":  asks,
	"POST /web/settings/connectors/revoke": free,
	"POST /web/settings/tokens":            asks,
	"POST /web/settings/tokens/delete":     asks,
	"POST /web/settings/sessions/end":      free,
	"POST /web/settings/sessions/end-all":  free,
	"POST /web/settings/images/pull":       free,
	"POST /web/settings/images/remove":     asks,
	"POST /web/settings/images/prune":      asks,
	"POST /web/settings/backends":          asks,
	"POST /web/settings/backends/delete":   asks,
	"POST /web/settings/webhooks":          asks,
	"POST /web/settings/webhooks/test":     free,
	"POST /web/settings/webhooks/delete":   asks,
	"POST /web/settings/running/destroy":   asks,
	"POST /web/settings/running/orphans":   asks,
}

// mayChange reports whether a request may change something.
func mayChange(r *http.Request) bool {
	return r.Method != http.MethodGet && r.Method != http.MethodHead
}

// decided is a route's handler, which asks before it does anything if the route's decision is so.
func (rt route) decided() handler {
	return func(v *view) error {
		if mayChange(v.r) && decisions[rt.pattern] == asks {
			if err := v.confirm(); err != nil {
				return err
			}
		}
		return rt.handle(v)
	}
}
