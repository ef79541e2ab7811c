// All pages have this: the marks on requests, a word on each that got no answer, keys, buttons that copy
// or open something, and times that stay true. Pages work without it but for what it says here.
"use strict";
(() => {
  const mark = () => document.querySelector('meta[name="cove-mark"]')?.content || "";
  window.coveSprite = () => document.querySelector('meta[name="cove-sprite"]')?.content || ""; // the ID of the one that the page shows
  const marks = () => ({ "X-Cove-Mark": mark(), ...(coveSprite() && { "X-Cove-Sprite": coveSprite() }) });
  document.addEventListener("htmx:configRequest", e => {
    Object.assign(e.detail.headers, marks());
    const by = e.detail.triggeringEvent?.submitter; // htmx misses a button that was put into the page just now
    if (by?.name) e.detail.parameters[by.name] = by.value;
  });
  window.coveFetch = (url, init = {}) =>
    fetch(url, { ...init, headers: { ...(init.headers || {}), ...marks(), "HX-Request": "true" } });

  // A text that was typed into such a form is not left without a question, unless it is on its way.
  let sent = null;
  document.addEventListener("submit", e => { sent = e.target; });
  document.addEventListener("htmx:afterRequest", e => { if (!e.detail.xhr || e.detail.xhr.status === 0 || e.detail.xhr.status >= 400) sent = null; });
  addEventListener("beforeunload", e => {
    const typed = t => t.value !== t.defaultValue && t.value.trim();
    if ([...document.querySelectorAll("form[data-typed]")].some(f => f !== sent && [...f.querySelectorAll("textarea")].some(typed))) e.preventDefault();
  });

  // A request that gets no answer may have been done or not. A text says so beside what sent it, until the
  // same gets an answer; once its place is not shown, it stands above the page.
  const unanswered = new Map(); // the texts, by what was asked
  const plain = e => (e?.getAttribute("aria-label") || e?.textContent || "").trim().replace(/\s+/g, " ").slice(0, 100);
  const asked = (path, from) => {
    const hidden = [...(from.closest("form")?.querySelectorAll("input[type=hidden]") || [])].filter(i => !["_mark", "_sprite"].includes(i.name));
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
  // If it is this page again, other forms keep what is typed in them: no secrets, and no file, which may have changed.
  const typed = "cove-typed", here = () => location.pathname + location.search;
  const fields = ":is(input,textarea)[name]:not([type=hidden],[type=password],[type=file],[type=checkbox],[type=radio],#file-text)";
  const texts = (of = fields) => [...document.querySelectorAll("main form :is(" + of + ")")];
  const place = i => i.form.action + " " + i.name;
  const keepTyped = (to, but) => {
    const u = new URL(to, location.href);
    if (u.pathname + u.search !== here()) return;
    const all = texts().filter(i => i.form !== but && i.value !== i.defaultValue).map(i => [place(i), i.value]);
    if (all.length) sessionStorage.setItem(typed, JSON.stringify([here(), all]));
  };
  // A session may end while somebody writes. What is typed waits in this tab until the same token is logged in.
  const who = () => document.body.dataset.who;
  window.coveLoggedOut = () => {
    const written = texts().some(i => i.value.trim() && i.value !== i.defaultValue);
    const all = texts(fields + ",select[name]").filter(i => i.value !== i.defaultValue).map(i => [place(i), i.value]);
    if (written) sessionStorage.setItem(typed, JSON.stringify([here(), all, who()]));
    location.assign(written ? here() : "/web");
  };
  document.addEventListener("DOMContentLoaded", () => {
    const [at, all, by] = JSON.parse(sessionStorage.getItem(typed) || "[]"), bare = who() === undefined;
    const kept = document.getElementById("kept");
    if (kept) kept.hidden = by === undefined;
    if (by !== undefined && (bare || by === who() && at !== here())) {
      if (bare) return;
      const p = document.createElement("p"), a = document.createElement("a");
      p.className = "undone";
      a.href = at;
      a.textContent = "Go on there";
      p.append("Before you were logged out, you had begun to write something. ", a);
      document.getElementById("undone").append(p);
      return;
    }
    sessionStorage.removeItem(typed);
    if (at !== here() || by !== undefined && by !== who()) return;
    let last = null;
    for (const i of texts(fields + ",select[name]")) for (const [of, value] of all) if (of === place(i)) { i.value = value; last = i; }
    last?.dispatchEvent(new Event("input", { bubbles: true }));
  });

  window.coveLeave = async (to, done = true, form = null) => {
    if (done) keepTyped(to, form);
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
    if (e.detail.xhr.status === 401) { coveLoggedOut(); return; }
    coveLeave(to, e.detail.xhr.status < 400, e.detail.elt.closest("form"));
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

  // A part that could not be loaded does not look as if it would come: the reason stands above the page.
  document.addEventListener("htmx:afterRequest", e => {
    const part = e.target;
    if (!part.matches?.("[aria-busy]") || !e.detail.xhr?.status) return;
    part.removeAttribute("aria-busy");
    if (e.detail.xhr.status < 400) return;
    const p = document.createElement("p"), again = document.createElement("button");
    p.className = "empty";
    again.className = "button small";
    again.textContent = "Try again";
    again.onclick = () => { part.setAttribute("aria-busy", "true"); htmx.ajax("GET", part.getAttribute("hx-get"), { source: part, target: part, swap: "innerHTML" }); };
    p.append("It can’t be shown now. ", again);
    part.replaceChildren(p);
  });

  // What is typed, and what is open, stays when new content takes the place of old.
  window.coveKeep = (old, made) => {
    const twin = e => made.querySelector("#" + CSS.escape(e.id));
    for (const d of old.querySelectorAll("details[id][open]")) { const n = twin(d); if (n) n.open = true; }
    for (const i of old.querySelectorAll("input[id],textarea[id]")) { const n = twin(i); if (n && i.value !== i.defaultValue) n.value = i.value; }
  };
  let held = null; // the list whose focused button is replaced, and the button's id
  document.addEventListener("htmx:oobBeforeSwap", e => {
    const { target, fragment } = e.detail;
    coveKeep(target, fragment);
    if (target.contains(document.activeElement)) held = { target, id: document.activeElement.id };
  });
  document.addEventListener("htmx:afterRequest", () => {
    if (!held) return;
    const { target, id } = held;
    held = null;
    if (!id) target.tabIndex = -1;
    (id && document.getElementById(id) || target).focus({ preventScroll: true });
  });

  // One thing was done last: what it says is on the page, and nothing of those before. A form that is done with
  // is emptied, before its list is put into the page anew.
  window.coveSettled = (ok, form) => {
    if (ok) {
      document.getElementById("notice").replaceChildren();
      if (form?.matches("[data-clears]")) form.reset();
    } else {
      document.getElementById("said").replaceChildren();
      for (const a of document.querySelectorAll("[data-answer]")) a.replaceChildren();
    }
  };
  // A part that a person asks for is an answer, too. What its place showed is of another question: an error takes it away.
  document.addEventListener("htmx:beforeOnLoad", e => {
    const { xhr, elt, target, requestConfig } = e.detail, ok = xhr.status < 400;
    if (requestConfig.verb !== "get") { coveSettled(ok, elt.closest("form")); return; }
    if (!elt.matches("form,button") || xhr.getResponseHeader("HX-Redirect")) return; // all else asks by itself
    coveSettled(ok);
    document.getElementById("said").replaceChildren(); // such an answer says nothing there
    if (!ok && !target.contains(elt)) target.replaceChildren();
  });
  document.addEventListener("DOMContentLoaded", () => { // a live region tells of what comes into it
    const said = document.getElementById("said");
    for (const p of said.children) p.dataset.before = ""; // the page before has done it
    said.replaceChildren(...said.childNodes);
  });

  // The stream may have replaced a button before its answer is there. htmx tells the button alone: the page hears it, too.
  const heard = new WeakSet();
  document.addEventListener("htmx:beforeRequest", e => {
    const { elt } = e.detail;
    if (heard.has(elt)) return;
    heard.add(elt);
    elt.addEventListener("htmx:beforeOnLoad", of => {
      if (!elt.isConnected && !document.dispatchEvent(new CustomEvent(of.type, { detail: of.detail, cancelable: true }))) of.preventDefault();
    });
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
