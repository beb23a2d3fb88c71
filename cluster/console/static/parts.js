// The parts of a page: table, chart, dialog of a change, tabs, and the line with the command.

import { Shell, any, call, count, html, link, plain, span, useContext, useEffect, useGet, useMemo, useRef, useState } from "./core.js";

const ROWS = 50;

/** An error as a sentence with its remedy; `children` may follow. */
export function Problem({ error }) {
  if (!error) return null;
  return html`<div class="problem" role="alert"><b>${plain(error.message)}</b><span>${plain(error.remedy ?? "")}</span></div>`;
}

/** The state of a resource until it is there: an error, or that it is being loaded. */
export function Loading({ of }) {
  if (of.error) return html`<${Problem} error=${of.error} />`;
  return of.data === undefined ? html`<p class="muted" aria-busy="true">Loading…</p>` : null;
}

/**
 * Return a page that shows one resource, `of` as `useGet` returns it, and loads it again every `everyMs`.
 * address: returns [path, parameters] for the name and the query in the address of the page.
 */
export function pageOf(address, everyMs, Body) {
  return function Loaded({ name }) {
    const { query, setQuery } = useContext(Shell);
    const of = useGet(...address(name, query), everyMs);
    return of.data !== undefined ? html`<${Body} ...${{ name, of, query, setQuery }} data=${of.data} />` : html`<${Loading} of=${of} />`;
  };
}

/** A page: title, facts below it, actions beside it, and the error and the command of the resource `of`. */
export function Page({ title, kind, facts, actions, of = {}, children }) {
  useEffect(() => { document.title = `${title} · RayMQ`; }, [title]);
  return html`
    <header class="page">
      <div><h1>${kind ? html`<small>${kind}</small>` : null}${plain(title)}</h1>${facts ? html`<p class="facts">${facts}</p>` : null}</div>
      <div class="actions">${actions}</div>
    </header>
    <${Problem} error=${of.error} />
    ${children}
    <${Command} line=${of.command} />`;
}

