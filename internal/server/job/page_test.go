package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-dev/cove"
	"github.com/cove-dev/cove/internal/test/webtest"
)

// painter is an agent that speaks ACP: it says something hostile, edits a file, asks before it goes on,
// and commits once it may.
const painter = `
answer() { id=$(printf %s "$1" | sed 's/.*"id":\([0-9]*\).*/\1/'); printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$2"; }
tell() { printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s1","update":%s}}\n' "$1"; }
options='[{"optionId":"no","name":"Not now","kind":"reject_once"},{"optionId":"yes","name":"Paint it","kind":"allow_once"}]'
while read -r line; do
	case $line in
	*'"initialize"'*) answer "$line" '{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}' ;;
	*'"session/new"'*) answer "$line" '{"sessionId":"s1"}' ;;
	*'"session/load"'*) answer "$line" '{}' ;;
	*'a review has these remarks'*|*'review has these remarks'*) tell '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"I look at the remarks.\n"}}'; answer "$line" '{"stopReason":"end_turn"}' ;;
	*'"session/prompt"'*) prompt=$line
		tell '{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"Which colour?\n"}}'
		tell '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"I paint the <img src=x onerror=alert(1)> \u202eshed\u001b[31m.\n"}}'
		tell '{"sessionUpdate":"tool_call","toolCallId":"t1","title":"ls","kind":"execute","status":"in_progress","rawInput":{"command":"ls --color"}}'
		tell '{"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"completed","content":[{"type":"content","content":{"type":"text","text":"\u001b[34mshed\u001b[0m"}}]}'
		printf '{"jsonrpc":"2.0","id":101,"method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"t2","title":"Paint the shed","kind":"edit"},"options":%s}}\n' "$options" ;;
	*'"id":101'*)
		mkdir -p .github/workflows; printf 'on: push\n' >.github/workflows/ci.yml; printf 'red\ngreen\n' >shed.txt; seq 4100 >zebra.txt
		git add . && git commit -q -m 'Paint the shed'
		tell '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"It is painted.\n"}}'
		answer "$prompt" '{"stopReason":"end_turn"}' ;;
	esac
done`

