// Forms whose answer is a stream (data-streams): it puts into the page what comes, as live.js does
// for streams that a page reads by itself.
"use strict";
(() => {
  const put = c => {
    const at = document.getElementById(c.target);
    if (!at) return;
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
    if (button) button.disabled = true;
    try {
      const r = await coveFetch(form.action, { method: "POST", body, headers: { Accept: "text/event-stream" } });
      if (!r.ok) { refuse(await r.text()); return; }
      const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          for (const l of event.split("\n")) if (l.startsWith("data: ")) for (const c of JSON.parse(l.slice(6))) put(c);
        }
      }
    } catch {
      refuse('<div class="error"><p class="bad">The server went away in the middle.</p><p>To do: load the page again</p></div>');
    } finally {
      if (button) button.disabled = false;
    }
  });
})();
