// Terminals of a sprite, in tabs. Each is a session in the sandbox, which this page knows by its
// id: it comes back to it after a lost connection, a reload, or a restart of the server, and gets
// what the terminal has shown last. A tab's xterm is thrown away with it.
"use strict";
(() => {
  const slowest = 5000, scrollback = 5000, chunk = 32 << 10;

  // A program in the sandbox may say anything. xterm repeats some sequences as often as their number
  // says, keeps a text of any length in one cell, and reads what it is given in one go, while the
  // page stands still: counted are the sequences that it repeats, and the texts that it takes apart.
  const piece = 1 << 10, repeats = 256, joined = 16, payload = 4 << 10;
  const joins = "[\\p{M}\\p{Cf}\\u1160-\\u11ff]";
  const crowd = new RegExp(`(${joins}{${joined}})${joins}+`, "gu"), crowdEnd = new RegExp(`${joins}{1,${joined}}$`, "u");
  const bound = term => {
    for (const final of "ILMSTZb")
      term.parser.registerCsiHandler({ final }, params => params.some(n => n > Math.max(repeats, term.rows, term.cols)));
    for (const id of [0, 1, 2, 4, 10, 11, 12, 104]) term.parser.registerOscHandler(id, text => text.length > payload);
    term.parser.registerOscHandler(8, () => true); // links lead nowhere here, and each is looked at with each new line
  };
  const write = (t, bytes) => {
    const text = (t.crowd + t.decoder.decode(bytes, { stream: true })).replace(crowd, "$1"), from = t.crowd.length;
    t.crowd = crowdEnd.exec(text.slice(-2 * joined))?.[0] || "";
    for (let i = from; i < text.length; i += piece) t.term.write(text.slice(i, i + piece));
  };
  let root, tabs = [], active = null, number = 0;
  const $ = id => document.getElementById(id);
  const path = rest => root.dataset.base + "/terminal" + rest;
  const remembered = () => { try { return JSON.parse(sessionStorage.getItem(root.dataset.base)) || []; } catch { return []; } };
  const remember = () => sessionStorage.setItem(root.dataset.base, JSON.stringify(tabs.map(t => t.id).filter(Boolean)));
  const say = text => { const p = $("terminal-state"); if (p.textContent !== text) p.textContent = text; };
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const theme = () => ({ background: colour("--term-bg"), foreground: colour("--term-text"), cursor: colour("--term-text"), selectionBackground: colour("--term-selected") });
  const reads = () => $("terminal-reader").checked;

  // keys says which keys are the terminal's. Those with Ctrl+Shift are the browser's, Ctrl+V
  // pastes, Ctrl+C copies if something is selected, and Ctrl+Alt+T leaves the terminal.
  const keys = t => e => {
    if (e.ctrlKey && e.shiftKey || e.metaKey) return false;
    if (e.ctrlKey && e.altKey && e.key.toLowerCase() === "t") {
      if (e.type === "keydown") { e.preventDefault(); t.button.focus(); }
      return false;
    }
    if (e.ctrlKey && !e.altKey && e.key === "v") return false;
    if (e.ctrlKey && !e.altKey && e.key === "c" && t.term.hasSelection()) return false;
    return true;
  };

  // A phone has no such keys: Ctrl is held for the next key, and the others are sent.
  const bar = { esc: "\x1b", tab: "\t", up: "A", down: "B", right: "C", left: "D" };
  const held = () => document.querySelector('[data-term-key="ctrl"]');
  const ctrl = () => held().getAttribute("aria-pressed") === "true";
  const press = on => held().setAttribute("aria-pressed", on);
  const key = name => {
    if (!active) return;
    if (name === "ctrl") { press(!ctrl()); return; }
    const arrow = bar[name].length === 1 && bar[name] >= "A" && bar[name] <= "D";
    const text = !arrow ? bar[name] : ctrl() ? "\x1b[1;5" + bar[name] : (active.term.modes.applicationCursorKeysMode ? "\x1bO" : "\x1b[") + bar[name];
    press(false);
    active.term.input(text);
  };

  const send = (t, data) => { if (t.socket?.readyState === WebSocket.OPEN) t.socket.send(data); };
  const resize = t => {
    if (t !== active) return;
    t.fit.fit();
    send(t, JSON.stringify({ type: "resize", rows: t.term.rows, cols: t.term.cols }));
  };

  const add = id => {
    const t = { id, number: ++number, wait: 0, ended: false };
    t.term = new Terminal({
      scrollback, theme: theme(), screenReaderMode: reads(), fontSize: 14, lineHeight: 1.2, fontFamily: colour("--mono"),
      cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches, convertEol: false, linkHandler: { activate() {} },
    });
    bound(t.term);
    t.fit = new FitAddon.FitAddon();
    t.term.loadAddon(t.fit);
    t.panel = document.createElement("div");
    t.panel.className = "terminal-panel terminal";
    t.panel.id = "terminal-panel-" + t.number;
    t.panel.setAttribute("role", "tabpanel");
    t.button = document.createElement("button");
    t.button.type = "button";
    t.button.className = "terminal-tab";
    t.button.id = "terminal-tab-" + t.number;
    t.button.textContent = "Terminal " + t.number;
    t.button.setAttribute("role", "tab");
    t.button.setAttribute("aria-controls", t.panel.id);
    t.panel.setAttribute("aria-labelledby", t.button.id);
    t.button.addEventListener("click", () => show(t, true));
    $("terminal-tabs").append(t.button);
    $("terminal-panels").append(t.panel);
    tabs.push(t);
    show(t, false);
    t.term.open(t.panel);
    t.term.attachCustomKeyEventHandler(keys(t));
    t.term.onData(text => {
      if (ctrl() && text.length === 1) { press(false); if (/[@-_a-z]/.test(text)) text = String.fromCharCode(text.charCodeAt(0) & 31); }
      const bytes = new TextEncoder().encode(text);
      for (let i = 0; i < bytes.length; i += chunk) send(t, bytes.subarray(i, i + chunk));
    });
    t.term.onBinary(text => send(t, Uint8Array.from(text, c => c.charCodeAt(0))));
    t.term.onResize(() => resize(t));
    t.fit.fit();
    connect(t);
    t.term.focus();
    return t;
  };

  const show = (t, focus) => {
    active = t;
    for (const o of tabs) {
      const on = o === t;
      o.panel.hidden = !on;
      o.button.setAttribute("aria-selected", on);
      o.button.tabIndex = on ? 0 : -1;
    }
    $("terminal-none").hidden = tabs.length > 0;
    $("terminal-bar").hidden = !tabs.length;
    if (!t) return;
    say(t.said || "");
    if (focus) { resize(t); t.term.focus(); }
  };

  const tell = (t, text) => { t.said = text; t.panel.dataset.state = text ? "away" : "open"; if (t === active) say(text); };

  const connect = t => {
    const q = t.id ? "?session=" + encodeURIComponent(t.id) : `?rows=${t.term.rows}&cols=${t.term.cols}`;
    const socket = new WebSocket(location.origin.replace(/^http/, "ws") + path("/socket") + q + "&_sprite=" + encodeURIComponent(coveSprite()));
    socket.binaryType = "arraybuffer";
    t.socket = socket;
    t.decoder = new TextDecoder();
    t.crowd = "";
    socket.onmessage = e => {
      if (typeof e.data !== "string") { write(t, new Uint8Array(e.data)); return; }
      let m;
      try { m = JSON.parse(e.data); } catch { return; }
      if (m.type === "session_info") {
        t.id = m.session_id; t.wait = 0; t.panel.dataset.session = t.id;
        remember();
        t.term.reset(); // the sandbox sends again what was shown
        tell(t, "");
        resize(t);
      } else if (m.type === "exit") ended(t, "The shell has ended" + (m.reason ? " (" + m.reason + ")" : "") + ".");
      else if (m.type === "held") tell(t, m.held ? "The sprite is held: " + m.held.message : "");
    };
    socket.onclose = () => { if (t.socket === socket && !t.ended && !t.gone) again(t); };
  };

  const again = t => {
    tell(t, "The connection is lost. Trying to come back…");
    t.wait = Math.min(slowest, t.wait ? t.wait * 2 : 250);
    clearTimeout(t.timer);
    t.timer = setTimeout(() => look(t), t.wait);
  };

  // look asks why a connection could not be made, before the next one: a WebSocket does not say.
  const look = async t => {
    if (t.gone) return;
    try {
      const r = await coveFetch(path("/sessions"));
      if (r.status === 401) { coveLoggedOut(); return; }
      if (r.status === 404) { ended(t, "The sprite is gone."); return; }
      if (r.status === 409) { ended(t, "The sprite is gone: another one has its name now. Load the page again to see that one."); return; }
      if (!r.ok) { again(t); return; }
      const now = await r.json();
      if (!now.awake) { tell(t, "The sprite sleeps. Load the page again to wake it."); return; }
      if (t.id && !now.sessions.some(s => s.id === t.id)) { ended(t, "This terminal is gone: its shell has ended, or the sprite was restarted."); return; }
    } catch { again(t); return; }
    connect(t);
  };

  const ended = (t, why) => {
    t.ended = true;
    t.id = "";
    delete t.panel.dataset.session;
    t.term.options.disableStdin = true;
    tell(t, why);
    remember();
  };

  const close = t => {
    t.gone = true;
    clearTimeout(t.timer);
    t.socket?.close();
    t.term.dispose();
    t.panel.remove();
    t.button.remove();
    const at = tabs.indexOf(t);
    tabs.splice(at, 1);
    remember();
    show(tabs[Math.min(at, tabs.length - 1)] || null, true);
    offer();
    if (!tabs.length) { say(""); $("terminal-new-first").focus(); }
  };

  // offer lists the terminals that are open in the sprite, and not here.
  const offer = async () => {
    const list = $("terminal-open");
    let all = [];
    try { all = (await (await coveFetch(path("/sessions"))).json()).sessions || []; } catch { /* there are none to join, then */ }
    list.replaceChildren(...all.filter(s => !tabs.some(t => t.id === s.id)).slice(0, 50).map(s => {
      const li = document.createElement("li"), b = document.createElement("button"), when = document.createElement("time");
      b.type = "button"; b.className = "button small"; b.textContent = "Join";
      b.setAttribute("aria-label", "Join the terminal of " + s.command);
      b.addEventListener("click", () => { add(s.id); li.remove(); $("terminal-others").hidden = !list.children.length; });
      when.dateTime = s.created; when.className = "dim";
      li.append(b, " ", s.command, " ", when);
      return li;
    }));
    $("terminal-others").hidden = !list.children.length;
    return all;
  };

  document.addEventListener("DOMContentLoaded", async () => {
    root = $("terminals");
    if (!root) return;
    $("terminal-reader").checked = localStorage.getItem("cove-terminal-reader") === "yes";
    for (const b of document.querySelectorAll("[data-terminal-new]")) b.addEventListener("click", () => add(""));
    for (const b of document.querySelectorAll("[data-term-key]")) {
      b.addEventListener("pointerdown", e => e.preventDefault()); // the terminal keeps the focus, and a phone its keyboard
      b.addEventListener("click", () => key(b.dataset.termKey));
    }
    $("terminal-close").addEventListener("click", () => active && close(active));
    $("terminal-end").addEventListener("click", async () => {
      if (!active) return;
      const t = active;
      if (!confirm("End the shell, and what runs in it?")) return;
      if (t.id) {
        const r = await coveFetch(path("/end?session=" + encodeURIComponent(t.id)), { method: "POST" }).catch(() => null);
        if (!r) { coveUnanswered(path("/end"), $("terminal-end")); return; }
        coveAnswered(path("/end"), $("terminal-end"));
        if (!r.ok) { $("notice").innerHTML = await r.text(); return; }
      }
      close(t);
    });
    $("terminal-reader").addEventListener("change", () => {
      localStorage.setItem("cove-terminal-reader", reads() ? "yes" : "no");
      for (const t of tabs) t.term.options.screenReaderMode = reads();
    });
    $("terminal-tabs").addEventListener("keydown", e => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (!by || !active) return;
      const next = tabs[(tabs.indexOf(active) + by + tabs.length) % tabs.length];
      show(next, false);
      resize(next);
      next.button.focus();
      e.preventDefault();
    });
    new ResizeObserver(() => { if (active) active.fit.fit(); }).observe($("terminal-panels"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const t of tabs) t.term.options.theme = theme(); });
    const all = await offer();
    for (const id of remembered()) if (all.some(s => s.id === id)) add(id);
    show(active, false);
    if (tabs.length) offer();
    $("terminal-new-first").disabled = false;
    root.dataset.ready = "yes";
  });
})();
