package web

import (
	"strconv"
	"strings"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/lib/fail"
)

// searchPage is what a search has found.
type searchPage struct {
	Text    string
	Found   cove.Found
	Jobs    section
	Sprites section
	Nothing bool
	Error   *problem
}

func search(v *view) error {
	page := searchPage{Text: strings.TrimSpace(v.r.URL.Query().Get("q"))}
	if page.Text == "" {
		return v.page("Search", "", "search", page)
	}
	found, err := cove.Search(v.r.Context(), v.api, page.Text)
	if err != nil {
		p := describe(err)
		if p.Status >= 500 || p.Status == fail.New("unauthorized", "", "").Status() {
			return err
		}
		page.Error = &p
		return v.page("Search", "", "search", page)
	}
	page.Found = found
	for _, job := range found.Jobs {
		page.Jobs.Rows = append(page.Jobs.Rows, v.jobRow(job))
	}
	for _, info := range found.Sprites {
		page.Sprites.Rows = append(page.Sprites.Rows, row{ID: spriteRowID(info.Name), Template: "sprite-row", Data: spriteRowOf(info)})
	}
	page.Jobs.ID, page.Jobs.Title, page.Jobs.Count = "jobs", "Jobs", counted(len(found.Jobs))
	page.Sprites.ID, page.Sprites.Title, page.Sprites.Count = "sprites", "Sprites", counted(len(found.Sprites))
	page.Nothing = len(found.Jobs)+len(found.Sprites)+len(found.Commits)+len(found.Lines) == 0
	return v.page("Search", "", "search", page)
}

// counted is how many of a kind a search has found: it gives no more than so many.
func counted(n int) string {
	const most = 20
	if n >= most {
		return "the first " + strconv.Itoa(n)
	}
	return strconv.Itoa(n)
}
