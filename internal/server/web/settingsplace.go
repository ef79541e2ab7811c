package web

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/internal/lib/printable"
)

// imagesPage lists images.
type imagesPage struct {
	cove.ImageList
	Rows  []imageRow
	Prune ask
	Mark  string
	rights
}

type imageRow struct {
	cove.Image
	Name string // the first of its names, or its digest
	Ask  ask
}

func imagesTab(v *view) (any, error) {
	ctx, page := v.r.Context(), imagesPage{Mark: v.session.mark(), rights: v.session.rights()}
	calls := cove.Images{Client: v.api}
	var err error
	if page.ImageList, err = calls.ListAll(ctx, false); err != nil {
		return nil, err
	}
	for i, image := range page.Images {
		row := imageRow{Image: image, Name: image.Digest}
		if len(image.Names) > 0 {
			row.Name = image.Names[0]
		}
		row.Ask = ask{
			ID: fmt.Sprintf("remove-image-%d", i), Button: "Remove", Title: "Remove " + line(row.Name) + "?", Action: "/web/settings/images/remove",
			Fields: map[string]string{"name": row.Name}, Lost: []string{"Its name, and with the last name up to " + formatBytes(image.DiskBytes) + " of layers. It can be pulled again if its registry still has it."},
		}
		page.Rows = append(page.Rows, row)
	}
	would := cove.ImagePruned{}
	if v.session.May(cove.VerbAdmin) {
		if would, err = calls.Prune(ctx, cove.ImagePruning{DryRun: true}); err != nil {
			return nil, err
		}
	}
	page.Prune = ask{
		ID: "prune", Button: fmt.Sprintf("Prune (%s)", formatBytes(would.Bytes)), Title: "Prune images?", Action: "/web/settings/images/prune",
		Lost:   []string{fmt.Sprintf("%s without a name that no sprite uses, and the caches of builds: %s.", printable.Count(len(would.Images), "image"), formatBytes(would.Bytes))},
		Choice: "Also images with a name, if no sprite uses them",
	}
	return page, nil
}

// pull is how far an image is.
type pull struct {
	Reference string
	Event     cove.ImageEvent
	Image     *cove.Image
	Error     *problem
}

// pullImage pulls an image, and streams how far it is into the element "pull".
func pullImage(v *view) error {
	f := v.r.PostForm
	p := pull{Reference: f.Get("reference")}
	return v.stream(func(ctx context.Context, s *stream) error {
		if err := s.replace("pull", "pull", p); err != nil {
			return err
		}
		image, err := cove.Images{Client: v.api}.Pull(ctx, p.Reference, func(e cove.ImageEvent) {
			p.Event = e
			_ = s.replace("pull", "pull", p) // if the page is gone, ctx ends
		})
		if err != nil {
			e := describe(err)
			p.Error = &e
		} else {
			p.Image = &image
			v.say("The image %s is there.", p.Reference)
		}
		if err := s.replace("pull", "pull", p); err != nil {
			return err
		}
		return s.send("", change{Target: "list-images", How: "inner", HTML: string(listOf(v, "images"))}, v.sayChange())
	})
}

func removeImage(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	v.say("The image %s is removed.", name)
	return cove.Images{Client: v.api}.Remove(v.r.Context(), name)
}

func pruneImages(v *view, f url.Values) error {
	gone, err := cove.Images{Client: v.api}.Prune(v.r.Context(), cove.ImagePruning{All: f.Get("force") != ""})
	v.say("Images removed: %d. That frees %s.", len(gone.Images), formatBytes(gone.Bytes))
	return err
}

// backendsPage lists backends.
type backendsPage struct {
	Backends []backendRow
	Mark     string
}

type backendRow struct {
	cove.Backend
	Status *cove.ExecutorStatus // nil: it was not asked
	Ask    ask
}

