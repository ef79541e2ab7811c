package harness

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/guestbin"
	"github.com/cove-dev/cove/internal/lib/printable"
	"github.com/cove-dev/cove/internal/server/environment"
	"github.com/cove-dev/cove/sprites"
)

// connect sees that a server of the protocol answers. A refusal is an answer, too.
func (t *Trial) connect(ctx context.Context) (string, error) {
	info, err := t.at.Version(ctx)
	e, answered := errors.AsType[*sprites.Error](err)
	switch {
	case err == nil && info.Version != "":
		return "cove " + info.Version, nil
	case err == nil || answered && (e.Code == "backend_refused" || e.Code != "backend_unreachable" && e.StatusCode < 500):
		return "it answers", nil
	case answered:
		return "", err
	}
	return "", fail.Wrap("unreachable", err, "check that its address is right, and that this server's machine can reach it")
}

// auth sees that the token is taken.
func (t *Trial) auth(ctx context.Context) (string, error) {
	_, err := t.at.List(ctx, sprites.ListOptions{MaxResults: 1})
	if err == nil {
		return "the token is accepted", nil
	}
	if t.test.URL != "" && (errors.Is(err, sprites.ErrUnauthorized) || errors.Is(err, sprites.ErrForbidden)) {
		return "", fail.Wrap("backend_refused", fmt.Errorf("it refused the token: %w", err), "give a token that it accepts")
	}
	return "", err
}

// list looks for sprites that earlier tests have left there, and removes them.
func (t *Trial) list(ctx context.Context) (string, error) {
	if t.test.Quick {
		_, err := t.at.List(ctx, sprites.ListOptions{})
		return "the sprites are listed", err
	}
	n, err := t.h.clearAt(ctx, t.at, t.here)
	if err == nil && n > 0 {
		t.warning = "removed " + printable.Count(n, "sprite") + " that earlier tests had left"
	}
	return "the sprites are listed", err
}

// create makes the sprite, and runs a first command in it. A call that is cut may still be
// carried out: it is waited for instead.
func (t *Trial) create(ctx context.Context) (string, error) {
	req := sprites.CreateRequest{Name: t.name, Labels: []string{Label}, Config: t.job.Config}
	if t.here {
		req.Owner, req.Include = ownerPrefix+t.name, t.job.Include
	} else if err := t.note(ctx, time.Now().UTC().Add(createLimit+environment.LateLimit)); err != nil {
		return "", err
	}
	t.asked = true
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), createLimit)
	defer cancel()
	_, err := t.at.Create(whole, req)
	if err != nil {
		e, refused := errors.AsType[*sprites.Error](err)
		t.lost = !refused || e.StatusCode >= 500
		return "", err
	}
	if err := t.note(context.WithoutCancel(ctx), time.Time{}); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return "sprite " + t.name + ", and a first command in it", t.sprite.CommandContext(ctx, "true").Run()
}

// note notes the sprite, if it is at a backend, and until when that may still make it.
func (t *Trial) note(ctx context.Context, late time.Time) error {
	if t.here || t.test.Backend == "" {
		return nil
	}
	l := left{t.test.Backend, t.name, late}
	return t.h.keep(ctx, func(all []left) []left { return append(slices.DeleteFunc(all, l.is), l) })
}

// policy gives the sprite the one of a job, and sees that it is in force.
func (t *Trial) policy(ctx context.Context) (string, error) {
	rules := AgentPolicy()
	if t.job.NetworkPolicy != nil {
		rules = *t.job.NetworkPolicy
	}
	if !t.here {
		names, err := t.h.NamesOnly(ctx, rules)
		if err != nil {
			return "", err
		}
		if err := t.sprite.SetNetworkPolicy(ctx, names); err != nil {
			return "", err
		}
		got, err := t.sprite.NetworkPolicy(ctx)
		if err == nil && len(got.Rules) == 0 && len(names.Rules) > 0 {
			err = errors.New("the executor accepted the rules, but reports none")
		}
		return printable.Count(len(got.Rules), "rule") + ", read back", err
	}
	if t.job.NetworkPolicy != nil {
		return "the profile's", t.sprite.SetNetworkPolicy(ctx, rules)
	}
	return TryPolicy(ctx, t.sprite)
}

// uploadSize is more than one message of a stream has.
const uploadSize = 1 << 20

// upload writes a file, and reads it back; and brings cove-guest if the sprite has none.
func (t *Trial) upload(ctx context.Context) (string, error) {
	home, err := t.sprite.CommandContext(ctx, "sh", "-c", `printf %s "$HOME"`).Output()
	if err != nil {
		return "", err
	}
	if t.home = string(home); !strings.HasPrefix(t.home, "/") || len(t.home) > 1000 {
		return "", fmt.Errorf("the home of the sprite's user is not a usable path: %.100q", t.home)
	}
	sent := make([]byte, uploadSize)
	_, _ = rand.Read(sent) // never fails
	if err := t.sprite.WriteFile(ctx, t.dir()+"/upload", bytes.NewReader(sent), sprites.WriteOptions{}); err != nil {
		return "", err
	}
	got, err := t.sprite.ReadFile(ctx, t.dir()+"/upload")
	if err != nil {
		return "", err
	}
	if !bytes.Equal(got, sent) {
		return "", errors.New("the file that was read back is not the one that was sent")
	}
	find := guestbin.Find
	if !t.here {
		find = guestbin.Bring
	}
	if t.guest, err = find(ctx, t.sprite); err != nil {
		return "", err
	}
	if err := t.run(ctx, nil, t.guest, "version"); err != nil {
		return "", fail.Wrap("guest_failed", fmt.Errorf("start cove-guest in the sprite: %w", err), "")
	}
	return fmt.Sprintf("%d bytes, read back; cove-guest starts", uploadSize), nil
}

