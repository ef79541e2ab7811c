package web

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/cove-dev/cove/internal/lib/fail"
	"github.com/cove-dev/cove/sprites"
)

const (
	logLines   = 200             // of a service's log, at first
	logFollow  = time.Hour       // how long one stream of it lasts
	stopGrace  = 5 * time.Second // of a service that is stopped
	maxLogLine = 4 << 10

	maxServices  = 300     // of a list; a guest keeps fewer
	maxCommand   = 1 << 10 // bytes of a service's command
	serviceFiles = "/.sprite/services"
)

type servicesPage struct {
	Head     spriteHead
	Services []serviceRow
	More     int  // services that are not shown
	Long     bool // they are more than a page reads
	Ports    []sprites.PortEvent
	Preview  int // the port that the sprite's URL leads to
}

// serviceRow is a service in a list.
type serviceRow struct {
	sprites.Service
	Command string // the beginning
}

// serviceRows are as many services as a page shows.
func serviceRows(all []sprites.Service) (rows []serviceRow, more int) {
	for _, s := range all[:min(len(all), maxServices)] {
		command := cut(s.Cmd, maxCommand)
		for _, arg := range s.Args {
			if len(command) >= maxCommand {
				break
			}
			command += " " + cut(arg, maxCommand)
		}
		rows = append(rows, serviceRow{s, cut(command, maxCommand)})
	}
	return rows, len(all) - len(rows)
}

// spriteServices asks the sprite, once: a page that is left open does not keep it awake.
func spriteServices(v *spriteView) error {
	h, asked, err := v.awake("services", "see its services and its ports")
	if err != nil || asked {
		return err
	}
	p := servicesPage{Head: h, Preview: 8080}
	all, err := v.inside().Services(v.r.Context())
	switch {
	case errors.Is(err, errLong): // the rest of the page can be had
		p.Long = true
	case err != nil:
		return unheard(err, "its services", "cove exec -s "+v.name+" ls "+serviceFiles)
	}
	p.Services, p.More = serviceRows(all)
	for _, s := range p.Services {
		if s.HTTPPort > 0 {
			p.Preview = s.HTTPPort
		}
	}
	watch, err := v.sprite().WatchPorts(v.r.Context())
	if err != nil {
		return err
	}
	p.Ports = watch.Open()
	_ = watch.Close() // what it could say is known
	const most = 200
	p.Ports = p.Ports[:min(most, len(p.Ports))]
	return v.spritePage(h, "sprite-services", p)
}

// spriteServiceDo starts, stops or restarts a service.
func spriteServiceDo(v *spriteView) error {
	if err := v.mustBeAwake(); err != nil {
		return err
	}
	name, ctx := v.r.PathValue("service"), v.r.Context()
	var err error
	switch v.r.PathValue("deed") {
	case "start":
		v.say("The service %s is started.", name)
		err = v.insideLines().StartService(ctx, name, sprites.Follow{})
	case "stop":
		v.say("The service %s is stopped.", name)
		err = v.insideLines().StopService(ctx, name, stopGrace, nil)
	case "restart":
		v.say("The service %s is restarted.", name)
		err = v.insideLines().RestartService(ctx, name, sprites.Follow{})
	default:
		err = fail.New("not_found", "there is no such page", "")
	}
	if err != nil {
		return err
	}
	return v.redirect(v.at("services"))
}

type serviceLogPage struct {
	Head    spriteHead
	Service sprites.Service
}

func spriteServiceLog(v *spriteView) error {
	h, asked, err := v.awake("services", "see its services' logs")
	if err != nil || asked {
		return err
	}
	p := serviceLogPage{Head: h}
	if p.Service, err = v.inside().Service(v.r.Context(), v.r.PathValue("service")); err != nil {
		return unheard(err, "the service", "cove service logs -s "+v.name+" "+line(v.r.PathValue("service")))
	}
	return v.page(h.Info.Name+": log of "+line(p.Service.Name), h.live("services", p.Service.Name), "sprite-service-log", p)
}

// logLine is a line of a service's log, as it is shown.
type logLine struct {
	At     time.Time
	Stream string
	Text   string
}

// spriteServiceLive streams a service's log: the end of it first.
func spriteServiceLive(v *spriteView) error {
	if err := v.mustBeAwake(); err != nil {
		return err
	}
	return v.stream(func(ctx context.Context, s *stream) error {
		if err := s.replace("service-log", "service-log", nil); err != nil {
			return err
		}
		shown := 0
		err := v.insideLines().ServiceLogs(ctx, v.r.PathValue("service"), logLines, logFollow, func(e sprites.ServiceEvent) error {
			l := logLine{At: time.UnixMilli(e.Timestamp), Stream: e.Type, Text: cut(plain(strings.TrimRight(e.Data, "\r\n")), maxLogLine)}
			if e.Type == sprites.ServiceEventComplete || l.Text == "" && e.Type != sprites.ServiceEventStdout && e.Type != sprites.ServiceEventStderr {
				return nil
			}
			const most = 2000 // that the page keeps
			if shown++; shown > most {
				shown = 0
				if err := s.replace("service-log", "service-log", nil); err != nil {
					return err
				}
			}
			return s.put("service-log", "append", "log-line", l)
		})
		return err
	})
}

// spritePreview leads a new tab to the sprite's own origin, by a link that works once. It is a
// GET that a page of another site can't make: the browser sends it no cookie.
func spritePreview(v *spriteView) error {
	visit, err := v.api.Visit(v.r.Context(), v.name, sprites.VisitRequest{})
	if err != nil {
		return err
	}
	http.Redirect(v.w, v.r, visit.URL, http.StatusSeeOther)
	return nil
}