/** The command line that does the same, with a button to copy it. */
export function Command({ line }) {
  const [isCopied, setCopied] = useState(false);
  if (!line) return null;
  const copy = async () => {
    await navigator.clipboard?.writeText(line);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<footer class="command"><span class="muted">same on the command line</span><code>${plain(line)}</code>
    <button class="quiet" onClick=${copy}>${isCopied ? "copied" : "copy"}</button></footer>`;
}

/** Tabs whose choice is in the address as `tab`. */
export function Tabs({ names, chosen }) {
  const { query, setQuery } = useContext(Shell);
  return html`<nav class="tabs">${names.map(([name, title]) => html`
    <button key=${name} class=${name === chosen ? "on" : ""} aria-current=${name === chosen ? "page" : undefined}
      onClick=${() => setQuery({ ...query, tab: name, page: undefined, sort: undefined, match: undefined })}>${title}</button>`)}</nav>`;
}

/**
 * A table with order, filter and pages, which are in the address.
 *
 * columns: [{name, title, number, cell(row), value(row), sort: false}]
 * server: the total of rows if the server orders, filters and cuts them; otherwise this is done here.
 */
export function Table({ columns, rows, server, empty = "nothing here", filter = true, size = ROWS }) {
  const { query, setQuery } = useContext(Shell);
  const sort = query.sort ?? "", page = Math.max(Number(query.page) || 1, 1);
  const change = (changes) => setQuery({ ...query, page: undefined, ...changes });
  const valueOf = (column, row) => (column.value ? column.value(row) : row[column.name]);
  const shown = useMemo(() => {
    if (server !== undefined) return rows;
    const wanted = (query.match ?? "").toLowerCase();
    let found = rows.filter((row) => !wanted || columns.some((column) => String(valueOf(column, row) ?? "").toLowerCase().includes(wanted)));
    const column = columns.find((each) => each.name === sort.replace(/^-/, ""));
    if (column) {
      const sign = sort.startsWith("-") ? -1 : 1;
      found = [...found].sort((one, other) => {
        const [a, b] = [valueOf(column, one), valueOf(column, other)];
        if (a === b) return 0;
        if (a === null || a === undefined) return 1;
        if (b === null || b === undefined) return -1;
        return (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))) * sign;
      });
    }
    return found;
  }, [rows, sort, query.match, server]);
  const total = server ?? shown.length, last = Math.max(Math.ceil(total / size), 1);
  const cut = server === undefined ? shown.slice((page - 1) * size, page * size) : shown;
  const isFiltered = Boolean(query.match);
  return html`
    ${filter && (rows.length > 8 || isFiltered || server !== undefined) ? html`<div class="bar">
      <${Filter} value=${query.match ?? ""} onChange=${(match) => change({ match: match || undefined })} />
      <span class="muted">${count(total)} ${isFiltered ? "match" : "rows"}</span>
      ${last > 1 ? html`<span class="pages">
        <button disabled=${page <= 1} onClick=${() => change({ page: page - 1 > 1 ? page - 1 : undefined })} aria-label="previous page">‹</button>
        <span>${count(page)} / ${count(last)}</span>
        <button disabled=${page >= last} onClick=${() => change({ page: page + 1 })} aria-label="next page">›</button></span>` : null}
    </div>` : null}
    <div class="scroll"><table>
      <thead><tr>${columns.map((column) => html`<${Heading} key=${column.name} column=${column} sort=${sort} onSort=${(next) => change({ sort: next })} />`)}</tr></thead>
      <tbody>${cut.map((row, at) => html`<tr key=${row.key ?? at} class=${row.className ?? ""}>${columns.map((column) => html`
        <td key=${column.name} class=${column.number ? "n" : ""}>${column.cell ? column.cell(row) : any(row[column.name])}</td>`)}</tr>`)}
      ${cut.length ? null : html`<tr><td class="empty" colspan=${columns.length}>${isFiltered ? "no row matches the filter" : empty}</td></tr>`}
      </tbody></table></div>`;
}

function Heading({ column, sort, onSort }) {
  const isChosen = sort.replace(/^-/, "") === column.name, isDown = sort.startsWith("-");
  const title = column.title ?? column.name.replaceAll("_", " ");
  const direction = isChosen ? (isDown ? "descending" : "ascending") : undefined;
  if (column.sort === false) return html`<th class=${column.number ? "n" : ""}>${title}</th>`;
  const next = !isChosen ? (column.number ? `-${column.name}` : column.name) : isDown ? column.name : `-${column.name}`;
  return html`<th class=${column.number ? "n" : ""} aria-sort=${direction}>
    <button onClick=${() => onSort(next)}>${title}${isChosen ? html`<i>${isDown ? "↓" : "↑"}</i>` : null}</button></th>`;
}

function Filter({ value, onChange }) {
  const [text, setText] = useState(value);
  const timer = useRef();
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const input = (event) => {
    const next = event.target.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(next), 250);
  };
  return html`<input type="search" placeholder="filter" aria-label="filter" value=${text} onInput=${input} />`;
}

const clock = (seconds, step) => new Date(seconds * 1000).toTimeString().slice(0, step < 60 ? 8 : 5);

/** Curves over time. curves: {times_ms, values}; series: [{title, at (index in values), shown(value), second}]. */
export function Chart({ curves, series, height = 170 }) {
  const box = useRef(), plot = useRef();
  const theme = document.documentElement.dataset.theme;
  const data = useMemo(() => [curves.times_ms.map((ms) => ms / 1000), ...series.map((each) => curves.values[each.at])], [curves]);
  useEffect(() => {
    const colour = (name) => { // a canvas needs the colour that the style's variable has now
      box.current.style.color = `var(${name})`;
      return getComputedStyle(box.current).color;
    };
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    plot.current = new window.uPlot({
      width: box.current.clientWidth, height,
      cursor: { drag: { x: false, y: false } },
      series: [{ value: (_, at) => (at === null ? "–" : clock(at, 1)) }, ...series.map((each, number) => ({
        label: each.title, stroke: colour(`--curve-${number + 1}`), width: 1.6, points: { show: false },
        fill: series.length === 1 ? colour("--curve-fill") : undefined,
        scale: each.second ? "second" : "y", value: (_, value) => each.shown(value),
      }))],
      scales: { y: { range: (_, __, high) => [0, Math.max(high * 1.1, 1)] }, second: { range: (_, __, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [{ ...axis, size: 28, space: 90, values: (_, marks, __, ___, step) => marks.map((at) => clock(at, step)) }, { ...axis, size: 56, values: (_, marks) => marks.map(series[0].shown) },
        ...(series.some((each) => each.second) ? [{ ...axis, scale: "second", side: 1, size: 56, grid: { show: false }, values: (_, marks) => marks.map(series.find((each) => each.second).shown) }] : [])],
    }, data, box.current);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: box.current.clientWidth, height }));
    observer.observe(box.current);
    return () => { observer.disconnect(); plot.current.destroy(); plot.current = undefined; };
  }, [theme, series.length]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="chart" ref=${box}></div>`;
}

/**
 * A button and its dialog: form, preview, confirmation, result.
 *
 * fields: [{name, title, type: text|number|bool|choice, choices, value, hint, required}]
 * make: returns the parameters of the request from the values of the fields, if they differ.
 */
export function Change({ label, title, method = "POST", at, fixed = {}, fields = [], make, danger, onDone }) {
  const { session } = useContext(Shell);
  const dialog = useRef();
  const [values, setValues] = useState({});
  const [step, setStep] = useState({ name: "form" });
  const open = () => {
    setValues(Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""])));
    setStep({ name: "form" });
    dialog.current.showModal();
    if (!fields.length) request(true, {});
  };
  const request = async (dryRun, given) => {
    setStep((before) => ({ ...before, busy: true, error: undefined }));
    const parameters = { ...fixed, ...(make ? make(given) : parsed(fields, given)), dry_run: dryRun };
    const where = typeof at === "function" ? at(given) : at;
    try {
      const { data, command } = await call(method, where, parameters);
      setStep({ name: dryRun ? "preview" : "done", result: data, command });
    } catch (error) {
      setStep((before) => ({ ...before, busy: false, error }));
    }
  };
  const close = () => {
    dialog.current.close();
    if (step.name === "done") onDone?.();
  };
  const submit = (event) => {
    event.preventDefault();
    if (step.name === "form") request(true, values);
    else if (step.name === "preview") request(false, values);
    else close();
  };
  const verb = { form: "Preview", preview: "Confirm", done: "Close" }[step.name];
  return html`
    <button class=${danger ? "danger" : ""} disabled=${session.read_only} title=${session.read_only ? "this console is read-only" : ""} onClick=${open}>${label}</button>
    <dialog ref=${dialog} onClose=${() => step.name === "done" && onDone?.()} aria-label=${title}>
      <form onSubmit=${submit}>
        <h2>${plain(title)}</h2>
        ${step.name === "form" ? fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]}
          onChange=${(value) => setValues({ ...values, [field.name]: value })} />`) : null}
        ${step.result ? html`<${Result} step=${step} />` : null}
        <${Problem} error=${step.error} />
        ${step.busy ? html`<p class="muted" aria-busy="true">…</p>` : null}
        <div class="buttons">
          ${step.name === "done" ? null : html`<button type="button" class="quiet" onClick=${close}>Cancel</button>`}
          ${step.name === "preview" && fields.length ? html`<button type="button" onClick=${() => setStep({ name: "form" })}>Back</button>` : null}
          ${step.name === "form" && !fields.length ? null : html`<button class=${danger && step.name === "preview" ? "danger solid" : "solid"} disabled=${step.busy}>${verb}</button>`}
        </div>
      </form>
    </dialog>`;
}

function Result({ step }) {
  const { what, rows } = step.result;
  const columns = rows.length ? Object.keys(rows[0]) : [];
  return html`<p class=${step.name === "done" ? "done" : "preview"}>${plain(what)}</p>
    ${rows.length ? html`<div class="scroll small"><table>
      <thead><tr>${columns.map((name) => html`<th key=${name}>${name.replaceAll("_", " ")}</th>`)}</tr></thead>
      <tbody>${rows.slice(0, 200).map((row, at) => html`<tr key=${at}>${columns.map((name) => html`<td key=${name}>${any(row[name])}</td>`)}</tr>`)}</tbody>
    </table></div>${rows.length > 200 ? html`<p class="muted">and ${count(rows.length - 200)} more</p>` : null}` : null}
    ${step.command ? html`<p class="muted">same on the command line: <code>${plain(step.command)}</code></p>` : null}`;
}

function Field({ field, value, onChange }) {
  const common = { id: `field-${field.name}`, required: field.required, onInput: (event) => onChange(event.target.value) };
  const choices = field.type === "bool" ? [["", "unchanged"], ["yes", "yes"], ["no", "no"]] : field.choices;
  return html`<label class="field"><span>${field.title}</span>
    ${choices ? html`<select ...${common} value=${value}>${choices.map(([name, title]) => html`<option key=${name} value=${name} selected=${name === value}>${title}</option>`)}</select>`
      : field.type === "lines" ? html`<textarea ...${common} rows="4" value=${value} placeholder=${field.placeholder ?? ""}></textarea>`
      : html`<input ...${common} type=${field.type === "number" ? "number" : field.type === "password" ? "password" : "text"} value=${value} placeholder=${field.placeholder ?? ""} autocomplete="off" />`}
    ${field.hint ? html`<small class="muted">${field.hint}</small>` : null}</label>`;
}

function parsed(fields, values) {
  return Object.fromEntries(fields.filter((field) => values[field.name] !== "").map((field) => {
    const value = values[field.name];
    return [field.name, field.type === "number" ? Number(value) : field.type === "bool" ? value === "yes" : value];
  }));
}

/** Names and values, one pair in a row. */
export function Facts({ of }) {
  return html`<dl>${Object.entries(of).map(([name, value]) => html`<div key=${name}><dt>${plain(name)}</dt><dd>${value ?? any(null)}</dd></div>`)}</dl>`;
}

/** A figure of a sample, with the age of one that is old. */
export const Sampled = ({ value, row }) => html`${value}${row.stale_ms ? html` <small class="warn">${span(row.stale_ms)} ago</small>` : null}`;

/** The name of a broker and the number of a replica, with a dot that says if it responds. */
export const BrokerName = ({ row }) => html`<span class="nowrap"><i class=${`dot ${row.load || row.replica ? "up" : row.problem ? "down" : ""}`}></i><${Name} kind="brokers" of=${row.broker} />${
  row.replica ? html` <small class="muted">replica ${row.replica.number}</small>` : row.id ? html` <small class="muted">id ${row.id}</small>` : null}</span>`;

/** A name as a link to its page. */
export const Name = ({ of, kind, query }) => html`<a href=${link([kind, of], query)}>${plain(of)}</a>`;