// dir is the test's folder inside.
func (t *Trial) dir() string { return t.home + "/.cove/" + t.name }

// run runs a command. Its output is the step's.
func (t *Trial) run(ctx context.Context, env []string, name string, args ...string) error {
	cmd := t.sprite.CommandContext(ctx, name, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, t.out, t.out
	return cmd.Run()
}

// install brings the agent.
func (t *Trial) install(ctx context.Context) (string, error) {
	work, err := t.prepare(t.models()[0])
	if err != nil {
		return "", err
	}
	if len(work.Install) == 0 {
		return "", skip("the agent %s needs no installation", t.agent.Name())
	}
	for _, argv := range work.Install {
		if err := t.run(ctx, work.Env, argv[0], argv[1:]...); err != nil {
			return "", fail.Wrap("install_failed", fmt.Errorf("install the agent %s: %w", t.agent.Name(), err), "its output says more; check that the network of the executor allows what it needs")
		}
	}
	return strings.TrimSpace("the agent " + t.agent.Name() + " " + work.Version), nil
}

// serviceName is the name of the service that a test defines.
const serviceName = "cove-test"

// portPoll is how often the service is asked for its port.
const portPoll = 100 * time.Millisecond

// service defines one that listens on loopback, and waits for its port.
func (t *Trial) service(ctx context.Context) (string, error) {
	file := t.dir() + "/port"
	err := t.sprite.PutService(ctx, sprites.Service{Name: serviceName, Cmd: t.guest, Args: []string{"answer", file}, Needs: []string{}}, sprites.Follow{})
	if err != nil {
		return "", err
	}
	tick := time.NewTicker(portPoll)
	defer tick.Stop()
	for {
		text, err := t.sprite.ReadFile(ctx, file)
		if err == nil {
			t.port, err = strconv.Atoi(string(text))
			return fmt.Sprintf("%s listens on port %d", serviceName, t.port), err
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, sprites.ErrNotFound) {
			return "", err
		}
		state, err := t.sprite.Service(ctx, serviceName)
		if err == nil && state.State.Status == sprites.ServiceFailed {
			err = fmt.Errorf("the service %s has failed: %.1000s", serviceName, state.State.Error)
		}
		if err != nil {
			return "", err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("the service %s did not report its port: %w", serviceName, ctx.Err())
		}
	}
}

// tunnel connects to the service's port.
func (t *Trial) tunnel(ctx context.Context) (string, error) {
	conn, err := t.sprite.Dial(ctx, "", t.port)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("connected to port %d inside", t.port), conn.Close()
}

// health has the service answer through the tunnel.
func (t *Trial) health(ctx context.Context) (string, error) {
	through := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return t.sprite.Dial(ctx, "", t.port) },
	}
	defer through.CloseIdleConnections()
	said := randomHex(16)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/health?echo="+url.QueryEscape(said), nil)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: through}).Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the service %s: %w", serviceName, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1000))
	if err != nil {
		return "", fmt.Errorf("ask the service %s: %w", serviceName, err)
	}
	if resp.StatusCode != http.StatusOK || string(text) != said {
		return "", fmt.Errorf("the service %s answers %d and %.100q, not what it was asked for", serviceName, resp.StatusCode, text)
	}
	return "the service answers through the tunnel", nil
}

// destroy removes the sprite, its grants and its note.
func (t *Trial) destroy(ctx context.Context) (string, error) {
	if !t.asked {
		return "", skip("nothing was made")
	}
	var errs []error
	for _, connector := range t.granted {
		err := t.h.Client.RevokeConnector(ctx, connector, cove.ConnectorGrant{Sprite: t.name})
		if err != nil && !errors.Is(err, sprites.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	err := t.at.Delete(ctx, t.name, sprites.DeleteOptions{Force: true})
	if err == nil {
		t.lost = false // it had been made
	} else if errors.Is(err, sprites.ErrNotFound) {
		err = nil
	}
	if err == nil && !t.here && t.test.Backend != "" && !t.lost {
		l := left{Backend: t.test.Backend, Sprite: t.name}
		err = t.h.keep(ctx, func(all []left) []left { return slices.DeleteFunc(all, l.is) })
	}
	if err != nil || t.lost {
		t.h.clearLater()
	}
	if err = errors.Join(append(errs, err)...); err != nil {
		return "", fail.Wrap("left", fmt.Errorf("remove the sprite %s: %w", t.name, err), t.later())
	}
	return "the sprite is gone", nil
}

// later says how a sprite that is left goes.
func (t *Trial) later() string {
	if t.test.URL != "" {
		return "test the same executor again: that removes the sprite"
	}
	return "nothing needs to be done: the server removes the sprite later, or at its next start"
}
