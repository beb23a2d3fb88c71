import { Shell, bytes, call, count, html, path, plain, time, useContext, useEffect, useRef, useState } from "../core.js";
import { Command, Facts, Page, Problem } from "../parts.js";

const MODES = [["search", "search"], ["id", "by id"], ["key", "by key, from the index"]];
const KEPT = 1_000;
/** Messages of each broker that the index returns for a key. */
const KEYED = 32;
const TAIL_MS = 1_000;
const FIELDS = ["topic", "mode", "id", "key", "since", "until", "last", "tags", "sql", "contains", "limit"];

export default function Messages() {
  const { query, setQuery } = useContext(Shell);
  const [form, setForm] = useState({ mode: "search", last: "50", ...query });
  const [found, setFound] = useState();
  const [error, setError] = useState();
  const [command, setCommand] = useState("");
  const [chosen, setChosen] = useState();
  const [isTailing, setTailing] = useState(false);
  const run = useRef(0);
  const searched = Object.fromEntries(FIELDS.filter((name) => form[name]).map((name) => [name, form[name]]));

  const look = async (given, { cursor, follow } = {}) => {
    const number = ++run.current;
    setError(undefined);
    try {
      const { topic, mode, id, key, ...rest } = given;
      const [where, parameters] = mode === "id" ? [path("topics", topic, "messages", id ?? ""), {}]
        : mode === "key" ? [path("topics", topic, "keys"), { key }]
        : [path("topics", topic, "messages"), { ...rest, key, cursor, follow: follow || undefined, until: follow ? undefined : rest.until }];
      const { data, command: line } = await call("GET", where, parameters);
      if (number !== run.current) return undefined;
      setCommand(line);
      const result = Array.isArray(data) ? { messages: data } : data;
      setFound((before) => (cursor && before ? joined(before, result) : result));
      return result;
    } catch (failure) {
      if (number === run.current) setError(failure);
      return undefined;
    }
  };
  const submit = (event) => {
    event.preventDefault();
    setTailing(false);
    setChosen(undefined);
    setFound(undefined);
    setQuery(searched);
    look(searched);
  };
  useEffect(() => { if (query.topic) look({ mode: "search", last: "50", ...query }); }, []);
  useEffect(() => {
    if (!isTailing) return undefined;
    let timer, isStopped = false;
    const step = async (cursor) => {
      const result = await look({ ...searched, since: cursor ? undefined : "latest" }, { cursor, follow: true });
      if (!isStopped && result) timer = setTimeout(() => step(result.cursor), result.stopped ? 0 : TAIL_MS);
      else if (!result) setTailing(false);
    };
    setFound(undefined);
    step();
    return () => { isStopped = true; clearTimeout(timer); };
  }, [isTailing]);

  const field = (name, title, extra = {}) => html`<label class="field"><span>${title}</span>
    <input value=${form[name] ?? ""} onInput=${(event) => setForm({ ...form, [name]: event.target.value })} autocomplete="off" ...${extra} /></label>`;
  const isSearch = form.mode === "search";
  return html`<${Page} title="Messages" facts=${form.topic ? `of ${plain(form.topic)}` : "of one topic"}>
    <form class="panel query" onSubmit=${submit}>
      ${field("topic", "topic", { required: true })}
      <label class="field"><span>how</span><select value=${form.mode} onInput=${(event) => setForm({ ...form, mode: event.target.value })}>
        ${MODES.map(([name, title]) => html`<option key=${name} value=${name} selected=${name === form.mode}>${title}</option>`)}</select></label>
      ${form.mode === "id" ? field("id", "message id", { required: true, class: "wide" }) : null}
      ${form.mode === "key" ? field("key", "key", { required: true, class: "wide" }) : null}
      ${isSearch ? html`
        ${field("since", "from", { placeholder: "earliest, -15m, a time" })} ${field("until", "until", { placeholder: "now" })}
        ${form.since ? null : field("last", "last of each queue", { type: "number", min: 1, max: 10000 })}
        ${field("key", "key")} ${field("tags", "tags", { placeholder: "a || b" })}
        ${field("sql", "SQL92", { placeholder: "amount > 10 AND region = 'x'" })} ${field("contains", "body contains")}` : null}
      <div class="buttons">
        ${isSearch ? html`<button type="button" disabled=${!form.topic} class=${isTailing ? "danger" : ""} onClick=${() => setTailing(!isTailing)}>${isTailing ? "Stop" : "Live tail"}</button>` : null}
        <button class="solid">Search</button></div>
    </form>
    <${Problem} error=${error} />
    ${found ? html`<${Results} found=${found} chosen=${chosen} onChoose=${setChosen} isTailing=${isTailing}
      onMore=${() => look(searched, { cursor: found.cursor })} />` : null}
    <${Command} line=${command} />
  </${Page}>`;
}

