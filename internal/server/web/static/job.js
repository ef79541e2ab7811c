// The pages of a job have a transcript that stays short while it is followed, its replay, and
// comments on lines.
"use strict";
(() => {
  const most = 3000, kept = 2000; // events of which the page has the entries
  const largest = 30000; // elements that they are
  const list = () => document.getElementById("transcript");
  const range = () => document.getElementById("replay-at");

  // Of a page that is left open, the oldest entries go; "before" brings them back. Somebody who reads further up
  // has twice as many, and a replay four times as many.
  let trimming = 0; // at most twice a second: it asks for the page's height
  const trim = () => {
    trimming = 0;
    const ol = list(), last = Number(ol?.lastElementChild?.dataset.seq);
    if (!ol || document.getElementById("later")) return; // a page of old events does not grow by itself
    const all = [...ol.querySelectorAll(":scope > [data-seq]")];
    const times = playing ? 4 : ol.scrollHeight - ol.scrollTop - ol.clientHeight > 400 ? 2 : 1; // somebody reads further up
    const many = last - Number(all[0]?.dataset.seq) >= times * most && !playing, large = ol.getElementsByTagName("*").length > times * largest;
    if (!many && !large) return;
    let first = many ? last - kept + 1 : 0;
    if (large) {
      let n = 0;
      for (const e of all.toReversed()) if ((n += 1 + e.getElementsByTagName("*").length) > largest / 2) { first = Math.max(first, Number(e.dataset.seq) + 1); break; }
    }
    first = Math.min(first, last); // of an event, all stays or nothing
    const gone = all.filter(e => Number(e.dataset.seq) < first);
    if (!gone.length) return;
    const next = gone.at(-1).nextElementSibling;
    for (const e of gone) e.remove();
    document.getElementById("earlier")?.remove();
    if (!next) return;
    const li = document.createElement("li"), b = document.createElement("button");
    li.id = "earlier"; li.className = "more"; b.className = "button"; b.type = "button"; b.textContent = "Show earlier";
    b.setAttribute("hx-get", `/web/jobs/${ol.dataset.job}/earlier?before=${next.dataset.seq}`);
    b.setAttribute("hx-target", "closest li"); b.setAttribute("hx-swap", "outerHTML");
    li.append(b); ol.prepend(li); htmx.process(li);
  };

  // The newest is what a page begins with, or the event that its address names. What is added above moves nothing.
  const toNewest = () => { const ol = list(); if (ol) ol.scrollTop = ol.scrollHeight; };
  // Of the entry of the event that the address names, all is opened. If it has none, the server is asked once, and says so.
  const toNamed = () => {
    const asked = Number(new URLSearchParams(location.search).get("at") ?? NaN);
    const seq = Number(/^#event-(\d+)$/.exec(location.hash)?.[1] ?? asked), all = [...document.querySelectorAll("#transcript [data-seq]")];
    const at = all.find(e => Number(e.dataset.seq) === seq);
    for (const e of all) e.classList.toggle("named", e === at);
    if (!at && !isNaN(seq) && seq !== asked) { location.replace(`?at=${seq}#event-${seq}`); return true; }
    for (let d = at?.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
    for (const d of at?.querySelectorAll("details") ?? []) d.open = true;
    const li = at?.closest("li"), ends = [[li?.previousElementSibling, 1e9], [li?.nextElementSibling, 0]]; // what is beside it in the log is so in the page
    for (const [e, top] of ends) for (const pre of e?.querySelectorAll("pre") ?? []) pre.scrollTop = top;
    const near = at ?? (document.getElementById("later") && all.find(e => Number(e.dataset.seq) > seq));
    const show = () => near?.scrollIntoView({ block: "center" });
    show();
    requestAnimationFrame(() => requestAnimationFrame(show)); // what is above it has its true height by then
    return !!near;
  };
  let fromEnd = -1;
  document.addEventListener("DOMContentLoaded", () => { if (!toNamed()) toNewest(); });
  addEventListener("hashchange", toNamed);
  document.addEventListener("htmx:beforeSwap", e => { if (e.detail.target?.id === "earlier") fromEnd = list().scrollHeight - list().scrollTop; });
  document.addEventListener("htmx:afterSettle", () => { if (fromEnd >= 0) { list().scrollTop = list().scrollHeight - fromEnd; fromEnd = -1; } });

  // Replay: what came after the chosen event is hidden.
  let playing = 0, following = true;
  const entries = () => [...document.querySelectorAll("#transcript [data-seq]")];
  const showUpTo = n => {
    const r = range(), all = following = n >= Number(r.max);
    for (const e of entries()) e.classList.toggle("later", !all && Number(e.dataset.seq) > n);
    r.value = n;
    const at = entries().filter(e => e.dataset.at && Number(e.dataset.seq) <= n).at(-1);
    document.getElementById("replay-now").textContent = (all ? "all" : "event " + n + " of " + r.max) + (at ? ", " + new Date(Number(at.dataset.at)).toLocaleTimeString() : "");
    return at;
  };
  const stop = () => { clearTimeout(playing); playing = 0; };
  const play = speed => {
    stop();
    const r = range(), all = entries().filter(e => e.dataset.at);
    if (!all.length) return;
    let i = all.findIndex(e => Number(e.dataset.seq) > Number(r.value));
    if (i < 0) i = 0;
    const step = () => {
      const at = showUpTo(Number(all[i].dataset.seq));
      at?.scrollIntoView({ block: "nearest" });
      if (++i >= all.length) { stop(); showUpTo(Number(r.max)); return; }
      const pause = (Number(all[i].dataset.at) - Number(all[i - 1].dataset.at)) / speed;
      playing = setTimeout(step, Math.max(16, Math.min(3000, pause)));
    };
    step();
  };
  document.addEventListener("input", e => { if (e.target.id === "replay-at") { stop(); showUpTo(Number(e.target.value)); } });

  document.addEventListener("cove:changed", e => {
    document.getElementById("transcript-empty")?.remove();
    const r = range(), last = Math.max(0, ...e.detail.map(x => Number(x.dataset?.seq || 0)));
    if (r && last > Number(r.max)) {
      r.max = last;
      if (following) r.value = last;
      else for (const x of e.detail) if (x.dataset?.seq) x.classList.add("later");
    }
    trimming ||= setTimeout(trim, 500);
  });

  // Comments: the number of a line opens a form below it.
  document.addEventListener("click", e => {
    const b = e.target.closest("[data-play]");
    if (b) { if (b.dataset.play === "0") stop(); else play(Number(b.dataset.play)); return; }
    if (e.target.closest("[data-cancel]")) { e.target.closest("form").remove(); return; }
    const no = e.target.closest("button.no");
    const template = document.getElementById("comment-form");
    if (!no || !template) return;
    const row = no.parentElement;
    if (row.nextElementSibling?.matches("form.comment-form")) { row.nextElementSibling.querySelector("textarea").focus(); return; }
    const form = template.content.cloneNode(true).firstElementChild;
    form.elements.path.value = no.closest("[data-path]").dataset.path;
    form.elements.side.value = no.dataset.side;
    form.elements.line.value = no.dataset.line;
    form.elements.quote.value = (row.matches(".two") ? no.nextElementSibling : row.lastElementChild).textContent;
    row.after(form);
    htmx.process(form);
    form.elements.text.focus();
  });
  // A comment that is half written is not left without a question, nor left behind when the others are sent.
  const written = () => [...document.querySelectorAll("form.comment-form textarea")].find(t => t.value.trim());
  addEventListener("beforeunload", e => { if (written()) e.preventDefault(); });
  document.addEventListener("htmx:confirm", e => {
    if (!e.target.matches?.("form[data-sends]")) return;
    const open = written();
    if (!open) return;
    e.preventDefault();
    open.setCustomValidity("Add this comment, or cancel it, before you go on.");
    open.reportValidity();
    open.addEventListener("input", () => open.setCustomValidity(""), { once: true });
    setTimeout(() => open.setCustomValidity(""));
  });
  document.addEventListener("keydown", e => {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey) && e.target.matches?.("form.comment-form textarea")) { e.preventDefault(); e.target.form.requestSubmit(); }
  });

  // A link to a file that is folded opens it.
  addEventListener("hashchange", () => { const d = document.getElementById(location.hash.slice(1)); if (d?.matches("details")) d.open = true; });
})();
