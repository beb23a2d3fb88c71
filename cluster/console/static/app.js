// The shell around the pages: navigation, search, theme, keyboard and login.

import { Shell, call, html, link, place, plain, render, useEffect, useRef, useState } from "./core.js";
import { Problem } from "./parts.js";

/** First part of the address → module of its page, of the page of one item, title, key after g. */
const PAGES = {
  overview: ["overview", null, "Overview", "o"],
  topics: ["topics", "topic", "Topics", "t"],
  groups: ["groups", "group", "Groups", "g"],
  messages: ["messages", null, "Messages", "m"],
  "dead-letters": ["dead-letters", "dead-letters-of", "Dead letters", "l"],
  waiting: ["waiting", null, "Timers", "w"],
  clients: ["clients", null, "Clients", "k"],
  brokers: ["brokers", "broker", "Brokers", "b"],
  lakes: ["lakes", null, "Lakes", "i"],
  access: ["access", null, "Access", "a"],
  changes: ["changes", null, "Changes", "c"],
};

/** The themes in the order of the key: the first one after "auto" is not the one that "auto" shows now. */
const themes = () => (matchMedia("(prefers-color-scheme: dark)").matches ? ["auto", "light", "dark"] : ["auto", "dark", "light"]);

function App() {
  const [at, setAt] = useState({ ...place(), visit: 0 });
  const [session, setSession] = useState();
  const [needsLogin, setNeedsLogin] = useState(false);
  const [problem, setProblem] = useState();
  const [theme, setTheme] = useState(localStorage.getItem("theme") ?? "auto");
  const [hasHelp, setHelp] = useState(false);
  document.documentElement.dataset.theme = theme;
  const load = () => call("GET", "/session").then((found) => {
    setSession(found);
    setProblem(undefined);
    setNeedsLogin(found.login_required && found.user === null);
  }, setProblem);
  const nextTheme = () => setTheme((before) => {
    const all = themes(), next = all[(all.indexOf(before) + 1) % all.length];
    localStorage.setItem("theme", next);
    return next;
  });
  useEffect(() => {
    const move = () => setAt((before) => ({ ...place(), visit: before.visit + 1 }));
    const login = () => setNeedsLogin(true);
    addEventListener("hashchange", move);
    addEventListener("login-required", login);
    load();
    return keyboard({ help: () => setHelp((before) => !before), theme: nextTheme, close: () => setHelp(false) });
  }, []);
  const setQuery = (query) => {
    history.replaceState(null, "", link(at.segments, query));
    setAt((before) => ({ ...place(), visit: before.visit }));
  };
  if (!session) return html`<main class="alone"><${Problem} error=${problem} /></main>`;
  const name = at.segments[0] ?? "overview";
  return html`<${Shell.Provider} value=${{ session, query: at.query, setQuery }}>
    <${Side} chosen=${name} session=${session} />
    <div class="right">
      <${Top} session=${session} needsLogin=${needsLogin} theme=${theme} onTheme=${nextTheme} onHelp=${() => setHelp(true)} onLogout=${() => call("POST", "/logout").then(load)} />
      <main>${needsLogin ? html`<${Login} onDone=${load} />` : html`<${Content} key=${at.visit} segments=${at.segments} />`}</main>
    </div>
    ${hasHelp ? html`<${Help} onClose=${() => setHelp(false)} />` : null}
  </${Shell.Provider}>`;
}

/** The page of an address. Each visit of another address begins with a new one, so none keeps what an earlier address said. */
function Content({ segments }) {
  const [state, setState] = useState({});
  const [kind = "overview", item] = segments;
  const row = Object.hasOwn(PAGES, kind) ? PAGES[kind] : undefined;
  const module = row && segments.length <= 2 && (item === undefined ? row[0] : row[1]);
  useEffect(() => {
    if (!module) return;
    import(`./pages/${module}.js`).then((found) => setState({ page: found.default }), (error) => setState({ error }));
  }, [module]);
  if (!module) {
    return html`<${Problem} error=${{ message: `There is no page ${segments.join("/").slice(0, 80)}.`, remedy: "Choose one on the left." }} />`;
  }
  if (state.error) return html`<${Problem} error=${{ message: "The page cannot be loaded.", remedy: "Is the console still running? Reload the page." }} />`;
  return state.page ? html`<${state.page} name=${item} />` : null;
}