function joined(before, result) {
  const messages = [...before.messages, ...result.messages].slice(-KEPT);
  return { ...result, messages, scanned: before.scanned + result.scanned, total: Math.max(before.total, before.scanned + result.total), unreadable: before.unreadable + result.unreadable };
}

function Results({ found, chosen, onChoose, isTailing, onMore }) {
  const { messages, scanned, total, unreadable, stopped } = found;
  const download = () => {
    const lines = messages.map((message) => `${JSON.stringify(message)}\n`).join("");
    const anchor = document.createElement("a");
    anchor.href = URL.createObjectURL(new Blob([lines], { type: "application/x-ndjson" }));
    anchor.download = "messages.jsonl";
    anchor.click();
    URL.revokeObjectURL(anchor.href);
  };
  return html`<div class="bar"><span>
      <b>${count(messages.length)} found</b>${scanned === undefined ? "" : ` · scanned ${count(scanned)} of ${count(total)}`}
      ${scanned === undefined && messages.length >= KEYED ? `, at most ${KEYED} of each broker: search by key for all` : ""}
      ${unreadable ? ` · ${count(unreadable)} were deleted meanwhile` : ""}
      ${isTailing ? html` · <span class="live">live</span>` : stopped ? html` · <b class="warn">not scanned: ${count(total - scanned - unreadable)}</b>, because ${plain(stopped)}` : ""}</span>
      <span class="pages">${stopped && !isTailing ? html`<button onClick=${onMore}>Continue</button>` : null}
        <button disabled=${!messages.length} onClick=${download}>Download</button></span></div>
    <div class="split"><div class="scroll"><table>
      <thead><tr><th>stored</th><th>queue</th><th class="n">offset</th><th>tags</th><th>keys</th><th>body</th></tr></thead>
      <tbody>${messages.map((each) => {
        const key = `${each.broker}:${each.queue}@${each.offset}`;
        return html`<tr key=${key} class=${chosen === each ? "on" : ""}><td><button class="cell" onClick=${() => onChoose(chosen === each ? undefined : each)}>${time(each.store_ms)}</button></td>
          <td>${plain(each.broker)}:${each.queue}</td><td class="n">${count(each.offset)}</td><td>${plain(each.tags)}</td><td>${plain(each.keys)}</td>
          <td class="body">${preview(each)}</td></tr>`;
      })}${messages.length ? null : html`<tr><td class="empty" colspan="6">${isTailing ? "waiting for messages" : "no message matches"}</td></tr>`}</tbody></table></div>
      ${chosen ? html`<${Detail} message=${chosen} onClose=${() => onChoose(undefined)} />` : null}</div>`;
}

function preview(message) {
  if (message.bodies === "hidden") return html`<i class="muted">hidden, ${bytes(message.body_bytes)}</i>`;
  const text = message.body ?? message.body_base64 ?? "";
  return plain(text.length > 160 ? `${text.slice(0, 160)}…` : text);
}

function Detail({ message, onClose }) {
  const text = message.body ?? message.body_base64;
  return html`<section class="panel detail"><div class="bar"><h2>Message</h2><button class="quiet" onClick=${onClose} aria-label="close">✕</button></div>
    <${Facts} of=${{
      topic: plain(message.topic), queue: `${plain(message.broker)}:${message.queue} @ ${message.offset}`, id: html`<code>${plain(message.id)}</code>`,
      "unique key": html`<code>${plain(message.unique_key)}</code>`, stored: time(message.store_ms), born: time(message.born_ms),
      tags: plain(message.tags), keys: plain(message.keys), retries: count(message.reconsume_times),
      ...Object.fromEntries(Object.entries(message.properties).map(([name, value]) => [`· ${plain(name)}`, plain(value)])),
    }} />
    <h2>Body <small class="muted">${bytes(message.body_bytes)}${message.body_base64 ? " in base64" : ""}${message.is_cut ? ", cut: find it by its id to see all" : ""}</small></h2>
    ${message.body_error ? html`<p class="warn">${plain(message.body_error)}</p>` : null}
    ${message.bodies === "hidden" ? html`<p class="muted">This console hides bodies.</p>` : html`<pre>${plain(pretty(text), true)}</pre>`}</section>`;
}

function pretty(text) {
  if (text.length > 65_536 || !/^\s*[{[]/.test(text)) return text;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
