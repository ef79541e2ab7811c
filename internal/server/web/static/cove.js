// All pages have this: the mark on requests, a word on each that got no answer, keys, buttons that copy
// or open something, and times that stay true. Pages work without it but for what it says here.
"use strict";
(() => {
  const mark = () => document.querySelector('meta[name="cove-mark"]')?.content || "";
  document.addEventListener("htmx:configRequest", e => { e.detail.headers["X-Cove-Mark"] = mark(); });
  window.coveFetch = (url, init = {}) =>
    fetch(url, { ...init, headers: { ...(init.headers || {}), "X-Cove-Mark": mark(), "HX-Request": "true" } });

  // A request that gets no answer may have been done or not. A text says so beside what sent it, until the
  // same gets an answer; once its place is not shown, it stands above the page.
  const unanswered = new Map(); // the texts, by what was asked
  const plain = e => (e?.getAttribute("aria-label") || e?.textContent || "").trim().replace(/\s+/g, " ").slice(0, 100);
  const asked = (path, from) => {
    const hidden = [...(from.closest("form")?.querySelectorAll("input[type=hidden]") || [])].filter(i => i.name !== "_mark");
    return JSON.stringify([path, ...hidden.map(i => i.value)]);
  };
  const above = p => {
    const close = document.createElement("button");
    close.type = "button"; close.className = "link"; close.textContent = "Close";
    close.addEventListener("click", () => {
      for (const [key, q] of unanswered) if (q === p) unanswered.delete(key);
      p.remove();
    });
    if (p.dataset.of) p.prepend(p.dataset.of + ": ");
    p.append(" ", close);
    document.getElementById("undone").append(p);
  };
  const keep = () => { for (const p of unanswered.values()) if (!p.isConnected) above(p); };
  window.coveAnswered = (path, from) => {
    const key = asked(path, from), p = unanswered.get(key);
    unanswered.delete(key);
    p?.remove();
  };
  window.coveUnanswered = (path, from, by, again) => {
    coveAnswered(path, from);
    const form = from.closest("form"), button = by || (from.matches("button,summary") ? from : (form || from).querySelector("button:not([type=button]),summary"));
    const p = document.createElement("p"), name = plain(button);
    p.className = "undone";
    p.setAttribute("role", "alert");
    p.dataset.of = plain(from.closest("dialog,.item,li,section")?.querySelector("h2,h3,.item-title,strong"));
    p.textContent = form?.dataset.undone || (again ? (name ? `“${name}”` : "A part of the page") + " could not be loaded: the server did not answer." : `“${name}” may not have been done: the server did not answer.`);
    if (again) {
      const b = document.createElement("button");
      b.type = "button"; b.className = "link"; b.textContent = "Try again";
      b.addEventListener("click", again);
      p.append(" ", b);
    }
    if (form) form.append(p); else from.after(p);
    if (!p.checkVisibility()) { p.remove(); above(p); }
    unanswered.set(asked(path, from), p);
  };
  document.addEventListener("htmx:beforeRequest", e => {
    const { xhr, elt, requestConfig: { path, verb, triggeringEvent } } = e.detail; // what asked may be gone from the page by then, and htmx tells it alone
    const again = verb === "get" && !elt.matches("form") ? () => htmx.ajax("GET", path, { source: elt }) : null;
    const lost = () => coveUnanswered(path, elt, triggeringEvent?.submitter, again);
    xhr.addEventListener("error", lost);
    xhr.addEventListener("timeout", lost);
    xhr.addEventListener("load", () => coveAnswered(path, elt));
  });
  document.addEventListener("cove:changed", keep);
  document.addEventListener("htmx:afterSwap", keep);

  // A page that leads on loads the next one once the server is there: a browser shows its own error
  // in the place of the page else, and what was typed is lost.
  window.coveLeave = async (to, done = true) => {
    for (let wait = 250, told = null; ; wait = Math.min(5000, 2 * wait)) {
      const r = await fetch("/web/alive", { headers: { "HX-Request": "true" } }).catch(() => null);
      if (r && r.status < 500) { location.assign(to); return; }
      if (!told) {
        told = document.createElement("p");
        told.className = "undone";
        told.textContent = (done ? "It was done. " : "") + "The server has gone away since: the page is loaded again when it is back.";
        document.getElementById("undone").append(told);
      }
      await new Promise(r => setTimeout(r, wait));
    }
  };
  document.addEventListener("htmx:beforeOnLoad", e => {
    const to = e.detail.xhr.getResponseHeader("HX-Redirect");
    if (!to) return;
    e.preventDefault();
    coveLeave(to, e.detail.xhr.status < 400);
  });

  // A form that takes a while says so, and is not sent twice.
  document.addEventListener("htmx:beforeRequest", e => {
    const form = e.target;
    if (!form.matches?.("form[data-busy]")) return;
    const p = document.createElement("p");
    p.className = "busy";
    p.setAttribute("role", "status");
    p.append(document.createElement("progress"), form.dataset.busy);
    p.firstChild.setAttribute("aria-label", "At work");
    form.append(p);
    for (const b of form.querySelectorAll("button")) b.disabled = true;
  });
  document.addEventListener("htmx:afterRequest", e => {
    const form = e.target;
    if (!form.matches?.("form[data-busy]")) return;
    form.querySelector(".busy")?.remove();
    for (const b of form.querySelectorAll("button")) b.disabled = false;
  });

  // An answer stands in the page: the dialog that asked for it goes, and an error is brought into view.
  document.addEventListener("htmx:afterRequest", e => { if (e.detail.xhr.status && e.target.matches?.("form")) e.target.closest("dialog")?.close(); });
  document.addEventListener("htmx:afterSwap", e => { if (e.target.id === "notice") e.target.scrollIntoView({ block: "nearest" }); });

  document.addEventListener("click", async e => {
    const b = e.target.closest("[data-copy],[data-opens],[data-closes],[data-empties]");
    if (!b) return;
    if (b.dataset.empties) document.getElementById(b.dataset.empties)?.replaceChildren();
    if (b.dataset.copy !== undefined) {
      const was = b.textContent;
      try { await navigator.clipboard.writeText(b.dataset.copy); b.textContent = "Copied"; }
      catch { // without TLS a page may not write to the clipboard
        const r = document.createRange(); r.selectNodeContents(b.previousElementSibling); getSelection().removeAllRanges(); getSelection().addRange(r);
        b.textContent = "Press Ctrl+C";
      }
      setTimeout(() => { b.textContent = was; }, 2000);
    }
    if (b.dataset.opens) document.getElementById(b.dataset.opens)?.showModal();
    if (b.dataset.closes) document.getElementById(b.dataset.closes)?.close();
  });

  const units = [[172800000, 86400000, " days"], [3600000, 3600000, " h"], [60000, 60000, " min"], [1000, 1000, " s"]];
  const span = ms => {
    for (const [from, unit, name] of units) if (ms >= from) return Math.floor(ms / unit) + name;
    return "";
  };
  const ago = ms => { const s = span(ms); return s ? s + " ago" : "now"; };
  const begun = new WeakMap(); // when the page first saw what runs: clocks of servers differ
  const runs = () => {
    if (document.body.classList.contains("is-stale")) return; // nobody knows whether it still does
    for (const e of document.querySelectorAll("[data-ran]")) {
      if (!begun.has(e)) begun.set(e, performance.now());
      const said = span(Number(e.dataset.ran) + performance.now() - begun.get(e));
      if (said && e.textContent !== said) e.textContent = said;
    }
  };
  const tick = () => {
    runs();
    for (const t of document.querySelectorAll("time[datetime]")) {
      const ms = Date.now() - Date.parse(t.dateTime), said = ago(ms);
      if (ms >= 0 && t.textContent !== said) t.textContent = said;
    }
  };
  runs(); // the page is as old as its numbers are
  setInterval(() => { if (!document.hidden) tick(); }, 1000);

  let after = "";
  const go = { n: "/web", j: "/web/jobs", s: "/web/sprites", e: "/web/settings" };
  const move = by => {
    const rows = [...document.querySelectorAll("[data-row]")];
    if (!rows.length) return;
    const i = rows.indexOf(document.activeElement.closest("[data-row]"));
    const at = rows[Math.max(0, Math.min(rows.length - 1, i < 0 ? 0 : i + by))];
    (at.matches("a,button") ? at : at.querySelector("a,button") || at).focus();
  };
  document.addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input,textarea,select,[contenteditable],.terminal")) return;
    const key = e.key;
    if (after === "g" && go[key]) { location.assign(go[key]); after = ""; e.preventDefault(); return; }
    after = key === "g" ? "g" : "";
    if (key === "?") { document.getElementById("keys")?.showModal(); e.preventDefault(); }
    else if (key === "j") move(1);
    else if (key === "k") move(-1);
    else {
      const to = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
      if (!to) return;
      if (to.matches("input,textarea")) to.focus(); else to.click();
      e.preventDefault();
    }
  });
})();