function Side({ chosen, session }) {
  return html`<aside>
    <a class="brand" href="#/"><img src="/icon.svg" alt="" width="26" height="26" />RayMQ</a>
    <nav>${Object.entries(PAGES).map(([name, [, , title]]) => html`
      <a key=${name} href=${link([name])} class=${name === chosen ? "on" : ""} aria-current=${name === chosen ? "page" : undefined}>${title}</a>`)}</nav>
    <p class="muted">${plain(session.nameservers)}</p>
  </aside>`;
}

function Top({ session, needsLogin, theme, onTheme, onHelp, onLogout }) {
  return html`<div class="top">
    ${needsLogin ? html`<span class="search"></span>` : html`<${Search} />`}
    ${session.read_only ? html`<span class="badge">read-only</span>` : null}
    ${session.bodies !== "shown" ? html`<span class="badge">bodies ${session.bodies}</span>` : null}
    ${session.user ? html`<span>${plain(session.user)}</span><button class="quiet" onClick=${onLogout}>Log out</button>` : null}
    <button class="quiet" onClick=${onTheme} title="theme (key: d)">${{ auto: "◐", light: "☀", dark: "☾" }[theme]}</button>
    <button class="quiet" onClick=${onHelp} title="keys (key: ?)">?</button>
  </div>`;
}

/** Finds topics and groups by a part of their names. */
function Search() {
  const [text, setText] = useState("");
  const [found, setFound] = useState();
  const timer = useRef();
  const input = (event) => {
    const match = event.target.value.trim();
    setText(event.target.value);
    clearTimeout(timer.current);
    if (!match) return setFound(undefined);
    timer.current = setTimeout(async () => {
      const [topics, groups] = await Promise.all(["topics", "groups"].map((kind) => (
        call("GET", `/${kind}`, { match, size: 6 }).then(({ data }) => data.rows, () => [])
      )));
      setFound([...topics.map((row) => ["topics", row.topic]), ...groups.map((row) => ["groups", row.group])]);
    }, 200);
    return undefined;
  };
  const close = () => { setText(""); setFound(undefined); };
  const submit = (event) => {
    event.preventDefault();
    if (found?.length) location.hash = link(found[0]);
    close();
  };
  return html`<form class="search" role="search" onSubmit=${submit}>
    <input id="search" type="search" placeholder="find a topic or group   /" aria-label="find a topic or group" value=${text} onInput=${input}
      onKeyDown=${(event) => event.key === "Escape" && (close(), event.target.blur())} autocomplete="off" />
    ${found ? html`<div class="found">${found.map(([kind, name]) => html`<a key=${kind + name} href=${link([kind, name])} onClick=${close}>
      <small>${kind.slice(0, -1)}</small>${plain(name)}</a>`)}${found.length ? null : html`<span class="muted">no topic or group has this in its name</span>`}</div>` : null}
  </form>`;
}

function Login({ onDone }) {
  const [error, setError] = useState();
  const submit = async (event) => {
    event.preventDefault();
    const given = new FormData(event.target);
    try {
      await call("POST", "/login", { user: given.get("user"), secret: given.get("secret") });
      onDone();
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<form class="login" onSubmit=${submit}>
    <h1>Log in</h1>
    <p class="muted">The brokers require a user. What you may see and change are the rights of this user.</p>
    <label class="field"><span>user</span><input name="user" autocomplete="username" required autofocus /></label>
    <label class="field"><span>secret key</span><input name="secret" type="password" autocomplete="current-password" required /></label>
    <${Problem} error=${error} />
    <div class="buttons"><button class="solid">Log in</button></div>
  </form>`;
}

function Help({ onClose }) {
  const keys = [["/", "find a topic or group"], ["r", "load the page again"], ["d", "theme: automatic, light, dark"], ["Esc", "close"],
    ...Object.values(PAGES).map(([, , title, key]) => [`g ${key}`, title])];
  return html`<div class="help" onClick=${onClose}><section><h2>Keys</h2>
    <dl>${keys.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl></section></div>`;
}

/** Listen to the keys; returns the function that stops it. */
function keyboard({ help, theme, close }) {
  let isGoing = false;
  const listen = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return close();
    if (event.target.closest("input, textarea, select, dialog")) return;
    const target = isGoing && Object.entries(PAGES).find(([, row]) => row[3] === event.key);
    isGoing = !isGoing && event.key === "g";
    if (target) location.hash = link([target[0]]);
    else if (event.key === "/") { event.preventDefault(); document.getElementById("search")?.focus(); }
    else if (event.key === "?") help();
    else if (event.key === "d") theme();
    else if (event.key === "r") dispatchEvent(new Event("reload-page"));
  };
  addEventListener("keydown", listen);
  return () => removeEventListener("keydown", listen);
}

render(html`<${App} />`, document.body);
