package loop

import (
	"context"
	"fmt"
)

const (
	recent  = 2       // messages with results of which nothing is left out at first
	small   = 512     // bytes: what is not longer stays
	shorter = 8 << 10 // bytes of a recent result, where all the others are not enough

	imageTokens = 1600     // of an image, about: the APIs make large ones smaller
	mostImages  = 16       // in a request; the APIs allow fewer pixels where there are more
	mostShown   = 12 << 20 // bytes of images in a request
)

// size is how many tokens a request has, about.
func (l *Loop) size() int64 {
	n := len(system)
	for _, m := range l.msgs {
		n += m.bytes()
	}
	for _, t := range l.offers() {
		n += len(t.Description) + 1000 // a schema
	}
	if l.ratio == 0 {
		return int64(n) / bytesPerToken
	}
	return int64(float64(n) * l.ratio)
}

func (m Message) bytes() int {
	n := max(len(m.Native), len(m.Text))
	for _, r := range m.Results {
		n += len(r.Text)
		if r.Image != nil {
			n += imageTokens * bytesPerToken
		}
	}
	return n
}

// fitImages leaves out old images if there are more than a request may have, until half as
// much is left. So the cached beginning of the conversation stays valid for some turns.
func (l *Loop) fitImages() {
	count, bytes := l.images()
	if count > mostImages || bytes > mostShown {
		l.leaveOutImages(mostImages/2, mostShown/2, "to keep this conversation short")
	}
}

// images are how many there are, and their bytes.
func (l *Loop) images() (count, bytes int) {
	for _, m := range l.msgs {
		for _, r := range m.Results {
			if r.Image != nil {
				count, bytes = count+1, bytes+len(r.Image.Data)
			}
		}
	}
	return count, bytes
}

// leaveOutImages leaves out images, the oldest first, until so many are left, of so many bytes.
// It reports whether it has left out any.
func (l *Loop) leaveOutImages(most, mostBytes int, why string) bool {
	count, bytes := l.images()
	left := 0
	for i := range l.msgs {
		m := &l.msgs[i]
		m.Results = append([]ToolResult(nil), m.Results...) // others may have them
		for k := range m.Results {
			r := &m.Results[k]
			if r.Image == nil || count <= most && bytes <= mostBytes {
				continue
			}
			count, bytes, left = count-1, bytes-len(r.Image.Data), left+1
			r.Image, r.Text = nil, r.Text+"\n[The image is left out, "+why+".]"
		}
	}
	if left > 0 {
		l.emit(Event{Type: "trim", Text: fmt.Sprintf("left out %d of the images, %s", left, why)})
	}
	return left > 0
}

// learn corrects the estimate by the API's size of the last request.
func (l *Loop) learn(u Usage) {
	if guess := l.size(); guess > 20_000 && u.Input > 0 { // else the rest counts too much
		old := l.ratio
		if old == 0 {
			old = 1.0 / bytesPerToken
		}
		l.ratio = min(max(old*float64(u.Input)/float64(guess), 1.0/6), 1) // of no text it is less, or more
	}
}

// fit leaves out old results of tools if a request would have more than that many tokens,
// until it has 60 % of them. It leaves out that much at once because each change makes the
// cached conversation useless from there on. It reports whether it has left out anything.
func (l *Loop) fit(ctx context.Context, tokens int64) bool {
	if ctx.Err() != nil || l.size() <= tokens {
		return false
	}
	goal, count, bytes := tokens*6/10, 0, 0
	trim := func(m *Message, to func(ToolResult) string) {
		results := append([]ToolResult(nil), m.Results...) // others may have them
		for i, r := range results {
			if l.size() <= goal {
				return
			}
			if text := to(r); len(text) < len(r.Text) {
				count, bytes = count+1, bytes+len(r.Text)-len(text)
				results[i].Text = text
				m.Results = results
			}
		}
	}
	var with []*Message
	for i := range l.msgs {
		if len(l.msgs[i].Results) > 0 {
			with = append(with, &l.msgs[i])
		}
	}
	for _, m := range with[:max(0, len(with)-recent)] {
		trim(m, func(r ToolResult) string {
			if len(r.Text) <= small {
				return r.Text
			}
			return fmt.Sprintf("[%d bytes that %s gave are left out, to keep this conversation short. Call it again if you need them.]", len(r.Text), r.Tool)
		})
	}
	if l.size() > tokens {
		for _, m := range with {
			trim(m, func(r ToolResult) string { return headAndTail(r.Text, shorter) })
		}
	}
	if count > 0 {
		l.emit(Event{Type: "trim", Text: fmt.Sprintf("%d results of tools were left out, %d bytes", count, bytes)})
	}
	return count > 0
}