// TestJobPage: a job is followed, answered, reviewed and gone on with in a browser, at both widths; another one is
// stopped and compared with it.
func TestJobPage(t *testing.T) {
	b := newBench(t)
	b.serve(0, 0)
	script := filepath.Join(t.TempDir(), "painter")
	const hostile = "<img src=x onerror=alert(1)> "
	program, opening, remark := painter, "I paint the "+hostile+"shed", "Use <b>blue</b>."
	if os.Getenv("COVE_SHOTS") != "" { // which show what an agent says as a rule
		remark = "Blue would be nicer."
		program, opening = strings.Replace(painter, hostile+`\u202eshed\u001b[31m`, "shed", 1), "I paint the shed"
	}
	if err := os.WriteFile(script, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	browser := webtest.Start(t)
	var last string
	for name, size := range map[string]webtest.Size{"desktop": webtest.Desktop, "phone": webtest.Phone} {
		page := browser.Open(b.server.Client(), size)
		job := b.queue(func(req *cove.JobRequest) {
			req.Agent, req.AgentCommand, req.Permissions, req.Plan, req.PlanName = "acp", "sh "+script, "ask", "Paint the shed.", "paint the shed.md"
		})
		at := "/web/jobs/" + job.ID
		page.Goto(at)
		page.Wait("#job-question .button")
		shoot(t, page, name+"-first")
		says(page, opening)
		page.Until("the call has its answer, in colour", `document.querySelector("#transcript .answer .f4")?.textContent === "shed"`)
		page.Until("a thought is folded", `document.querySelector("#transcript .thought details:not([open])")`)
		page.Until("all steps are over", `document.querySelector("#job-steps .completed") && !document.querySelector("#job-steps .running, #job-steps .failed")`)
		fits(page)
		shoot(t, page, name+"-question")
		ticks(page)
		page.Click("#job-question .actions form:last-child button") // which is not the first choice: nothing but a title is known of it
		says(page, "It is painted.")
		page.Until("the question is gone", `document.getElementById("job-question").hidden`)
		if job = b.await(job.ID); job.State != cove.JobSucceeded {
			t.Fatalf("got %s, %+v", job.State, job.Outcome)
		}
		page.Until("the job has ended, and its time stands still", `document.querySelector("#job-head .badge.succeeded") && document.getElementById("job-head").textContent.includes("Worked") && !document.querySelector("[data-ran]")`)
		page.Sees("cove pull " + job.ID)
		shoot(t, page, name+"-done")

		page.Eval(`document.getElementById("replay").open = true`, nil)
		page.Eval(`(() => { const r = document.getElementById("replay-at"); r.value = 1; r.dispatchEvent(new Event("input", {bubbles: true})); })()`, nil)
		page.Until("the replay is at its beginning", `document.querySelector("#transcript .result.later")`)
		page.Click(`[data-play="10"]`)
		page.Until("the replay has come to its end", `!document.querySelector("#transcript .later")`)

		page.Goto(at + "/changes")
		page.Wait("#diff .file")
		page.Until("what is risky comes first", `document.querySelector("#diff .file").dataset.path === ".github/workflows/ci.yml"`)
		page.Until("the commit is there", `document.getElementById("diff").textContent.includes("Paint the shed")`)
		fits(page)
		page.Click(`[data-path="zebra.txt"] button.button`)
		page.Until("the lines of a long file are in their place, and the other files in theirs", `document.querySelector('#diff [data-path="zebra.txt"] [data-line="4100"]') && document.querySelector('#diff [data-path="shed.txt"]') && document.getElementById("files-title")`)
		page.Click(`[data-path="shed.txt"] button.no[data-line="2"]`)
		page.Fill(".comment-form textarea", remark)
		shoot(t, page, name+"-comment")
		page.Click(".comment-form .primary")
		page.Until("the comment is below its line, and gathered", fmt.Sprintf(`document.querySelector("#diff .comment")?.textContent.includes(%q) && document.querySelector("#comments .rows")`, remark))
		page.Click(`[data-path="shed.txt"] button.no[data-line="1"]`)
		page.Fill("form.comment-form textarea", "half")
		page.Click(`#comments form .primary`)
		page.Until("a comment that is half written is not left behind", `document.activeElement === document.querySelector("form.comment-form textarea")`)
		page.Click("form.comment-form [data-cancel]")
		page.Goto(at + "/changes?view=side")
		page.Wait("#diff .two .add")
		fits(page)
		shoot(t, page, name+"-side")
		page.Click(`#comments form .primary`)
		page.Until("the agent goes on as another job", fmt.Sprintf(`/^.web.jobs.[0-9a-f]{6}$/.test(location.pathname) && location.pathname !== %q && document.getElementById("transcript")`, at))
		says(page, "I look at the remarks.")
		page.Until("what it was told is there", fmt.Sprintf(`document.getElementById("told").textContent.includes(%q) && document.getElementById("told").textContent.startsWith("You")`, remark))
		var next string
		page.Eval(`location.pathname.split("/").pop()`, &next)
		if job := b.await(next); job.State != cove.JobSucceeded {
			t.Errorf("the job of the comments: %s, %+v", job.State, job.Outcome)
		}
		page.Until("the page says so", `document.querySelector("#job-head .badge.succeeded")`)
		page.Until("it can't be begun anew, and has no button for that", `!document.querySelector("[hx-post$='/retry'] button.button:not(dialog *)") && !document.querySelector("[data-opens=other-agent]")`)
		fits(page)
		shoot(t, page, name+"-resumed")
		page.Goto(at)
		page.Until("the old job names the new one", fmt.Sprintf(`document.getElementById("job-after").textContent.startsWith("Goes on in %s (succeeded)")`, next))
		page.Until("its plan is there", `document.getElementById("told").textContent.includes("Paint the shed.")`)
		shoot(t, page, name+"-old")
		if left, err := (cove.Review{Client: b.server.Client()}).Comments(t.Context(), job.ID); err != nil || len(left) != 0 {
			t.Errorf("the comments %+v are left, %v", left, err)
		}
		last = job.ID
	}
	stopped := b.begin(`echo x >"$said"`)
	page := browser.Open(b.server.Client(), webtest.Phone)
	page.Goto("/web/jobs/" + stopped.ID)
	page.Click(`[data-opens="stop-job"]`)
	page.Click("#stop-job .danger")
	page.Until("the job is stopped", `document.querySelector("#job-head .badge.cancelled")`)
	page.Goto("/web/jobs/" + stopped.ID)
	page.Until("its page is there", `document.querySelector("#job-head .badge.cancelled") && !document.getElementById("job-after")`)
	again, err := b.server.Client().RetryJob(t.Context(), stopped.ID, cove.JobRetry{Early: true})
	if err != nil {
		t.Fatal(err)
	}
	page.Until("the job that does it again is named, though this one has ended", fmt.Sprintf(`document.getElementById("job-after")?.textContent.includes(%q)`, again.ID))
	if _, err := b.server.Client().StopJob(t.Context(), again.ID); err != nil {
		t.Fatal(err)
	}
	page.Until("its state is that of now", fmt.Sprintf(`document.getElementById("job-after").textContent.includes("%s (shell, cancelled)")`, again.ID))
	page.Goto("/web/compare?a=" + last + "&b=" + stopped.ID)
	page.Until("a file is that of one job only", fmt.Sprintf(`document.body.textContent.includes("only %s")`, stopped.ID))
	fits(page)
	page.Until("both jobs are in view", `[...document.querySelectorAll(".compared th:not(:has(.sr)), .compared td")].every(e => e.getBoundingClientRect().right <= innerWidth && e.scrollWidth <= e.clientWidth)`)
	shoot(t, page, "compare")
	page.Goto("/web/jobs/" + stopped.ID)
	page.Click(`[data-opens="delete-job"]`)
	page.Sees("1 commit that nobody has pulled")
	page.Click("#delete-job .danger")
	page.Wait("#now")
	if _, err := b.server.Client().Job(t.Context(), stopped.ID); code(err) != "not_found" {
		t.Errorf("the job is deleted: %v", err)
	}
}

// fits fails a test whose page is wider than its window.
func fits(page *webtest.Page) {
	page.Until("the page is no wider than its window", `document.documentElement.scrollWidth <= innerWidth`)
}

// ticks fails a test if the time of a running job stands still on its page, or goes on without
// the server.
func ticks(page *webtest.Page) {
	// Each look sets it anew: the server may replace the head meanwhile.
	page.Until("the time goes on", `(() => {
		const ran = document.querySelector("#job-head [data-ran]");
		ran.dataset.ran = 2 * 3600000;
		return ran.textContent === "2 h";
	})()`)
	page.Eval(`document.body.classList.add("is-stale")`, nil)
	page.Until("the page ticks, and nobody knows how long the job runs", `(() => {
		const ran = document.querySelector("#job-head [data-ran]"), time = document.querySelector("#job-head time");
		if (Number(ran.dataset.ran) !== 5 * 3600000) {
			ran.dataset.ran = 5 * 3600000;
			ran.textContent = "2 h";
			time.textContent = "";
		}
		return time.textContent !== "" && ran.textContent === "2 h";
	})()`)
	page.Eval(`document.body.classList.remove("is-stale")`, nil)
}

// says waits until the conversation has a text. It does not use innerText, which is empty for
// text out of view.
func says(page *webtest.Page, text string) {
	page.Until("the conversation has "+text, fmt.Sprintf(`document.getElementById("transcript")?.textContent.includes(%q)`, text))
}

// shoot keeps a picture of a page, if the test is told where.
func shoot(t *testing.T, page *webtest.Page, name string) {
	if dir := os.Getenv("COVE_SHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "job-"+name+".png"), page.Shot(), 0o644); err != nil {
			t.Error(err)
		}
	}
}
