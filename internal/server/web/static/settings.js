// Forms whose answer is a stream (data-streams): it puts into the page what comes, as live.js does
// for streams that a page reads by itself.
"use strict";
(() => {
  const put = (c, touched) => {
    const at = document.getElementById(c.target);
    if (!at) return;
    touched.add(c.target);
    const t = document.createElement("template");
    t.innerHTML = c.html;
    const made = [...t.content.children];
    if (c.how === "inner") at.replaceChildren(t.content); else at.replaceWith(t.content);
    for (const e of made) htmx.process(e);
  };

  const refuse = html => {
    const at = document.getElementById("notice");
    at.innerHTML = html; // the server's own template
    at.scrollIntoView({ block: "nearest" });
  };

  document.addEventListener("submit", async e => {
    const form = e.target.closest("form[data-streams]");
    if (!form) return;
    e.preventDefault();
    const button = e.submitter, body = new URLSearchParams(new FormData(form, button));
    const more = document.getElementById(form.dataset.fields || "");
    if (more && !more.reportValidity()) return;
    if (more) for (const [name, value] of new FormData(more)) body.append(name, value);
    const path = new URL(form.action).pathname, touched = new Set();
    if (button) button.disabled = true;
    try {
      const r = await coveFetch(form.action, { method: "POST", body, headers: { Accept: "text/event-stream" } });
      coveSettled(r.ok, form);
      if (!r.ok) { refuse(await r.text()); return; }
      const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          for (const l of event.split("\n")) if (l.startsWith("data: ")) for (const c of JSON.parse(l.slice(6))) put(c, touched);
        }
      }
      coveAnswered(path, form);
    } catch {
      coveUnanswered(path, form, button);
    } finally {
      for (const id of touched) { // nobody tells more of it
        for (const b of document.getElementById(id)?.querySelectorAll(".badge.running") || []) { b.textContent = "ended"; b.className = "badge unknown"; }
      }
      if (button) button.disabled = false;
    }
  });
})();