func backendsTab(v *view) (any, error) {
	ctx, page := v.r.Context(), backendsPage{Mark: v.session.mark()}
	all, err := v.api.Backends(ctx)
	if err != nil {
		return nil, err
	}
	var states []cove.ExecutorStatus
	if len(all) > 0 {
		if states, err = (cove.Executors{Client: v.api}).List(ctx); err != nil {
			return nil, err
		}
	}
	for i, b := range all {
		row := backendRow{Backend: b, Ask: ask{
			ID: fmt.Sprintf("delete-backend-%d", i), Button: "Delete", Title: "Forget the backend " + b.Name + "?", Action: "/web/settings/backends/delete",
			Fields: map[string]string{"name": b.Name}, Lost: []string{"Its token is forgotten, too. Its sprites stay there."},
		}}
		for _, s := range states {
			if s.Backend == b.Name {
				row.Status = &s
			}
		}
		page.Backends = append(page.Backends, row)
	}
	return page, nil
}

func putBackend(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	v.say("The backend %s is stored.", name)
	return v.api.PutBackend(v.r.Context(), name, cove.BackendRequest{URL: f.Get("url"), Token: f.Get("token")})
}

func deleteBackend(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	v.say("The backend %s is forgotten.", name)
	return v.api.DeleteBackend(v.r.Context(), name)
}

// webhooksPage lists webhooks.
type webhooksPage struct {
	Webhooks []webhookRow
	Events   []string
	Mark     string

	Log        string // the webhook whose deliveries are shown; empty: none
	Deliveries []cove.WebhookDelivery
}

type webhookRow struct {
	cove.Webhook
	Ask ask
}

func webhooksTab(v *view) (any, error) {
	ctx, page := v.r.Context(), webhooksPage{Mark: v.session.mark(), Events: cove.WebhookEvents, Log: cmp.Or(v.r.URL.Query().Get("log"), v.r.PostForm.Get("log"))}
	calls := cove.Webhooks{Client: v.api}
	all, err := calls.List(ctx)
	if err != nil {
		return nil, err
	}
	for i, w := range all {
		page.Webhooks = append(page.Webhooks, webhookRow{w, ask{
			ID: fmt.Sprintf("delete-webhook-%d", i), Button: "Delete", Title: "Delete the webhook " + w.Name + "?", Action: "/web/settings/webhooks/delete",
			Fields: map[string]string{"name": w.Name}, Lost: []string{fmt.Sprintf("What waits to be sent (%d), and its log.", w.Pending)},
		}})
	}
	if page.Log != "" {
		page.Deliveries, err = calls.Log(ctx, page.Log, maxLines)
	}
	return page, err
}

// putWebhook defines a webhook. If its key was made with it, the answer alone has that.
func putWebhook(v *view) error {
	f := v.r.PostForm
	name, err := named(f)
	if err != nil {
		return err
	}
	def := cove.Webhook{Name: name, URL: f.Get("url"), Events: f["event"], Secret: f.Get("secret"), Private: f.Get("private") != ""}
	if len(def.Events) == 0 {
		def.Events = []string{"*"}
	}
	made, err := cove.Webhooks{Client: v.api}.Put(v.r.Context(), def)
	if err != nil {
		if e := describe(err); !def.Private && strings.Contains(e.Hint, "--private") {
			return fail.New(e.Code, e.Message, "if that is what you want, tick the box: It may lead to an address that is not public")
		}
		return err
	}
	v.say("The webhook %s is stored.", name)
	if wantsPage(v.r) {
		return v.page("Webhook "+name, "", "webhook-page", made)
	}
	return answerBeside(v, "webhooks", "webhook-made", made)
}

func testWebhook(v *view) error {
	f := v.r.PostForm
	name, err := named(f)
	if err != nil {
		return err
	}
	d, err := cove.Webhooks{Client: v.api}.Test(v.r.Context(), name)
	if err != nil {
		return err
	}
	v.say("A test was sent to the webhook %s.", name)
	if wantsPage(v.r) {
		return v.redirect("/web/settings?tab=webhooks&log=" + url.QueryEscape(name))
	}
	return answerBeside(v, "webhooks", "delivery", d)
}

func deleteWebhook(v *view, f url.Values) error {
	name, err := named(f)
	if err != nil {
		return err
	}
	v.say("The webhook %s is deleted.", name)
	return cove.Webhooks{Client: v.api}.Delete(v.r.Context(), name)
}
