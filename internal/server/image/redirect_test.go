package image

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestRedirects: a registry that has a public address redirects to no address of this machine or
// its networks, and to nothing unencrypted. One that has such an address may redirect there.
func TestRedirects(t *testing.T) {
	r := newRegistry(t)
	image := imageOf(t, layerOf(t, file("a", "1")))
	r.push(t, "x:1", image)
	dialed := map[string]bool{}
	to := ""
	s := storeIn(t, t.TempDir(), r, func(o *Options) { // all names are the test's registry
		o.Transport = &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if to != "" && strings.Contains(to, "//"+strings.TrimSuffix(strings.TrimSuffix(addr, ":443"), ":80")+"/") {
					dialed[to] = true
				}
				return new(net.Dialer).DialContext(ctx, network, r.host)
			},
		}
	})
	r.on(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if to != "" && strings.Contains(req.URL.Path, "/manifests/") {
			http.Redirect(w, req, to, http.StatusTemporaryRedirect)
			return
		}
		next.ServeHTTP(w, req)
	})
	const public = "203.0.113.5" // of nobody
	for _, host := range []string{"127.0.0.1", "127.1", "0x7f000001", "2130706433", "localhost", "a.localhost.", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "[::1]", "[::ffff:10.0.0.1]", "[fe80::1]", "[fd00:ec2::254]", "[::]"} {
		to = "https://" + host + "/secret"
		_, err := s.Pull(t.Context(), public+"/x:1", PullOptions{})
		wantCode(t, err, "image_bad", "redirects to", host, "networks")
		if dialed[to] || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("it was dialed: %v; %v", dialed[to], err)
		}
	}
	to = "http://elsewhere.invalid/x"
	_, err := s.Pull(t.Context(), public+"/x:1", PullOptions{})
	wantCode(t, err, "image_bad", "redirects to", "not encrypted")
	if dialed[to] {
		t.Error("it was dialed without encryption")
	}
	for from, host := range map[string]string{public: "storage.invalid", "10.0.0.1": "10.0.0.2"} {
		to = "https://" + host + "/loop"
		_, err = s.Pull(t.Context(), from+"/x:1", PullOptions{})
		if !dialed[to] {
			t.Errorf("from %s, %s was not dialed: %v", from, host, err)
		}
	}
	to = "https://" + public + "/v2/x/manifests/1" // which redirects to itself
	_, err = s.Pull(t.Context(), public+"/x:1", PullOptions{})
	wantCode(t, err, "registry_unreachable", "10 redirects")
	r.on(nil)
	if got, err := s.Pull(t.Context(), public+"/x:1", PullOptions{}); err != nil || got.Digest != digestOf(t, image) {
		t.Errorf("got %+v, %v", got, err)
	}
}
